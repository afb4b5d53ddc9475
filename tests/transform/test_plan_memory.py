"""plan_memory: values that live at the same time never share bytes, but where a kernel may."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

import tensorkiln as tk
from tensorkiln.ir.expr import Expr, IntImm, Var, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, Function, GlobalRef, RVar, Tuple, Value
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.visit import substitute
from tensorkiln.kernels.case import Graph, rand
from tensorkiln.pipeline import relax_passes
from tensorkiln.target import Target
from tensorkiln.transform.relax.partial_graph_aot import partial_graph_aot
from tensorkiln.transform.relax.plan_memory import plan_memory
from tests.transform.graphs import check_text, graph
from tests.transform.test_random_graphs import modules

TARGET = Target({"kind": "llvm", "mcpu": "haswell"})


def planned(mod: IRModule, target: Target = TARGET) -> IRModule:
    *passes, last = relax_passes(target)
    assert last is partial_graph_aot
    for p in passes:
        mod = p(mod)
    return mod


def _number(e: object, sizes: dict[str, int]) -> int:
    if isinstance(e, int):
        return e
    assert isinstance(e, Expr)
    constants = {v: IntImm(sizes[v.name]) for v in _vars(e)}
    n = int_value(substitute(e, constants))
    assert n is not None
    return n


def _vars(e: Expr) -> set[Var]:
    from tensorkiln.ir.visit import free_vars

    return set(free_vars(e))


def check_plan(mod: IRModule, **sizes: int) -> int:
    """Assert that the plan of the only graph is sound; the bytes of the workspace, or of all
    pools."""
    (f,) = mod.graphs
    default_pool = (("workspace", f.attrs.get("workspace_bytes"), 64),)
    rows = f.attrs.get("pools", default_pool)
    pools = {name: (_number(size, sizes), align) for name, size, align in rows}
    homes = {name: (kind, offset) for name, kind, offset in f.attrs.homes}
    owners: dict[Value, tuple[RVar, ...]] = {}  # of values that share memory
    spans: dict[RVar, list[int]] = {}
    for i, b in enumerate(f.bindings):
        call = b.value
        assert isinstance(call, Call)
        for v in (v for a in call.args for v in _owners(a, owners) if v in spans):
            spans[v][1] = i
        if call.op in ("reshape", "concat"):
            owners[b.var] = tuple(v for a in call.args for v in _owners(a, owners))
        else:
            spans[b.var] = [i, i]
    for v in f.result.fields if isinstance(f.result, Tuple) else (f.result,):
        (r,) = _owners(v, owners)
        assert homes[r.name][0] == "arg"
    parts = {v for b in f.bindings if b.value.op == "concat" for v in owners[b.var][1:]}  # type: ignore[union-attr]
    places = []
    for v, (start, end) in spans.items():
        kind, offset = homes[v.name]
        if kind != "arg":
            lo = _number(offset, sizes)
            size = _bytes(v, sizes)
            total, align = pools[kind]
            assert (lo % align == 0 or v in parts) and lo + size <= total
            places.append((v, start, end, lo, lo + size, kind))
    _check_concats(f, homes, owners, sizes)
    for default_pool, other_place in itertools.combinations(places, 2):
        a, b = sorted((default_pool, other_place), key=lambda p: p[1])
        if a[5] != b[5] or a[4] <= b[3] or b[4] <= a[3] or b[1] > a[2]:
            continue
        assert b[1] == a[2], f"{a[0]} and {b[0]} share memory while both live"
        assert _may_replace(mod, f, b[1], a[0], owners), f"{b[0]} overwrites its operand {a[0]}"
    return sum(size for size, _ in pools.values())


def _owners(v: Value, owners: dict[Value, tuple[RVar, ...]]) -> tuple[RVar, ...]:
    return owners.get(v, (v,) if isinstance(v, RVar) else ())


def _bytes(v: RVar, sizes: dict[str, int]) -> int:
    size = v.tensor.dtype.bytes
    for d in v.tensor.physical_shape:
        size *= _number(d, sizes)
    return size


def _check_concats(
    f: Function,
    homes: dict[str, tuple[str, object]],
    owners: dict[Value, tuple[RVar, ...]],
    sizes: dict[str, int],
) -> None:
    """The operands of every concatenation that is no kernel lie one behind the other."""
    for b in f.bindings:
        if isinstance(b.value, Call) and b.value.op == "concat":
            kind, first = homes[owners[b.var][0].name]
            offset = _number(first, sizes)
            for v in owners[b.var]:
                assert kind != "arg" and homes[v.name] == (kind, offset)
                offset += _bytes(v, sizes)


def _may_replace(
    mod: IRModule,
    f: Function,
    binding_index: int,
    operand: RVar,
    owners: dict[Value, tuple[RVar, ...]],
) -> bool:
    """Whether the kernel of the binding at `binding_index` reads `operand` only through an
    overwritable parameter that begins where its result does."""
    call = f.bindings[binding_index].value
    assert isinstance(call, Call) and isinstance(call.callee, GlobalRef)
    kernel = mod[call.callee.name]
    assert isinstance(kernel, PrimFunc)
    reads = [k for k, a in enumerate(call.args) if operand in _owners(a, owners)]
    homes = {name: (kind, offset) for name, kind, offset in f.attrs.homes}
    first = homes[_owners(call.args[reads[0]], owners)[0].name] if reads else None
    shares_place = first == homes[f.bindings[binding_index].var.name]
    return len(reads) == 1 and reads[0] in kernel.inplace and shares_place


def _dense(g: Graph, x: Value) -> Value:
    """Each layer reads all before it."""
    parts = [g.relu(g.conv2d(x, rand(32, 16, 1, 1)))]
    for k in range(4):
        all_of_them = g.concat(*parts, axis=1) if k else parts[0]
        channels = int_value(all_of_them.type.shape[1])
        parts.append(g.conv2d(g.relu(all_of_them), rand(16, channels, 1, 1, seed=k)))
    return g.mean(g.concat(*parts, axis=1), axes=(2, 3))


def test_concatenations_are_where_their_operands_are() -> None:
    mod = planned(graph(_dense, x=(1, 16, 10, 10)))
    bare = [b.value.op for b in mod.graphs[0].bindings if b.value.op]  # type: ignore[union-attr]
    assert bare == ["concat"] * 4 and not any("concat" in f.name for f in mod.prim_funcs)
    # All channels there are in the end, and what relu makes of all but the last layer's.
    assert check_plan(mod) == (96 + 80) * 100 * 4
    pair = planned(graph(_dense, x=(2, 16, 10, 10)))
    assert check_plan(pair) and any("concat" in f.name for f in pair.prim_funcs)


def _chain(g: Graph, x: RVar) -> Value:
    for k in range(6):
        x = g.linear(x, rand(64, 64, seed=k))
    return x


def test_a_chain_needs_two_buffers() -> None:
    assert check_plan(planned(graph(_chain, x=(32, 64)))) == 2 * 32 * 64 * 4


def test_a_symbolic_chain_needs_two_buffers() -> None:
    mod = planned(graph(_chain, x=(Var("N"), 64)))
    assert check_plan(mod, N=5) == 2 * 5 * 64 * 4


def _residual(g: Graph, x: RVar) -> Value:
    y = g.conv2d(x, rand(16, 16, 3, 3), padding=(1, 1, 1, 1))
    z = g.relu(g.add(g.conv2d(y, rand(16, 16, 3, 3, seed=1), padding=(1, 1, 1, 1)), y))
    return g.mean(g.conv2d(z, rand(32, 16, 1, 1)), axes=(2, 3))


def test_networks() -> None:
    check_plan(planned(graph(_residual, x=(2, 16, 14, 14))))
    check_plan(planned(graph(_residual, x=(Var("N"), 16, 14, 14))), N=3)


@settings(max_examples=60)
@given(modules())
def test_any_plan_is_sound(mod: IRModule) -> None:
    check_plan(planned(mod))


def test_the_checker_notices_shared_memory() -> None:
    from dataclasses import replace

    from tensorkiln.ir.attrs import Attrs

    mod = planned(graph(_chain, x=(32, 64)))
    (f,) = mod.graphs
    homes = tuple((n, k, 0 if k == "workspace" else at) for n, k, at in f.attrs.homes)
    bad = replace(f, attrs=Attrs.of(**(dict(f.attrs) | {"homes": homes})))
    with pytest.raises(AssertionError, match="overwrites its operand"):
        check_plan(mod.with_functions(tuple(bad if g is f else g for g in mod.functions)))


def shortcut(g: Graph, x: Value) -> Value:
    """A residual block whose shortcut is written first and read last."""
    x = g.softmax(x, axis=-1)
    short = g.relu(g.linear(x, rand(64, 64)))
    wide = g.relu(g.linear(x, rand(64, 256)))
    narrow = g.relu(g.linear(wide, rand(256, 16)))
    return g.mul(g.softmax(g.add(short, g.linear(narrow, rand(16, 64))), axis=-1), short)


def test_a_value_that_waits_is_computed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = graph(shortcut, x=(32, 64))
    late = planned(mod)
    monkeypatch.setattr("tensorkiln.transform.relax.plan_memory._smallest", lambda plan: plan)
    early = planned(mod)
    assert check_plan(late) < check_plan(early)
    names = [[b.var.name for b in m.graphs[0].bindings] for m in (late, early)]
    assert sorted(names[0]) == sorted(names[1]) and names[0] != names[1]


def test_an_executor_holds_what_the_plan_says_to_the_byte() -> None:
    exe = tk.compile(graph(shortcut, x=(32, 64)))
    executor = tk.runtime.Executor(exe, tk.cpu())
    x = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)
    executor["main"](x)
    assert executor.workspace_bytes == exe.functions[0].workspace_bytes > 0


NEXT = """
    @T.prim_func(private=True)
    def next(X: T.Buffer((4, 8), "float32"), Y: T.Buffer((4, 8), "float32")):
        for i, j in T.grid(4, 8):
            Y[i, j] = X[i, j] + 1.0
"""
TWICE = f"""
@ir_module
class Module:
    @R.function
    def main(x: R.Tensor((4, 8), "float32")):
        y: R.Tensor((4, 8), "float32") = Module.next(x)
        z: R.Tensor((4, 8), "float32") = Module.next(y)
        return z
{NEXT}"""
HOMES = TWICE.replace(
    "@R.function",
    """@R.function(
        attrs={
            "homes": (("x", "arg", 0), ("z", "arg", 1), ("y", "workspace", 0)),
            "workspace_bytes": 128,
        }
    )""",
)


def test_homes_as_text() -> None:
    check_text(
        plan_memory,
        TWICE,
        HOMES,
    )

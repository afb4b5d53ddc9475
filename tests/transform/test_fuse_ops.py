"""fuse_ops: which operators share a kernel, what stays a view, which results are copied.

Groups are written by the operators in them: `conv2d add relu`; a bare `reshape` is a view.
Every case also keeps its float64 meaning, through `assign_layouts` and `fuse_ops`.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tensorkiln import ops
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Call,
    Constant,
    Function,
    GlobalRef,
    RVar,
    Tuple,
    Value,
    tensor,
)
from tensorkiln.ir.verify import verify
from tensorkiln.kernels.case import Build, Graph, c, rand
from tensorkiln.target import Target
from tensorkiln.transform.relax.assign_layouts import AssignLayouts
from tensorkiln.transform.relax.fuse_ops import FuseOps
from tests.transform.graphs import assert_same_values, check_text, graph, main
from tests.transform.test_assign_layouts import networks
from tests.transform.test_random_graphs import modules

TARGET = Target({"kind": "llvm", "mcpu": "haswell"})
PAD = {"padding": (1, 1, 1, 1)}
N = Var("N")


def fused(build: Build, sizes: dict[str, int] | None = None, **params: object) -> IRModule:
    """The graph with layouts and groups, checked."""
    return check_fused(graph(build, **params), **(sizes or {}))


def check_fused(mod: IRModule, **sizes: int) -> IRModule:
    """Both passes: well-formed, the same values, every operator in exactly one group."""
    laid = AssignLayouts(TARGET)(mod)
    out = FuseOps(TARGET)(laid)
    for after in (laid, out):
        verify(after)
        assert_same_values(mod, after, **sizes)
    assert FuseOps(TARGET)(out) is out
    plan = out.graphs[0]
    called = [
        b.value.callee.name
        for b in plan.bindings  # type: ignore[union-attr]
        if isinstance(b.value, Call) and isinstance(b.value.callee, GlobalRef)
    ]
    kernels = [f.name for f in out.functions if isinstance(f, Function) and f.is_primitive]
    assert called == kernels, "each kernel is called once, in order"
    before = sorted(b.value.op for b in main(laid).bindings)  # type: ignore[union-attr]
    after_ops = sorted(" ".join(groups(out)).split())
    copies = after_ops.count("identity") - before.count("identity")
    assert after_ops == sorted([*before, *["identity"] * copies])
    return out


def kernel(mod: IRModule, call: Call) -> Function:
    """The fused function of a call."""
    assert isinstance(call.callee, GlobalRef)
    f = mod[call.callee.name]
    assert isinstance(f, Function) and f.is_primitive
    return f


def groups(mod: IRModule) -> list[str]:
    """The operators of each call of the graph, in order."""
    out = []
    for b in mod.graphs[0].bindings:
        call = b.value
        assert isinstance(call, Call)
        inner = [call] if call.op else [x.value for x in kernel(mod, call).bindings]
        out.append(" ".join(x.op for x in inner))  # type: ignore[union-attr]
    return out


def views(mod: IRModule) -> int:
    """How many calls are bare reshapes."""
    return sum(b.value.op == "reshape" for b in mod.graphs[0].bindings)  # type: ignore[union-attr]


def computing(mod: IRModule) -> list[str]:
    """Groups without the conversions in them, sorted."""
    texts = [" ".join(op for op in t.split() if op != "relayout") for t in groups(mod)]
    return sorted(t for t in texts if t)


def conv(g: Graph, x: Value, filters: int = 16, k: int = 3) -> RVar:
    """A convolution that keeps the size of the image."""
    channels = x.type.shape[1].value  # type: ignore[union-attr]
    return g.conv2d(x, rand(filters, channels, k, k), padding=(k // 2,) * 4)


# --- epilogues -----------------------------------------------------------------------------------

# x and y are float32 [1, 16, 5, 5]; conversions are left out of what is expected
CONVOLUTIONS: dict[str, tuple[Build, list[str]]] = {
    "residual": (lambda g, x, y: g.relu(g.add(conv(g, x), y)), ["conv2d add relu"]),
    "residual on the left": (lambda g, x, y: g.relu(g.add(y, conv(g, x))), ["conv2d add relu"]),
    "number": (lambda g, x, y: g.mul(g.add(conv(g, x), 3), 0.5), ["conv2d add mul"]),
    "halo of the next": (
        lambda g, x, y: conv(g, g.relu(conv(g, x, k=1)), k=5),
        ["conv2d relu", "conv2d"],
    ),
    "two convolutions": (lambda g, x, y: g.add(conv(g, x), conv(g, y)), ["conv2d", "conv2d add"]),
    "relu read twice": (
        lambda g, x, y: g.add(r := g.relu(conv(g, x)), conv(g, r)),
        ["conv2d relu", "conv2d add"],
    ),
    "conv read twice": (
        lambda g, x, y: g.mul(v := conv(g, x), g.sigmoid(v)),
        ["conv2d", "sigmoid mul"],
    ),
    "added to itself": (lambda g, x, y: g.add(v := conv(g, x), v), ["conv2d", "add"]),
    "other operand computed": (
        lambda g, x, y: g.add(conv(g, x), g.tanh(conv(g, y))),
        ["conv2d tanh", "conv2d add"],
    ),
    "pool": (lambda g, x, y: g.max_pool2d(conv(g, x), kernel=(2, 2)), ["conv2d", "max_pool2d"]),
    "another shape": (lambda g, x, y: g.add(conv(g, x, 1), y), ["conv2d", "add"]),
    "another dtype": (lambda g, x, y: g.less(conv(g, x), y), ["conv2d", "less"]),
    "into a concat": (
        lambda g, x, y: conv(g, g.concat(conv(g, x), g.relu(conv(g, y)), axis=1)),
        ["conv2d", "conv2d relu", "concat", "conv2d"],
    ),
    "after a concat": (
        lambda g, x, y: conv(g, g.relu(g.concat(conv(g, x), conv(g, y), axis=1))),
        ["conv2d", "conv2d", "concat", "relu", "conv2d"],
    ),
    "before a conv": (lambda g, x, y: conv(g, g.exp(x)), ["exp", "conv2d"]),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_groups_of_convolutions(name: str) -> None:
    build, expected = CONVOLUTIONS[name]
    out = fused(build, x=(1, 16, 5, 5), y=(1, 16, 5, 5))
    assert computing(out) == sorted(expected)


def test_a_halo_does_not_end_a_group() -> None:
    """The kernel's inner value has none, what it writes has the reader's."""
    out = fused(lambda g, x: conv(g, g.relu(conv(g, x, k=1))), x=(1, 16, 5, 5))
    f = out["conv2d_relu"]
    assert isinstance(f, Function)
    assert [str(b.var.tensor.layout) for b in f.bindings] == ["A B/8 C D B%8", "A B/8 C+1 D+1 B%8"]
    call = next(b for b in main_plan(out) if b.value.callee == GlobalRef("conv2d_relu"))
    assert call.var.tensor.layout == f.bindings[-1].var.tensor.layout


def main_plan(mod: IRModule) -> list:
    """Bindings of the graph."""
    return list(mod.graphs[0].bindings)


PLACES = c([0, 1] * 9, "int64")

# x is float32 [4, 16], y the same
ROWS: dict[str, tuple[Build, list[str]]] = {
    "linear": (lambda g, x, y: g.add(g.gelu(g.linear(x, rand(16, 16), rand(16))), y),
               ["linear gelu add"]),
    "linear in a row": (lambda g, x, y: g.linear(g.relu(g.linear(x, rand(16, 8))), rand(8, 4)),
                        ["linear relu", "linear"]),
    "nothing before linear": (lambda g, x, y: g.linear(g.exp(x), rand(16, 8)), ["exp", "linear"]),
    "elementwise": (lambda g, x, y: g.exp(g.add(g.neg(x), g.abs(y))), ["neg abs add exp"]),
    "read twice": (lambda g, x, y: g.mul(g.exp(e := g.add(x, y)), e), ["add", "exp mul"]),
    "transpose of a sum": (lambda g, x, y: g.transpose(g.add(x, y), axes=(1, 0)),
                           ["add transpose"]),
    "after a transpose": (lambda g, x, y: g.relu(g.transpose(x, axes=(1, 0))), ["transpose relu"]),
    "transpose of linear": (lambda g, x, y: g.transpose(g.linear(x, rand(16, 8)), axes=(1, 0)),
                            ["linear", "transpose"]),
    "concat of computed": (lambda g, x, y: g.concat(g.exp(x), g.neg(y), axis=1),
                           ["exp neg concat"]),
    "concat of linear": (lambda g, x, y: g.concat(g.linear(x, rand(16, 8)), g.neg(y), axis=1),
                         ["linear", "neg concat"]),
    "concat not absorbed": (lambda g, x, y: g.relu(g.concat(x, y, axis=0)), ["concat", "relu"]),
    "concat not absorbed by a sum": (
        lambda g, x, y: g.sum(g.concat(x, y, axis=0), axes=(0,)), ["concat", "sum"]),
    # rows at computed places; a vector has 8 elements
    "transpose of rows": (
        lambda g, x, y: g.transpose(g.neg(g.take(x, PLACES, axis=0)), axes=(1, 0)),
        ["take neg", "transpose"]),
    "rows stay rows": (
        lambda g, x, y: g.transpose(g.take(g.reshape(x, shape=(2, 2, 16)), PLACES, axis=1),
                                    axes=(1, 0, 2)), ["reshape take transpose"]),
    "transpose of short rows": (
        lambda g, x, y: g.transpose(g.take(g.reshape(x, shape=(16, 4)), PLACES, axis=0),
                                    axes=(1, 0)), ["reshape take transpose"]),
    "transpose of columns": (
        lambda g, x, y: g.transpose(g.take(x, PLACES, axis=1), axes=(1, 0)),
        ["take transpose"]),
    # reductions
    "prologue of a sum": (lambda g, x, y: g.sum(g.mul(g.sub(x, y), 2), axes=(1,)), ["sub mul sum"]),
    "epilogue of a sum": (lambda g, x, y: g.sqrt(g.add(g.sum(x, axes=(1,), keepdims=True), 99)),
                          ["sum add sqrt"]),
    "both of a sum": (lambda g, x, y: g.relu(g.mean(g.mul(x, x), axes=(0,))), ["mul mean relu"]),
    "sum spread again": (lambda g, x, y: g.sub(x, g.max(y, axes=(1,), keepdims=True)),
                         ["max", "sub"]),
    "sum of a transpose": (lambda g, x, y: g.sum(g.transpose(x, axes=(1, 0)), axes=(0,)),
                           ["transpose sum"]),
    "sum of a sum": (lambda g, x, y: g.sum(g.exp(g.sum(x, axes=(1,))), axes=(0,)),
                     ["sum exp", "sum"]),
    "transpose after a sum": (
        lambda g, x, y: g.transpose(g.sum(x, axes=(1,), keepdims=True), axes=(1, 0)),
        ["sum", "transpose"]),
    # rows read several times
    "softmax of three": (lambda g, x, y: g.softmax(g.relu(g.add(g.mul(x, 0.125), y))),
                         ["mul add relu softmax"]),
    "softmax of four": (lambda g, x, y: g.softmax(g.neg(g.relu(g.add(g.mul(x, 0.125), y)))),
                        ["mul add relu neg", "softmax"]),
    "softmax of something dear": (lambda g, x, y: g.softmax(g.exp(x)), ["exp", "softmax"]),
    "log softmax": (lambda g, x, y: g.log_softmax(g.mul(x, 2)), ["mul log_softmax"]),
    "nothing after softmax": (lambda g, x, y: g.mul(g.softmax(x), 2), ["softmax", "mul"]),
    "softmax of linear": (lambda g, x, y: g.softmax(g.mul(g.linear(x, rand(16, 8)), 2)),
                          ["linear mul", "softmax"]),
    "layer norm": (
        lambda g, x, y: g.relu(g.layer_norm(g.add(x, y), rand(16), rand(16))),
        ["add layer_norm relu"]),
    "computed gamma": (
        lambda g, x, y: g.layer_norm(x, g.neg(g.reshape(g.slice(
            y, begin=(0, 0), strides=(1, 1), shape=(1, 16)), shape=(16,)))),
        ["slice", "reshape", "neg", "layer_norm"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_groups(name: str) -> None:
    build, expected = ROWS[name]
    assert groups(fused(build, x=(4, 16), y=(4, 16))) == expected


def test_groups_with_symbolic_rows() -> None:
    out = fused(
        lambda g, x, y: g.relu(g.add(g.linear(x, rand(16, 16)), y)), {"N": 3}, x=(N, 16), y=(N, 16)
    )
    assert groups(out) == ["linear add relu"]


# --- attention -----------------------------------------------------------------------------------


def heads(g: Graph, x: Value) -> RVar:
    """[1, s, 32] -> [1, 2, s, 16]."""
    s = x.type.shape[1]  # type: ignore[union-attr]
    return g.transpose(g.reshape(x, shape=(1, s, 2, 16)), axes=(0, 2, 1, 3))


def test_attention_absorbs_movement() -> None:
    """Of queries and values; keys are moved while they are laid out by lanes, results last."""

    def build(g: Graph, q: RVar, k: RVar, v: RVar) -> Value:
        y = g.attention(*(heads(g, x) for x in (q, k, v)), scale=0.3)
        return g.reshape(g.transpose(y, axes=(0, 2, 1, 3)), shape=(1, 5, 32))

    out = fused(build, q=(1, 5, 32), k=(1, 9, 32), v=(1, 9, 32))
    assert groups(out) == [
        "reshape transpose relayout",
        "reshape transpose reshape transpose attention transpose reshape",
    ]


def test_attention_absorbs_no_arithmetic() -> None:
    """It would run again for every tile."""
    out = fused(
        lambda g, q, k, v: g.mul(g.attention(g.mul(q, 2), k, g.neg(v), scale=0.3), 3),
        q=(1, 2, 5, 16),
        k=(1, 2, 9, 16),
        v=(1, 2, 9, 16),
    )
    assert sorted(groups(out)) == ["attention", "mul", "mul", "neg", "relayout"]


def test_attention_does_not_absorb_its_mask() -> None:
    out = fused(
        lambda g, q, m: g.attention(q, q, q, g.transpose(m, axes=(1, 0)), scale=0.3),
        q=(1, 2, 5, 16),
        m=(5, 5),
    )
    assert sorted(groups(out)) == ["attention", "relayout", "transpose"]


# --- views ---------------------------------------------------------------------------------------

# x is float32 [4, 6]
VIEWS: dict[str, tuple[Build, list[str], int]] = {
    "of a kernel": (lambda g, x: g.reshape(g.exp(x), shape=(24,)), ["exp", "reshape"], 1),
    "between kernels": (
        lambda g, x: g.neg(g.reshape(g.exp(x), shape=(24,))),
        ["exp", "reshape", "neg"],
        1,
    ),
    "of a view": (
        lambda g, x: g.neg(g.reshape(g.reshape(g.exp(x), shape=(2, 12)), shape=(24,))),
        ["exp", "reshape", "reshape", "neg"],
        2,
    ),
    "of linear": (
        lambda g, x: g.reshape(g.linear(x, rand(6, 8)), shape=(32,)),
        ["linear", "reshape"],
        1,
    ),
    "before a transpose": (
        lambda g, x: g.transpose(g.reshape(x, shape=(2, 12)), axes=(1, 0)),
        ["reshape transpose"],
        0,
    ),
    "before a sum": (
        lambda g, x: g.sum(g.reshape(x, shape=(2, 12)), axes=(0,)),
        ["reshape sum"],
        0,
    ),
    "before softmax": (
        lambda g, x: g.softmax(g.reshape(x, shape=(2, 12))),
        ["reshape", "softmax"],
        1,
    ),
    "before a concatenation": (
        lambda g, x: g.concat(g.reshape(x, shape=(2, 12)), rand(2, 3), axis=1),
        ["reshape", "concat"],
        1,
    ),
    "before a product's epilogue": (
        lambda g, x: g.add(
            g.linear(x, rand(6, 6)),
            g.slice(g.reshape(x, shape=(3, 8)), begin=(0, 1), strides=(1, 1), shape=(1, 6)),
        ),
        ["reshape slice", "linear add"],
        0,
    ),
    "of a parameter, returned": (lambda g, x: g.reshape(x, shape=(24,)), ["reshape"], 0),
    "of a view of a parameter, returned": (
        lambda g, x: g.reshape(g.reshape(x, shape=(24,)), shape=(2, 12)),
        ["reshape", "reshape"],
        1,
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_reshapes(name: str) -> None:
    build, expected, count = VIEWS[name]
    out = fused(build, x=(4, 6))
    assert groups(out) == expected
    assert views(out) == count


# --- results own their memory --------------------------------------------------------------------

# x is float32 [4, 6]; expected groups and views among them
RESULTS: dict[str, tuple[Build, list[str], int]] = {
    "a parameter": (lambda g, x: x, ["identity"], 0),
    "a parameter twice": (lambda g, x: Tuple((x, x)), ["identity", "identity"], 0),
    "a constant": (lambda g, x: Tuple((rand(3), g.exp(x))), ["exp", "identity"], 0),
    "a duplicate": (lambda g, x: Tuple((y := g.exp(x), y)), ["exp", "identity"], 0),
    "read on": (lambda g, x: Tuple((y := g.exp(x), g.neg(y))), ["exp", "neg"], 0),
    "a value and its view": (
        lambda g, x: Tuple((y := g.exp(x), g.reshape(y, shape=(24,)))),
        ["exp", "reshape", "identity"],
        1,
    ),
    "a view and its value": (
        lambda g, x: Tuple((g.reshape(y := g.exp(x), shape=(24,)), y)),
        ["exp", "reshape", "identity"],
        1,
    ),
    "two views": (
        lambda g, x: Tuple((g.reshape(y := g.exp(x), shape=(24,)), g.reshape(y, shape=(2, 12)))),
        ["exp", "reshape", "reshape", "identity"],
        2,
    ),
    "a parameter and its view": (
        lambda g, x: Tuple((x, g.reshape(x, shape=(24,)))),
        ["reshape", "identity", "identity"],
        1,
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_own_their_memory(name: str) -> None:
    build, expected, count = RESULTS[name]
    out = fused(build, x=(4, 6))
    assert groups(out) == expected
    assert views(out) == count
    assert_own_memory(out)


def assert_own_memory(mod: IRModule) -> None:
    """No two results, and no result and parameter, share memory."""
    f = mod.graphs[0]
    memory: dict[Value, Value] = {}
    for b in f.bindings:
        if b.value.op == "reshape":  # type: ignore[union-attr]
            source = b.value.args[0]  # type: ignore[union-attr]
            memory[b.var] = memory.get(source, source)
    results = f.result.fields if isinstance(f.result, Tuple) else (f.result,)
    owners = [memory.get(v, v) for v in results]
    assert len(set(map(id, owners))) == len(owners)
    kernels = {b.var for b in f.bindings if not b.value.op}  # type: ignore[union-attr]
    assert all(o in kernels for o in owners), "made by a kernel"


# --- the fused functions -------------------------------------------------------------------------


def test_parameters_are_what_the_group_reads() -> None:
    """In order of use, once each; numbers stay inside."""
    w = rand(16, 16)
    out = fused(lambda g, x, y: g.mul(g.add(g.add(g.linear(x, w), y), 2), y), x=(4, 16), y=(4, 16))
    (b,) = main_plan(out)
    x, y = out.graphs[0].params
    assert b.value.args[0] is x and b.value.args[2] is y and len(b.value.args) == 3
    assert isinstance(b.value.args[1], Constant)
    f = kernel(out, b.value)
    assert [p.type for p in f.params] == [a.type for a in b.value.args]
    assert isinstance(f.bindings[2].value.args[1], Constant)  # type: ignore[union-attr]


def test_names_and_spans() -> None:
    """Kernels are named after their operators, calls after the source node of the anchor."""

    def build(g: Graph, x: RVar) -> Value:
        y = g.relu(g.linear(x, rand(16, 16)))
        y = g.relu(g.linear(y, rand(16, 16, seed=1)))
        return g.abs(g.neg(g.exp(g.tanh(g.add(g.softmax(y), 1)))))

    out = fused(build, x=(4, 16))
    assert [b.value.callee.name for b in main_plan(out)] == [
        "linear_relu",
        "linear_relu_2",
        "softmax",
        "add_tanh_exp_x2",
    ]
    assert [b.value.span for b in main_plan(out)] == [
        "node linear",
        "node linear",
        "node softmax",
        "node abs",
    ]


def test_names_avoid_those_of_the_module() -> None:
    g = Graph()
    x = g.param("x", tensor((4,), "float32"))
    mod = IRModule((g.finish(g.exp(x), "exp"),))
    out = FuseOps(TARGET)(mod)
    assert list(out) == ["exp", "exp_2"]
    assert_same_values(mod, out)


def test_several_graphs_have_kernels_of_their_own() -> None:
    functions = []
    for name in ("one", "two"):
        g = Graph()
        functions.append(g.finish(g.exp(g.param("x", tensor((4,), "float32"))), name))
    assert list(FuseOps(TARGET)(IRModule(tuple(functions)))) == ["one", "two", "exp", "exp_2"]


def test_a_group_stands_where_its_last_operator_stood() -> None:
    """Its other operands exist by then."""

    def build(g: Graph, x: RVar) -> Value:
        y = g.linear(x, rand(16, 16))
        z = g.softmax(x)
        return g.add(y, z)

    assert groups(fused(build, x=(4, 16))) == ["softmax", "linear add"]


def test_nothing_to_fuse() -> None:
    g = Graph()
    x = g.param("x", tensor((4,), "float32"))
    fused_once = FuseOps(TARGET)(IRModule((g.finish(g.exp(x)),)))
    assert FuseOps(TARGET)(fused_once) is fused_once
    assert FuseOps(TARGET)(IRModule()) == IRModule()


# --- any small graph -----------------------------------------------------------------------------


def check_groups(mod: IRModule) -> None:
    """One anchor at most per kernel, values used inside are used nowhere else."""
    out = check_fused(mod)
    assert_own_memory(out)
    for f in out.functions:
        if not isinstance(f, Function) or not f.is_primitive:
            continue
        called = [ops.get(b.value.op).pattern for b in f.bindings]  # type: ignore[union-attr]
        assert sum(p in ("contraction", "reduction", "opaque") for p in called) <= 1
        assert f.result is f.bindings[-1].var
        assert all(isinstance(p.type.shape, tuple) for p in f.params)  # type: ignore[union-attr]


@settings(max_examples=100)
@given(modules())
def test_any_graph(mod: IRModule) -> None:
    check_groups(mod)


@settings(max_examples=60)
@given(networks())
def test_any_network(mod: IRModule) -> None:
    check_groups(mod)


def test_the_checker_notices_shared_memory() -> None:
    out = fused(lambda g, x: g.mul(x, c(2)), x=(4,))
    f = out.graphs[0]
    bad = Function(f.name, f.params, f.bindings, Tuple((f.result, f.result)), f.attrs)
    with pytest.raises(AssertionError):
        assert_own_memory(out.with_functions((bad, *out.functions[1:])))


def test_groups_as_text() -> None:
    check_text(
        FuseOps(TARGET),
        """
        @R.function
        def main(x: R.Tensor((4, 8), "float32")):
            y = R.softmax(x, axis=-1)
            z = R.mul(y, R.const(2.0, "float32"))
            a = R.exp(z)
            b = R.reshape(a, shape=(8, 4))
            return b
        """,
        """
        @ir_module
        class Module:
            @R.function
            def main(x: R.Tensor((4, 8), "float32")):
                y: R.Tensor((4, 8), "float32") = Module.softmax(x)
                a: R.Tensor((4, 8), "float32") = Module.mul_exp(y)
                b = R.reshape(a, shape=(8, 4))
                return b

            @R.function(attrs={"primitive": True})
            def softmax(p0: R.Tensor((4, 8), "float32")):
                y = R.softmax(p0, axis=-1)
                return y

            @R.function(attrs={"primitive": True})
            def mul_exp(p0: R.Tensor((4, 8), "float32")):
                z = R.mul(p0, R.const(2.0, "float32"))
                a = R.exp(z)
                return a
        """,
    )

"""Kernels that the cache knows: not scheduled again, and the same in every respect."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base import sources
from tensorkiln.base.errors import UserError
from tensorkiln.ir.derived import Derived, is_pending
from tensorkiln.ir.equal import structural_equal
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import For, PrimFunc
from tensorkiln.ir.visit import map_stmt
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.pipeline import tir_passes
from tensorkiln.schedule import choose
from tests.codegen.kernels import TARGETS
from tests.transform.graphs import Graph, graph, rand


def _net(g: Graph, x: tk.ir.relax.RVar) -> object:  # type: ignore[name-defined]
    y = g.relu(g.conv2d(x, rand(32, 16, 3, 3), padding=(1, 1, 1, 1)))
    z = g.conv2d(y, rand(32, 32, 3, 3, seed=1), padding=(1, 1, 1, 1))
    z = g.add(z, g.sigmoid(z))
    return g.softmax(g.linear(g.mean(z, axes=(2, 3)), rand(32, 10)), axis=1)


NET = graph(_net, x=(1, 16, 12, 12))
SYMBOLIC = graph(lambda g, x: g.tanh(g.linear(x, rand(8, 24))), x=(Var("n"), 8))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of its own."""
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def no_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a kernel that the cache knows is scheduled")

    monkeypatch.setattr(choose, "schedule_group", fail)


def pending_in(mod: IRModule) -> list[str]:
    return [f.name for f in mod.prim_funcs if is_pending(f)]


@pytest.mark.parametrize("mod", [NET, SYMBOLIC], ids=["static", "symbolic"])
def test_a_warm_compile_schedules_nothing_and_makes_the_same(
    mod: IRModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILN_CACHE", "0")
    plain = tk.compile(mod)
    one = plain.export_library(tmp_path / "one.so").read_bytes()
    monkeypatch.setenv("KILN_CACHE", "1")
    cold = tk.compile(mod)
    assert pending_in(cold.module) == []
    with monkeypatch.context() as patch:
        no_schedule(patch)
        warm = tk.compile(mod)
        assert pending_in(warm.module) == [f.name for f in warm.module.prim_funcs]
        two = warm.export_library(tmp_path / "two.so").read_bytes()
        assert one == two
        # What there is to read comes from the cache too: nothing is emitted for it.
        patch.setattr("tensorkiln.codegen.llvm.emit.emit_llvm", lambda *a: pytest.fail("emits"))
        patch.setattr("tensorkiln.codegen.llvm.compile._Worker", lambda: pytest.fail("compiles"))
        for a, b, c in zip(plain.artifacts, cold.artifacts, warm.artifacts, strict=True):
            assert bytes(a.view) == bytes(b.view) == bytes(c.view), a.name
        assert pending_in(warm.module) != []
    # What somebody looks at is made, and is the same program.
    assert structural_equal(plain.module, warm.module)
    assert pending_in(warm.module) == []


@pytest.mark.parametrize("names", [("n", "x"), ("m", "x"), ("n", "rows"), ("x", "n")])
def test_texts_have_the_names_of_their_model(
    names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects are the same whatever a model calls its tensors and sizes; texts are not."""

    def net(size: str, name: str) -> IRModule:
        build = lambda g, x: g.softmax(g.tanh(g.linear(x, rand(8, 24))), axis=1)  # noqa: E731
        return graph(build, **{name: (Var(size), 8)})

    tk.compile(net("k", "y"))
    for _ in range(2):  # with texts of another name in the cache, then with these
        found = tk.compile(net(*names))
        monkeypatch.setenv("KILN_CACHE", "0")
        want = tk.compile(net(*names))
        monkeypatch.setenv("KILN_CACHE", "1")
        assert pending_in(found.module) != []
        assert found.artifacts["ir/module.py"].text() == want.artifacts["ir/module.py"].text()
        assert found.artifacts == want.artifacts


@pytest.mark.parametrize("target", ["neon", "llvmjit"])
def test_assembly_that_was_made_to_be_read_is_kept(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the compile did not come by it: for other processors, and of bitcode."""
    made_for = TARGETS.get(target) or tk.Target({**tk.Target("native").to_json(), "kind": target})
    first = tk.compile(SYMBOLIC, made_for).artifacts["linear_tanh.s"].text()
    assert "\nlinear_tanh:" in first
    if target == "llvmjit":
        assert tk.compile(SYMBOLIC).artifacts["linear_tanh.s"].text() == first
    again = tk.compile(SYMBOLIC, made_for)
    monkeypatch.setattr("tensorkiln.codegen.llvm.compile._Worker", lambda: pytest.fail("compiles"))
    assert again.artifacts["linear_tanh.s"].text() == first


def test_a_promise_is_a_function_like_any_other() -> None:
    cold = tk.compile(NET).module.prim_funcs[0]
    first, second = (tk.compile(NET).module.prim_funcs[0] for _ in range(2))
    assert is_pending(first) and isinstance(first, PrimFunc)
    renamed = replace(first, name="other")
    assert not isinstance(renamed, Derived) and renamed.body is first.body
    assert second.script() == cold.script()
    assert pickle.loads(pickle.dumps(tk.compile(NET).module.prim_funcs[0])).script() == (
        cold.script()
    )
    assert first == replace(first) and replace(first) == first and first != second


def damage(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)


@pytest.mark.parametrize("spoil", [damage, Path.unlink], ids=["damaged", "gone"])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_lost_entries_are_made_again(
    spoil: object, every: int, cache: Path, tmp_path: Path
) -> None:
    """Heads, aliases, objects, texts and linked libraries, in any combination."""
    cold = tk.compile(NET)
    want = cold.export_library(tmp_path / "one.so").read_bytes()
    files = sorted(f for f in (cache / "objects").glob("??/*"))
    assert len(files) > 10
    for file in files[::every]:
        spoil(file)  # type: ignore[operator]
    again = tk.compile(NET)
    assert again.export_library(tmp_path / "two.so").read_bytes() == want
    assert again.artifacts == cold.artifacts


def test_another_compiler_trusts_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tk.compile(NET)
    changed = lambda room="": f"another {room}"  # noqa: E731
    for module in ("tensorkiln.ir.derived", "tensorkiln.codegen.llvm.compile"):
        monkeypatch.setattr(f"{module}.source_digest", changed)
    made = tk.compile(NET)
    assert pending_in(made.module) == []
    assert sources.source_digest() != sources.source_digest("codegen/llvm")


def test_options_of_the_target_are_part_of_it() -> None:
    for fields in ({"mcpu": "haswell"}, {"mcpu": "x86-64-v4"}):
        target = tk.Target({"kind": "llvm", **fields})
        assert pending_in(tk.compile(NET, target).module) == []
        assert pending_in(tk.compile(NET, target).module) != []


def test_what_is_not_lowered_is_refused_with_a_warm_cache_too() -> None:
    tk.compile(NET)
    with pytest.raises(UserError, match="vectorize_loops") as caught:
        tk.compile(NET, tir_pipeline=None)
    assert caught.value.code == "not-lowered"


def _doubled(s: object) -> object:
    """The same program with every serial loop unrolled in its text."""
    if isinstance(s, For) and s.kind == "serial" and str(s.extent) == "2":
        s = replace(s, kind="unrolled")
    return map_stmt(s, lambda e: e, _doubled)  # type: ignore[arg-type]


def test_a_pass_of_the_user_is_run_and_has_no_part_in_keys() -> None:
    """Its result is known by its program only: an edit of the pass changes what is compiled."""
    tk.compile(NET)
    seen: list[str] = []

    def rewrite(f: PrimFunc) -> PrimFunc:
        seen.append(f.name)
        return replace(f, body=_doubled(f.body))  # type: ignore[arg-type]

    def mine(mod: IRModule) -> IRModule:
        return mod.map_bodies(rewrite)

    target = tk.Target("native")
    for _ in range(2):
        seen.clear()
        made = tk.compile(NET, target, tir_pipeline=[*tir_passes(target), mine])
        assert seen == [f.name for f in made.module.prim_funcs]
        assert not any(isinstance(f, Derived) for f in made.module.prim_funcs)


def test_instruments_see_bodies() -> None:
    tk.compile(NET)
    texts: list[str] = []

    class Look(tk.passes.Instrument):  # type: ignore[name-defined,misc]
        def after(self, step: object) -> None:
            texts.append(step.after.script())  # type: ignore[attr-defined]

    tk.compile(NET, instruments=[Look()])
    assert any("T.unroll" in t or "T.vectorized" in t for t in texts)


def test_the_warm_library_computes(tmp_path: Path) -> None:
    tk.compile(NET)
    x = np.random.default_rng(3).standard_normal((1, 16, 12, 12)).astype(np.float32)
    y = tk.runtime.Executor(tk.compile(NET).jit(), tk.cpu())["main"](x)
    want = np.asarray(evaluate(NET, {"x": x})[0])
    np.testing.assert_allclose(np.asarray(y), want, rtol=1e-4, atol=1e-6)


def test_no_weights_are_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take as long as writing them; only the text, which nobody reads here, needs it."""
    for module in ("ir.text.print_relax", "codegen.host.weights"):
        monkeypatch.setattr(f"tensorkiln.{module}.digest", lambda a: pytest.fail("hashes weights"))
    executable = tk.compile(NET)
    executable.export_library(tmp_path / "net.so")
    with pytest.raises(BaseException, match="hashes weights"):
        executable.module.script()


def test_other_weights_link_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The linked code holds no weights, so it serves a model that was trained further."""

    def net(seed: int) -> IRModule:
        return graph(lambda g, x: g.linear(x, rand(64, 64, seed=seed)), x=(4, 64))

    one = tk.compile(net(1)).export_library(tmp_path / "one.so").read_bytes()
    monkeypatch.setattr("tensorkiln.link.toolchain.run_tool", lambda *a: pytest.fail(f"runs {a}"))
    two = tk.compile(net(2)).export_library(tmp_path / "two.so").read_bytes()
    assert len(one) == len(two) and one != two

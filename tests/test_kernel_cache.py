"""Kernels that the cache knows: not scheduled again, and the same in every respect."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base import sources
from tensorkiln.base.errors import UserError
from tensorkiln.executable import Executable
from tensorkiln.ir.equal import structural_equal
from tensorkiln.ir.expr import Var
from tensorkiln.ir.known_kernel import KnownKernel
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import For, PrimFunc
from tensorkiln.ir.visit import map_stmt
from tensorkiln.kernels.case import Graph, rand
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.passes import Instrument
from tensorkiln.passes.step import Step
from tensorkiln.pipeline import relax_passes, tir_passes
from tensorkiln.schedule import choose
from tests.codegen.kernels import TARGETS
from tests.transform.graphs import graph


def _net(g: Graph, x: tk.ir.relax.RVar) -> object:  # type: ignore[name-defined]
    y = g.relu(g.conv2d(x, rand(32, 16, 3, 3), padding=(1, 1, 1, 1)))
    z = g.conv2d(y, rand(32, 32, 3, 3, seed=1), padding=(1, 1, 1, 1))
    z = g.add(z, g.sigmoid(z))
    return g.softmax(g.linear(g.mean(z, axes=(2, 3)), rand(32, 10)), axis=1)


NET = graph(_net, x=(1, 16, 12, 12))
SYMBOLIC = graph(lambda g, x: g.tanh(g.linear(x, rand(8, 24))), x=(Var("n"), 8))


@pytest.fixture(autouse=True)
def cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_cache: Callable[[Path], Path]
) -> Path:
    """A cache of its own that holds no kernels."""
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path / "cache"))
    return fresh_cache(tmp_path / "cache")


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Executable]:
    """NET and SYMBOLIC, compiled with an empty cache; `warm` has what that left in it."""
    folder = tmp_path_factory.mktemp("cold")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KILN_CACHE_DIR", str(folder / "cache"))
        made = {"static": tk.compile(NET), "symbolic": tk.compile(SYMBOLIC)}
        for name, executable in made.items():
            executable.export_library(folder / f"{name}.so")
    return made


@pytest.fixture
def warm(
    cold: dict[str, Executable], cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The cache that `cold` filled, as a copy in place of the empty one."""
    shutil.copytree(tmp_path_factory.getbasetemp() / "cold0" / "cache", cache, dirs_exist_ok=True)


def no_compile(*_: object) -> None:
    pytest.fail("compiles")


def no_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a kernel that the cache knows is scheduled")

    monkeypatch.setattr(choose, "schedule_group", fail)


def known_in(mod: IRModule) -> list[str]:
    return [f.name for f in mod.kernels if isinstance(f, KnownKernel)]


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("mod", [NET, SYMBOLIC], ids=["static", "symbolic"])
def test_a_warm_compile_schedules_nothing_and_makes_the_same(
    mod: IRModule,
    cold: dict[str, Executable],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = cold["static" if mod is NET else "symbolic"]
    one = first.export_library(tmp_path / "one.so").read_bytes()
    monkeypatch.setenv("KILN_CACHE", "0")
    plain = tk.compile(mod)
    if mod is SYMBOLIC:  # once, since this compiles the runtime as well
        assert plain.export_library(tmp_path / "plain.so").read_bytes() == one
    monkeypatch.setenv("KILN_CACHE", "1")
    assert known_in(first.module) == []
    with monkeypatch.context() as patch:
        no_schedule(patch)
        again = tk.compile(mod)
        assert known_in(again.module) == [f.name for f in again.module.kernels]
        assert again.module.prim_funcs == ()
        two = again.export_library(tmp_path / "two.so").read_bytes()
        assert one == two
        # What there is to read comes from the cache too: nothing is emitted for it.
        patch.setattr("tensorkiln.codegen.llvm.emit.emit_llvm", lambda *a: pytest.fail("emits"))
        patch.setattr("tensorkiln.codegen.llvm.compile._Worker.compile", no_compile)
        for a, b, c in zip(plain.artifacts, first.artifacts, again.artifacts, strict=True):
            assert bytes(a.view) == bytes(b.view) == bytes(c.view), a.name
    # The programs that are made for comparison, or by name, are the same.
    assert structural_equal(plain.module, again.module)
    made = again.module.with_programs()
    assert [f.name for f in made.prim_funcs] == [f.name for f in again.module.kernels]
    assert made.script() == again.module.script() == first.module.script()


def test_texts_have_the_names_of_their_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects are the same whatever a model calls its tensors and sizes; texts are not."""

    def net(size: str, name: str) -> IRModule:
        build = lambda g, x: g.softmax(g.tanh(g.linear(x, rand(8, 24))), axis=1)  # noqa: E731
        return graph(build, **{name: (Var(size), 8)})

    tk.compile(net("k", "y"))
    for names in (("n", "x"), ("m", "x"), ("n", "rows"), ("x", "n")):
        monkeypatch.setenv("KILN_CACHE", "0")
        want = tk.compile(net(*names))
        monkeypatch.setenv("KILN_CACHE", "1")
        for _ in range(2):  # with texts of other names in the cache, then with these
            found = tk.compile(net(*names))
            assert known_in(found.module) != []
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
    assert bool(known_in(again.module)) is (target == "neon")
    monkeypatch.setattr("tensorkiln.codegen.llvm.compile._Worker.compile", no_compile)
    assert again.artifacts["linear_tanh.s"].text() == first


@pytest.mark.usefixtures("warm")
def test_a_known_kernel_is_a_function_without_a_body(cold: dict[str, Executable]) -> None:
    want = cold["static"].module.prim_funcs[0]
    module = tk.compile(NET).module
    known = module.kernels[0]
    assert isinstance(known, KnownKernel) and not hasattr(known, "body")
    assert (known.outputs, known.inplace, known.op_class) == (
        (want.outputs, want.inplace, want.op_class)
    )
    assert [str(b.shape) for b in known.buffers] == [str(b.shape) for b in want.buffers]
    assert known.script() == known.program().script() == want.script()
    assert pickle.loads(pickle.dumps(known)).script() == want.script()


@pytest.mark.usefixtures("warm")
def test_only_what_keeps_a_body_as_it_is_keeps_its_key() -> None:
    module = tk.compile(NET).module
    names = [f.name for f in module.kernels]
    assert list(module.kernel_keys) == names
    made = module.with_programs()
    assert list(made.kernel_keys) == names and made.with_programs() is made
    first, *others = made.functions
    renamed = made.with_functions((*others, first))
    assert list(renamed.kernel_keys) == names
    kernel = made.prim_funcs[0]
    public = made.map_prim_funcs(lambda f: replace(f, public=f is kernel))
    assert list(public.kernel_keys) == []
    changed = made.map_prim_funcs(lambda f: replace(f, public=True) if f is kernel else f)
    assert list(changed.kernel_keys) == names[1:]


def damage(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    ("spoil", "every"), [(damage, 1), (damage, 2), (damage, 3), (Path.unlink, 2), (Path.unlink, 3)]
)
def test_lost_entries_are_made_again(
    spoil: Callable[[Path], None],
    every: int,
    cold: dict[str, Executable],
    cache: Path,
    tmp_path: Path,
) -> None:
    """Heads, aliases, objects, texts and linked libraries, in any combination."""
    want = cold["symbolic"].export_library(tmp_path / "one.so").read_bytes()
    files = sorted(f for f in (cache / "objects").glob("??/*"))
    assert len(files) > 10
    for file in files[::every]:
        spoil(file)
    again = tk.compile(SYMBOLIC)
    assert again.export_library(tmp_path / "two.so").read_bytes() == want
    assert again.artifacts == cold["symbolic"].artifacts


@pytest.mark.usefixtures("warm")
def test_another_compiler_trusts_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = lambda *rooms: f"another {rooms}"  # noqa: E731
    for module in ("tensorkiln.kernel_cache", "tensorkiln.codegen.llvm.compile"):
        monkeypatch.setattr(f"{module}.source_digest", changed)
    made = tk.compile(SYMBOLIC)
    assert known_in(made.module) == []
    assert sources.source_digest() != sources.source_digest("codegen/llvm")


def test_options_of_the_target_are_part_of_it() -> None:
    for fields in ({"mcpu": "haswell"}, {"mcpu": "x86-64-v4"}):
        target = tk.Target({"kind": "llvm", **fields})
        assert known_in(tk.compile(SYMBOLIC, target).module) == []
        assert known_in(tk.compile(SYMBOLIC, target).module) != []


@pytest.mark.usefixtures("warm")
def test_what_is_not_lowered_is_refused_with_a_warm_cache_too() -> None:
    with pytest.raises(UserError, match="vectorize_loops") as caught:
        tk.compile(NET, tir_pipeline=None)
    assert caught.value.code == "not-lowered"


def _doubled(s: object) -> object:
    """The same program with every serial loop unrolled in its text."""
    if isinstance(s, For) and s.kind == "serial" and str(s.extent) == "2":
        s = replace(s, kind="unrolled")
    return map_stmt(s, lambda e: e, _doubled)  # type: ignore[arg-type]


@pytest.mark.usefixtures("warm")
def test_a_pass_of_the_user_is_run_and_has_no_part_in_keys() -> None:
    """Its result is known by its program only: an edit of the pass changes what is compiled."""
    seen: list[str] = []

    def rewrite(f: PrimFunc) -> PrimFunc:
        seen.append(f.name)
        return replace(f, body=_doubled(f.body))  # type: ignore[arg-type]

    def mine(mod: IRModule) -> IRModule:
        assert known_in(mod) == []
        return mod.map_bodies(rewrite)

    target = tk.Target("native")
    for _ in range(2):
        seen.clear()
        made = tk.compile(NET, target, tir_pipeline=[*tir_passes(target), mine])
        assert seen == [f.name for f in made.module.prim_funcs]
        assert made.module.kernel_keys == {}


@pytest.mark.usefixtures("warm")
def test_pipelines_of_the_user_find_kernels_too() -> None:
    """`compile` hands the cache to `LowerGroups`, whoever made the pass."""
    target = tk.Target("native")
    made = tk.compile(NET, target, relax_pipeline=[lambda mod: mod, *relax_passes(target)])
    assert known_in(made.module) == [f.name for f in made.module.kernels]


@pytest.mark.usefixtures("warm")
def test_instruments_see_bodies() -> None:
    texts: list[str] = []

    class Look(Instrument):
        def after(self, step: Step) -> None:
            assert step.after is not None and known_in(step.after) == []
            texts.append(step.after.script())

    tk.compile(NET, instruments=[Look()])
    assert any("T.unroll" in t or "T.vectorized" in t for t in texts)


@pytest.mark.usefixtures("warm")
def test_the_warm_library_computes() -> None:
    x = np.random.default_rng(3).standard_normal((1, 16, 12, 12)).astype(np.float32)
    y = tk.runtime.Executor(tk.compile(NET).jit(), tk.cpu())["main"](x)
    want = np.asarray(evaluate(NET, {"x": x})[0])
    np.testing.assert_allclose(np.asarray(y), want, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("warm")
def test_no_weights_are_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take as long as writing them; only the text, which nobody reads here, needs it."""
    for module in ("ir.text.print_relax", "codegen.host.weights"):
        monkeypatch.setattr(f"tensorkiln.{module}.digest", lambda a: pytest.fail("hashes weights"))
    executable = tk.compile(NET)
    executable.export_library(tmp_path / "net.so")
    with pytest.raises(BaseException, match="hashes weights"):
        executable.module.script()


@pytest.mark.usefixtures("warm")
def test_other_weights_link_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The linked code holds no weights, so it serves a model that was trained further."""

    def net(seed: int) -> IRModule:
        return graph(lambda g, x: g.linear(x, rand(64, 64, seed=seed)), x=(4, 64))

    one = tk.compile(net(1)).export_library(tmp_path / "one.so").read_bytes()
    monkeypatch.setattr("tensorkiln.link.toolchain.run_tool", lambda *a: pytest.fail(f"runs {a}"))
    two = tk.compile(net(2)).export_library(tmp_path / "two.so").read_bytes()
    assert len(one) == len(two) and one != two

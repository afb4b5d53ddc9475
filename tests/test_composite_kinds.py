"""What a device of a composite brings counts there as it does alone: features of its processor,
hooks of its kind, and its own kind of code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact import Artifact
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.codegen.c_like.c99 import emit_c
from tensorkiln.external import External
from tensorkiln.external.example import C_REFERENCE
from tensorkiln.inspectors.library import inspect_library
from tensorkiln.ir.attrs import NO_ATTRS
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.text.printer import print_function
from tensorkiln.kernels.case import rand
from tensorkiln.passes.of_device import OfDevice
from tensorkiln.pipeline import relax_passes, tir_passes
from tensorkiln.script import from_source
from tensorkiln.target import (
    Target,
    accelerators,
    cpu_target,
    register_target_kind,
    unregister_target_kind,
)
from tensorkiln.transform.tir.insert_barriers import insert_barriers
from tests.transform.graphs import graph

pytestmark = pytest.mark.filterwarnings("ignore:.*is the baseline")

X = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
W = rand(8, 16)
WANT = np.tanh(X.astype(np.float64) @ np.asarray(W.data, np.float64))


def _network() -> IRModule:
    """A product on one device, what follows on the other."""
    return graph(lambda g, x: g.tanh(g.linear(x, W)), x=(4, 8))


def _close(exe: tk.Executable, want: np.ndarray = WANT) -> None:
    np.testing.assert_allclose(np.asarray(exe(X)), want, rtol=1e-5, atol=1e-6)


# -- what the processor must have ------------------------------------------------------------------

ARM = "aarch64-linux-gnu"
V3 = {"kind": "llvm", "mcpu": "x86-64-v3", "target_key": "fast", "operators": ["linear"]}
C3 = {**V3, "kind": "c"}
N1 = {**V3, "mtriple": ARM, "mcpu": "neoverse-n1"}
COMPOSITES: dict[str, tuple[dict[str, object], list[dict[str, object]]]] = {
    "llvm": ({"host": "llvm", "devices": [V3, "llvm"]}, [V3]),
    "c": ({"host": "c", "devices": [C3, "c"]}, [C3]),
    "c beside llvm": ({"host": "llvm", "devices": [C3, "llvm"]}, [C3]),
    "nested": ({"host": "llvm", "devices": [{"devices": [V3, "llvm"]}]}, [V3]),
    "aarch64": ({"host": {"mtriple": ARM}, "devices": [N1, {"mtriple": ARM}]}, [N1]),
    "host": ({"host": {"mcpu": "x86-64-v2"}, "devices": [V3]}, [V3, {"mcpu": "x86-64-v2"}]),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_a_library_requires_what_its_devices_require(name: str, tmp_path: Path) -> None:
    spec, cpus = COMPOSITES[name]
    _requires(tk.compile(_network(), spec), _needs(cpus), tmp_path)


def _needs(cpus: Sequence[dict[str, object]]) -> list[str]:
    """What code for these devices may need, sorted."""
    targets = [Target({**cpu, "target_key": None, "operators": None}) for cpu in cpus]
    assert all(t.required_features for t in targets)
    return sorted({f for t in targets for f in t.required_features})


def _requires(exe: tk.Executable, features: list[str], folder: Path) -> None:
    """That the executable requires the features, and all that is made of it says so: its host code,
    a library, objects to link in, an archive of sources."""
    assert list(exe.cpu_features) == features
    entry = exe.artifacts["entry.c"].text()
    assert all(json.dumps(feature) in entry for feature in features)
    shared = exe.export_library(folder / "net.so")
    assert list(inspect_library(shared).metadata.cpu_features) == features
    listed = json.dumps(features, separators=(",", ":"))
    static = b"".join(exe.export_library(folder / "net.a").read_bytes().split())
    assert f'"cpu_features":{listed}'.encode() in static
    if accelerators(exe.target):  # whose code archives cannot have
        return
    archive = exe.export_model_library_format(folder / "archive")
    (described,) = json.loads((archive / "metadata.json").read_text())["modules"].values()
    assert described["cpu_features"] == features


V2: dict[str, object] = {"kind": "llvm", "mcpu": "x86-64-v2"}
MINE_TOO = {"kind": "mine", "operators": ["linear", "neg"]}
V3_OF_OTHERS = {**V3, "operators": ["exp"]}
HOSTS: dict[str, tuple[dict[str, object], list[dict[str, object]]]] = {
    "host": ({"host": V2, "devices": [MINE_TOO]}, [V2]),
    "first CPU": ({"devices": [MINE_TOO, V2]}, [V2]),
    "nested": ({"host": V2, "devices": [{"devices": [MINE_TOO, "llvm"]}]}, [V2]),
    "alone": ({"kind": "mine", "host": V2}, [V2]),
    "of C": ({"host": {**V2, "kind": "c"}, "devices": [MINE_TOO]}, [V2]),
    "of less": ({"host": "llvm", "devices": [MINE_TOO, V3_OF_OTHERS]}, []),
}


@pytest.mark.parametrize("hook", ["tir_codegen", "relax_codegen"])
@pytest.mark.parametrize("name", HOSTS)
def test_code_of_a_hook_requires_what_its_host_has(
    name: str, hook: str, register: Any, tmp_path: Path
) -> None:
    """The hook of a device is asked about the composite's host, not about this machine."""
    spec, cpus = HOSTS[name]
    mcpus: set[str] = set()

    def programs(target: Target, functions: Sequence[PrimFunc]) -> list[Artifact]:
        mcpus.add(cpu_target(target).mcpu)
        return _generate(target, functions)

    def externals(target: Target) -> list[External]:
        mcpus.add(cpu_target(target).mcpu)
        return [C_REFERENCE]

    register(**{hook: programs if hook == "tir_codegen" else externals})
    exe = tk.compile(graph(lambda g, x: g.neg(g.linear(x, W)), x=(4, 8)), spec)
    assert mcpus == {"x86-64-v2" if cpus else "x86-64"}
    _requires(exe, _needs(cpus), tmp_path)


# Externals that users give are asked about the whole composite, and so may use any of its CPUs.
WHOLE: dict[str, tuple[dict[str, object], list[dict[str, object]]]] = {
    "host": ({"host": V2, "devices": ["opencl"]}, [V2]),
    "CPU": ({"host": "llvm", "devices": [V3_OF_OTHERS, "llvm"]}, [V3]),
    "CPU of C": ({"host": "llvm", "devices": [{**V3_OF_OTHERS, "kind": "c"}, "llvm"]}, [V3]),
    "both": ({"host": V2, "devices": [{"devices": [V3_OF_OTHERS, "opencl"]}]}, [V2, V3]),
    "neither": ({"host": "llvm", "devices": ["opencl"]}, []),
}


@pytest.mark.parametrize("name", WHOLE)
def test_code_of_an_external_requires_what_all_cpus_have(name: str, tmp_path: Path) -> None:
    spec, cpus = WHOLE[name]
    mod = graph(lambda g, x: g.neg(g.linear(x, W)), x=(4, 8))
    exe = tk.compile(mod, spec, externals=[C_REFERENCE])
    assert any(k.kernel_class == "external:c_reference" for k in exe.placement())
    _requires(exe, _needs(cpus), tmp_path)


@pytest.mark.parametrize("gpu", ["opencl", {"kind": "cuda", "arch": "sm_80"}])
def test_a_gpu_beside_a_cpu_requires_what_the_cpu_computes_with(gpu: Any) -> None:
    """Host code that only starts kernels needs nothing; a CPU needs what its kernels use."""
    alone = tk.compile(_network(), {"host": V3_OF_OTHERS | {"operators": None}, "devices": [gpu]})
    assert alone.cpu_features == () and {p.device for p in alone.placement()} < {"opencl", "cuda"}
    beside = tk.compile(_network(), {"host": "llvm", "devices": [V3, gpu]})
    assert {p.device for p in beside.placement()} > {"fast"}
    assert list(beside.cpu_features) == _needs([V3])


# -- kinds of code ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("host", "device"), [("llvm", "c"), ("c", "llvm")])
def test_c_beside_llvm(host: str, device: str, tmp_path: Path) -> None:
    device_spec = {"kind": device, "target_key": "own", "operators": ["linear"]}
    exe = tk.compile(_network(), {"host": host, "devices": [device_spec, {"kind": host}]})
    ends = {a.target_key: a.file_name.rpartition(".")[2] for a in exe.artifacts if a.target_key}
    kinds = {"llvm": {"o", "ll", "s"}, "c": {"c"}}
    assert ends["own"] in kinds[device] and ends[host] in kinds[host]
    _close(exe)
    _close(tk.compile(_network(), exe.target))  # whatever the cache knows by now
    loaded = tk.load(exe.export_library(tmp_path / "mixed.so"))
    np.testing.assert_array_equal(np.asarray(loaded(X)), np.asarray(exe(X)))


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "another triple": ({"mtriple": ARM}, "a program has one machine"),
    "another system": (
        {"kind": "c", "mtriple": "thumbv7em-none-eabi"},
        "a program has one machine",
    ),
    "in memory": ({"kind": "llvmjit"}, "stays in memory"),
    "libraries": ({"libs": ["mkl"]}, "calls libraries"),
    "pools": ({"memory": [{"name": "sram", "size": 4096}]}, "whose pools are divided"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_devices_that_cannot_be_beside_the_host(name: str) -> None:
    device, says = REFUSED[name]
    with pytest.raises(UnsupportedError, match=says) as caught:
        tk.compile(_network(), {"host": "llvm", "devices": ["llvm", device]})
    assert "target.devices[1]" in str(caught.value)


def test_two_machines_are_two_models_of_one_archive(tmp_path: Path) -> None:
    cores = {"m4": "cortex-m4", "m0": "cortex-m0"}
    triples = {"m4": "thumbv7em-none-eabi", "m0": "thumbv6m-none-eabi"}
    executables = {
        name: tk.compile(
            _network(), {"kind": "c", "mtriple": triples[name], "mcpu": cpu}, name=name
        )
        for name, cpu in cores.items()
    }
    folder = tk.export_model_library_format(executables, tmp_path / "both")
    modules = json.loads((folder / "metadata.json").read_text())["modules"]
    assert {n: m["target"]["host"]["mcpu"] for n, m in modules.items()} == cores


# -- hooks of the kind of a device -----------------------------------------------------------------


def _generate(target: Target, functions: Sequence[PrimFunc]) -> list[Artifact]:
    text = emit_c(functions, cpu_target(target), {})
    return [Artifact("mine", "native", "kernels.c", text.encode())]


MINE = {"kind": "mine", "target_key": "own", "operators": ["linear"]}
BESIDE = {"host": "llvm", "devices": [MINE, "llvm"]}
DEEPER = {"host": "llvm", "devices": [{"devices": [MINE, "llvm"]}]}


class _Noted:
    """Passes that note which functions they see."""

    def __init__(self) -> None:
        self.seen: dict[str, list[str]] = {}

    def __call__(self, name: str) -> Any:
        def note(mod: IRModule) -> IRModule:
            self.seen.setdefault(name, []).extend(mod)
            return mod

        return note


@pytest.fixture
def register() -> Iterator[Any]:
    yield lambda **hooks: register_target_kind("mine", "cpu", **hooks)
    unregister_target_kind("mine")
    unregister_target_kind("yours")


@pytest.mark.parametrize("spec", [BESIDE, DEEPER])
def test_passes_of_a_kind_run_on_the_functions_of_its_device(register: Any, spec: Any) -> None:
    noted = _Noted()
    register(
        tir_codegen=_generate,
        relax_pipeline=lambda target, externals: [
            noted("relax"),
            *relax_passes(target, externals),
            noted("lowered"),
        ],
        tir_pipeline=lambda target: [*tir_passes(target), noted("tir")],
        pre_codegen=lambda target: noted("last"),
    )
    exe = tk.compile(_network(), spec)
    assert noted.seen == {
        "relax": ["main_own"],
        "lowered": ["main_own", "linear"],
        "tir": ["linear"],
        "last": ["linear"],
    }
    assert {p.kernel: p.device for p in exe.placement()} == {"linear": "own", "tanh": "llvm"}
    assert [a.target_key for a in exe.artifacts if a.codegen_id == "mine"] == ["own"]
    _close(exe)


def test_a_pass_of_a_kind_changes_its_device_alone(register: Any) -> None:
    """Its products are doubled, whichever pipeline does it; the tanh of the other device is as it
    was, and programs of blocks are lowered by the pipeline of their device."""
    from tensorkiln.ir.expr import binary
    from tensorkiln.ir.stmt import Store
    from tensorkiln.ir.visit import map_stmt

    def doubled(f: PrimFunc) -> PrimFunc:
        def stmt(s: Any) -> Any:
            s = map_stmt(s, lambda e: e, stmt)
            out = isinstance(s, Store) and s.buffer is f.buffers[-1]
            return replace(s, value=binary("mul", s.value, 2.0)) if out else s

        return replace(f, body=stmt(f.body))

    def double(mod: IRModule) -> IRModule:
        return mod.map_prim_funcs(doubled)

    want = np.tanh(2 * np.arctanh(WANT))
    for hooks in (
        {"tir_pipeline": lambda target: [*tir_passes(target), double]},
        {"pre_codegen": lambda target: [double]},
        {"relax_pipeline": lambda target, externals: [*relax_passes(target, externals), double]},
    ):
        register(tir_codegen=_generate, **hooks)
        exe = tk.compile(_network(), BESIDE)
        np.testing.assert_allclose(np.asarray(exe(X)), want, rtol=1e-4, atol=1e-5)
        unregister_target_kind("mine")


def test_externals_of_a_pipeline_are_those_of_the_device(register: Any) -> None:
    """Operators that only the device's pipeline makes fit for an external go to that of the
    device."""

    def renamed(mod: IRModule) -> IRModule:
        functions = []
        for f in mod.functions:
            if isinstance(f, Function):
                bindings = tuple(
                    replace(b, value=replace(b.value, callee="neg")) if b.value.op == "sin" else b
                    for b in f.bindings
                )
                f = replace(f, bindings=bindings)
            functions.append(f)
        return mod.with_functions(tuple(functions))

    register(
        tir_codegen=_generate,
        relax_codegen=lambda target: [C_REFERENCE],
        relax_pipeline=lambda target, externals: [renamed, *relax_passes(target, externals)],
    )
    mod = graph(lambda g, x: g.sin(g.linear(x, W)), x=(4, 8))
    exe = tk.compile(mod, {"host": "llvm", "devices": [{**MINE, "operators": ["sin"]}, "llvm"]})
    classes = {p.kernel_class: p.device for p in exe.placement()}
    assert classes.pop("external:c_reference_own") == "own" and set(classes.values()) == {"llvm"}
    _close(exe, -np.arctanh(WANT))


def test_a_pipeline_of_a_device_without_kernels(register: Any) -> None:
    register(
        relax_codegen=lambda target: [C_REFERENCE],
        relax_pipeline=lambda target, externals: relax_passes(target, externals),
    )
    with pytest.raises(UnsupportedError, match="relax_pipeline of kind 'mine'"):
        tk.compile(_network(), BESIDE)


def test_the_linker_of_a_device(register: Any, tmp_path: Path) -> None:
    def refuse(output: str, files: list[str], options: list[str]) -> None:
        raise UserError("the kind's linker was here")

    register(tir_codegen=_generate, linker=lambda target: refuse)
    with pytest.raises(UserError, match="linker was here"):
        tk.compile(_network(), BESIDE).export_library(tmp_path / "a.so")
    register_target_kind("yours", "cpu", tir_codegen=_generate, linker=lambda target: refuse)
    with pytest.raises(UserError, match="mine, yours of devices all link"):
        tk.compile(_network(), {"host": "llvm", "devices": [MINE, "yours"]})


def test_loops_for_a_hook_are_those_of_the_host(register: Any) -> None:
    """Its kind has no option of processors, such as `strassen`."""
    register(tir_codegen=_generate)
    mod = graph(lambda g, x: g.linear(x, W), x=(4, 8))
    beside, alone = (tk.compile(mod, t) for t in (BESIDE, {"kind": "mine", "host": "llvm"}))
    texts = [print_function(replace(e.module["linear"], attrs=NO_ATTRS)) for e in (beside, alone)]
    assert texts[0] == texts[1] and beside.module["linear"].attrs["target"] == "own"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda mod: mod.with_functions(()), "it removes 'linear'"),
        (
            lambda mod: mod.with_functions((*mod.functions, replace(mod["linear"], name="tanh"))),
            "it adds 'tanh'",
        ),
        (lambda mod: None, "returned NoneType"),
    ],
)
def test_passes_that_lose_functions(register: Any, change: Any, says: str) -> None:
    register(tir_codegen=_generate, pre_codegen=lambda target: change)
    with pytest.raises(UserError, match=says):
        tk.compile(_network(), BESIDE)


def test_what_a_pass_adds_is_of_its_device() -> None:
    mod = tk.compile(_network(), {"host": "llvm", "devices": [V3, "llvm"]}).module
    step = OfDevice(
        "fast", lambda m: m.with_functions((*m.functions, replace(m["linear"], name="b")))
    )
    module_after = step(mod)
    assert module_after["b"].attrs["target"] == "fast" and list(module_after)[:-1] == list(mod)
    assert all(module_after[name] is mod[name] for name in mod)


# -- devices with memory of their own --------------------------------------------------------------

GPUS: list[Any] = [
    {"host": "llvm", "devices": [{"kind": "opencl", "operators": ["softmax", "sum"]}, "llvm"]},
    {"kind": "opencl", "host": "llvm"},
    {"kind": "cuda", "arch": "sm_80", "host": "llvm"},
    {"kind": "webgpu", "host": "llvm"},
]


@pytest.mark.parametrize("spec", GPUS, ids=lambda s: s.get("kind", "composite"))
def test_a_pipeline_without_barriers_is_refused(spec: Any) -> None:
    target = Target(spec)
    mod = graph(lambda g, x: g.softmax(g.linear(x, rand(64, 96)), axis=1), x=(32, 64))
    without = [p for p in tir_passes(target) if p is not insert_barriers]
    with pytest.raises(UserError, match="(softmax|linear)_device") as caught:
        tk.compile(mod, target, tir_pipeline=without)
    assert caught.value.code == "barriers" and "insert_barriers" in caught.value.hint
    exe = tk.compile(mod, target)
    wrapped = [
        (lambda m: insert_barriers(m)) if p is insert_barriers else p for p in tir_passes(target)
    ]
    assert tk.compile(mod, target, tir_pipeline=wrapped).artifacts == exe.artifacts
    again = tk.compile(exe.module, target, relax_pipeline=None, tir_pipeline=None)
    assert again.artifacts == exe.artifacts


# -- targets that functions name -------------------------------------------------------------------

ANNOTATED = """
@tk.script.ir_module
class Module:
    @T.prim_func
    def p(X: T.Buffer((4, 8), "float32"), Y: T.Buffer((4, 8), "float32")):
        T.func_attr({"target": FIRST})
        for i, j in T.grid(4, 8):
            Y[i, j] = X[i, j] + T.float32(1)

    @R.function
    def main(x: R.Tensor((4, 8), "float32")):
        R.func_attr({"target": SECOND})
        y = R.exp(x)
        z = R.call_tir(cls.p, (y,), R.Tensor((4, 8), "float32"))
        return z
"""
V2 = {"kind": "llvm", "mcpu": "x86-64-v2"}
V2_TEXT = str(Target(V2))
KEYED = {**V3, "operators": None}
# FIRST, SECOND, target=, devices of p and main
SPELLINGS: dict[str, tuple[str, str, Any, list[str]]] = {
    "texts": (repr("llvm"), repr(V2_TEXT), None, ["llvm_0", "llvm_1"]),
    "dicts": (repr({"kind": "llvm"}), repr(V2), None, ["llvm_0", "llvm_1"]),
    "T.target": ("T.target('llvm')", f"R.target({V2!r})", None, ["llvm_0", "llvm_1"]),
    "one": (repr(V2_TEXT), repr(V2), None, ["cpu", "cpu"]),
    "with a key": (repr({**KEYED, "operators": []}), repr("llvm"), None, ["fast", "llvm"]),
    "by that key": (repr("fast"), repr(str(Target(KEYED))), None, ["fast", "fast"]),
    "of the target": (
        repr(V2),
        repr(V2_TEXT),
        {"devices": ["llvm", {**V2, "target_key": "b"}]},
        ["b", "b"],
    ),
    "with key and operators": (
        repr(str(Target(V3))),
        repr("llvm"),
        {"host": "llvm", "devices": [V3, "llvm"]},
        ["fast", "llvm"],
    ),
    "with key, not operators": (
        repr({k: v for k, v in V3.items() if k != "operators"}),
        repr("host"),
        {"host": "llvm", "devices": [V3]},
        ["fast", "host"],
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_functions_say_their_targets(name: str) -> None:
    first, second, target, devices = SPELLINGS[name]
    mod = from_source(ANNOTATED.replace("FIRST", first).replace("SECOND", second))
    exe = tk.compile(mod, target)
    device_by_kernel = {p.kernel: p.device for p in exe.placement()}
    assert [device_by_kernel["p"], device_by_kernel["exp"]] == devices
    assert from_source(mod.script()).script() == mod.script()
    np.testing.assert_allclose(
        tk.runtime.Executor(exe)["main"](X).numpy(), np.exp(X) + 1, rtol=1e-6
    )


def test_a_captured_target() -> None:
    target = Target(V2)
    from tensorkiln.script import T

    @T.prim_func
    def p(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")) -> None:
        T.func_attr({"target": target})
        for i in range(4):
            Y[i] = X[i]

    assert p.attrs["target"] == str(target)
    assert tk.compile(p).target == target


@pytest.mark.parametrize("gpu", ["opencl", {"kind": "cuda", "arch": "sm_80"}])
def test_a_program_for_an_accelerator_by_its_text(gpu: Any) -> None:
    text = """
@T.prim_func
def flip(A: T.Buffer((4, 32), "float32"), C: T.Buffer((4, 32), "float32")):
    T.func_attr({"target": TARGET})
    for b in T.thread_binding(4, thread="blockIdx.x"):
        for t in T.thread_binding(32, thread="threadIdx.x"):
            C[b, t] = A[b, 31 - t]
"""
    gpu_target = Target(gpu)
    for target_text in (gpu_target.kind, str(gpu_target), {**gpu_target.to_json(), "host": "llvm"}):
        for target in (None, gpu_target, {"host": "llvm", "devices": [gpu_target, "llvm"]}):
            exe = tk.compile(from_source(text.replace("TARGET", repr(target_text))), target)
            assert [p.device for p in exe.placement()] == [gpu_target.kind]


WRONG: dict[str, tuple[str, str]] = {
    "no target": ("'dsp'", "'dsp' is no target, nor the key of one that another function names"),
    "typo": ("'opencll'", "did you mean 'opencl'"),
    "field": ("{'kind': 'llvm', 'mcpuu': 'x'}", "mcpuu"),
    "text": ('\'{"kind": "llvm", "mcpuu": "x"}\'', "mcpuu"),
    "no arguments": ("T.target()", "expected T.target"),
    "unknown argument": ("T.target('llvm', device='x')", "expected T.target"),
    "number": ("3", "a target's text"),
    "twice": ("{'kind': 'llvm', 'kind': 'c'}", "given twice"),
}


@pytest.mark.parametrize("name", WRONG)
def test_annotations_that_are_no_targets(name: str) -> None:
    text, says = WRONG[name]
    source = ANNOTATED.replace("FIRST", text).replace("SECOND", "'host'")
    with pytest.raises(UserError) as caught:
        tk.compile(from_source(source))
    assert says in str(caught.value)


def test_a_text_that_several_devices_have() -> None:
    twins = [{**V2, "target_key": "left"}, {**V2, "target_key": "right"}]
    source = ANNOTATED.replace("FIRST", repr(V2)).replace("SECOND", "'left'")
    with pytest.raises(UserError, match="several devices are .*: left, right"):
        tk.compile(from_source(source), {"host": "llvm", "devices": twins})

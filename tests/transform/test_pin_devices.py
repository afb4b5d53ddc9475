"""pin_devices: devices in the types of values, from their text to results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.ir.equal import first_difference
from tensorkiln.pipeline import minimal_relax_passes, relax_passes
from tensorkiln.script import from_source
from tensorkiln.target import Target, with_host
from tensorkiln.transform.relax.assign_devices import AssignDevices
from tensorkiln.transform.relax.infer_types import infer_types
from tensorkiln.transform.relax.pin_devices import PinDevices
from tests.transform.graphs import check_text, check_unchanged

pytestmark = pytest.mark.filterwarnings("ignore:.*is the baseline")

DSP = {"kind": "llvm", "mcpu": "haswell", "target_key": "dsp", "operators": ["linear"]}
GENERAL = {"kind": "llvm", "target_key": "general"}
GPU = {"kind": "opencl", "target_key": "gpu", "operators": ["softmax"]}


def _target(*devices: Any) -> Target:
    return with_host(Target({"kind": "composite", "host": "llvm", "devices": list(devices)}))


def _module(body: str, result: str = "", x: str = "") -> Any:
    """A function of `body`, where `T(key)` is a tensor's type on a device."""
    text = f"""
@R.function
def main(x: T({x}), w: R.Tensor((8, 8), "float32")){f" -> {result}" if result else ""}:
{body}
"""
    for key in ("dsp", "dps", "gpu", "general", "host", "other"):
        text = text.replace(f"T({key})", f'R.Tensor((4, 8), "float32", device="{key}")')
    return from_source(text.replace("T()", 'R.Tensor((4, 8), "float32")'))


def test_pinned_operators_become_parts() -> None:
    check_text(
        PinDevices(_target(DSP, GENERAL, GPU)),
        """
        @R.function
        def main(
            x: R.Tensor((4, 8), "float32", device="gpu"), w: R.Tensor((8, 8), "float32")
        ) -> R.Tensor((4, 8), "float32", device="gpu"):
            y: R.Tensor((4, 8), "float32", device="dsp") = R.exp(x)
            z: R.Tensor((4, 8), "float32", device="dsp") = R.linear(y, w)
            t = R.relu(z)
            u: R.Tensor((4, 8), "float32", device="host") = R.exp(t)
            return u
        """,
        """
        @tk.script.ir_module
        class Module:
            @R.function(private=True)
            def main_dsp(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 8), "float32")):
                R.func_attr({"part": True, "target": "dsp"})
                y = R.exp(x)
                z = R.linear(y, w)
                return z

            @R.function(private=True)
            def main_host(t: R.Tensor((4, 8), "float32")):
                R.func_attr({"part": True, "target": "host"})
                u = R.exp(t)
                return u

            @R.function
            def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 8), "float32")):
                R.func_attr({"param_devices": ("gpu", "host"), "result_devices": ("gpu",)})
                z = cls.main_dsp(x, w)
                t = R.relu(z)
                u = cls.main_host(t)
                u_1: R.Tensor((4, 8), "float32") = u
                return u_1
        """,
    )


def test_without_devices_in_types_nothing_changes() -> None:
    mod = _module("    return R.exp(x)".replace("return ", "y = ") + "\n    return y")
    check_unchanged(PinDevices(_target(DSP)), mod)
    check_unchanged(PinDevices(Target("llvm")), mod)


@pytest.mark.parametrize(
    ("body", "expected_places"),
    [
        ("    y: T(dsp) = R.exp(x)\n    return y", [("y", "dsp", "its result names 'dsp'")]),
        ("    y: T(host) = R.linear(x, w)\n    return y", [("y", "host", "names 'host'")]),
        (  # a value says more than what the device's operators do
            "    y: T(general) = R.linear(x, w)\n    z = R.linear(y, w)\n    return z",
            [("y", "general", "names 'general'"), ("z", "dsp", "operators name linear")],
        ),
        (  # and more than the function's attribute
            "    R.func_attr({'target': 'dsp'})\n    y: T(gpu) = R.softmax(x, axis=1)\n"
            "    z = R.exp(y)\n    return z",
            [("y", "gpu", "names 'gpu'"), ("z", "dsp", "function's target is 'dsp'")],
        ),
        (  # a view, too
            '    y: R.Tensor((32,), "float32", device="dsp") = R.reshape(x, shape=(32,))\n'
            "    return y",
            [("y", "dsp", "names 'dsp'")],
        ),
    ],
)
def test_where_pinned_operators_go(body: str, expected_places: list[tuple[str, str, str]]) -> None:
    target = _target(DSP, GENERAL, GPU)
    mod = AssignDevices(target)(PinDevices(target)(infer_types(_module(body))))
    rows = mod["main"].attrs["placed"]
    assert [row[:2] for row in rows] == [row[:2] for row in expected_places]
    assert all(words in row[2] for row, (*_, words) in zip(rows, expected_places, strict=True))


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("    y: T(dsp) = R.exp(x)\n    return y", ""),
        ("    y: T(dsp) = R.exp(x)\n    return y", "T(host)"),
        ("    y = R.exp(x)\n    return y, x", "R.Tuple(T(gpu), T())"),
        ("    return x", "T(gpu)"),
        ('    y: R.Tensor((4, 8), "float32", layout="A+1 B", device="q\\"") = R.exp(x)', ""),
    ],
)
def test_types_with_devices_print_and_parse(body: str, result: str) -> None:
    mod = _module(body if "return" in body else f"{body}\n    return y", result, x="gpu")
    again = from_source(mod.script())
    assert 'device="gpu"' in mod.script() and again.script() == mod.script()
    assert first_difference(mod, again) is None
    other_module = _module("    return x", x="other")
    assert "device 'other' != 'gpu'" in str(
        first_difference(other_module, _module("    return x", x="gpu"))
    )


BRANCH = """    if R.greater(R.max(x, axes=(0, 1)), R.const(0.0, "float32")):
        y: T(dsp) = R.exp(x)
    else:
        y: T(dsp) = R.relu(x)
    return y"""


@pytest.mark.parametrize(
    ("body", "target", "error", "says"),
    [
        (
            "    y: T(dps) = R.exp(x)\n    return y",
            [DSP],
            UserError,
            r"main\(y\): .*'dps'(.|\n)*'dsp'",
        ),
        ("    y: T(other) = R.exp(x)\n    return y", [DSP], UserError, "are host, dsp"),
        ("    y: T(dsp) = R.exp(x)\n    return y", [], UserError, "'dsp': the target has none"),
        ("    y: T(host) = R.exp(x)\n    return y", [], UserError, "the target has none"),
        (
            "    y: T(dsp) = x\n    z = R.exp(y)\n    return z",
            [DSP],
            UnsupportedError,
            "no operator",
        ),
        (BRANCH, [DSP], UnsupportedError, "a value that no operator makes"),
        (
            "    y: T(dsp), z = R.exp(x)\n    return y",
            [DSP],
            UserError,
            "invalid syntax|not a statement|only single",
        ),
        (
            "    y: R.Tensor(ndim=2, device='dsp') = R.exp(x)\n    return y",
            [DSP],
            UserError,
            "shape",
        ),
        (
            "    y: R.Tensor((4, 8), 'float32', device='') = x\n    return y",
            [DSP],
            UserError,
            "expec",
        ),
        (
            '    y: R.Tensor((4, 8), "float64", device="gpu") = R.cast(x, dtype="float64")\n'
            "    return y",
            [GPU],
            UnsupportedError,
            "device 'gpu' has no kernel for cast of float64.*it does not have float64",
        ),
    ],
)
def test_what_is_refused(body: str, target: list[Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        tk.compile(_module(body), _target(*target) if target else "llvm")


def test_fused_groups_are_not_pinned_in_types() -> None:
    body = "    R.func_attr({'primitive': True})\n    y: T(dsp) = R.exp(x)\n    return y"
    with pytest.raises(UnsupportedError, match="devices in the types of a fused group"):
        PinDevices(_target(DSP))(_module(body))


@pytest.mark.parametrize("place", ["x", "result"])
def test_places_of_unknown_devices_are_refused(place: str) -> None:
    place_argument = {"x": "dps"} if place == "x" else {"result": "T(dps)"}
    with pytest.raises(UserError, match=r"no device 'dps'.*\n.*'dsp'") as error:
        tk.compile(_module("    return x", **place_argument), _target(DSP))
    assert error.value.code == "unknown-device"


def test_a_device_in_a_type_is_not_forgotten_without_the_pass() -> None:
    mod = _module("    y: T(dsp) = R.exp(x)\n    return y")
    target = _target(DSP)
    for passes in (relax_passes(target), minimal_relax_passes(target)):
        other_passes = [p for p in passes if not isinstance(p, PinDevices)]
        exe = tk.compile(mod, target, relax_pipeline=passes)
        assert [p.device for p in exe.placement()] == ["dsp"]
        with pytest.raises(UserError, match="its types name devices: run pin_devices"):
            tk.compile(mod, target, relax_pipeline=other_passes[:1])


def test_two_cpus() -> None:
    """CPUs share the host's memory, so a parameter of one is any tensor there."""
    body = "    y: T(general) = R.linear(x, w)\n    z: T(dsp) = R.exp(y)\n    return z"
    exe = tk.compile(_module(body, "T(host)", x="dsp"), _target(DSP, GENERAL))
    assert {p.device for p in exe.placement()} == {"general", "dsp"} and not exe.copies()
    x, w = (np.random.default_rng(n).normal(size=(n, 8)).astype("float32") for n in (4, 8))
    np.testing.assert_allclose(exe(x, w), np.exp(x @ w), rtol=1e-5)

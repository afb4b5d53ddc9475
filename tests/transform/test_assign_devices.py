"""assign_devices: which device computes an operator, why, and the functions that parts become."""

from __future__ import annotations

from typing import Any

import pytest

from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.ops.verify import verify
from tensorkiln.script import from_source
from tensorkiln.target import Target, with_host
from tensorkiln.transform.relax.assign_devices import AssignDevices
from tests.transform.graphs import check_text, check_unchanged

HASWELL = {"kind": "llvm", "mcpu": "haswell"}
DSP = {**HASWELL, "target_key": "dsp", "operators": ["linear", "softmax"]}
GENERAL = {"kind": "llvm", "target_key": "general"}


def _target(*devices: Any) -> Target:
    return with_host(Target({"kind": "composite", "host": "llvm", "devices": list(devices)}))


BEFORE = """
@R.function
def main(x: R.Tensor((2, 8), "float32"), w: R.Tensor((8, 8), "float32")):
    {attrs}
    y = R.linear(x, w)
    z = R.softmax(y, axis=1)
    t = R.exp(z)
    u = R.linear(t, w)
    return u
"""


def test_operators_that_a_device_names_become_its_parts() -> None:
    check_text(
        AssignDevices(_target(DSP)),
        BEFORE.format(attrs=""),
        """
        @tk.script.ir_module
        class Module:
            @R.function(private=True)
            def main_dsp(x: R.Tensor((2, 8), "float32"), w: R.Tensor((8, 8), "float32")):
                R.func_attr({"part": True, "target": "dsp"})
                y = R.linear(x, w, span="y")
                z = R.softmax(y, axis=1, span="z")
                return z

            @R.function(private=True)
            def main_dsp_2(t: R.Tensor((2, 8), "float32"), w: R.Tensor((8, 8), "float32")):
                R.func_attr({"part": True, "target": "dsp"})
                u = R.linear(t, w, span="u")
                return u

            @R.function
            def main(x: R.Tensor((2, 8), "float32"), w: R.Tensor((8, 8), "float32")):
                R.func_attr(
                    {
                        "placed": (
                            ("y", "dsp", "its operators name linear"),
                            ("z", "dsp", "its operators name softmax"),
                            ("t", "host", "no device names exp"),
                            ("u", "dsp", "its operators name linear"),
                        )
                    }
                )
                z = cls.main_dsp(x, w)
                t = R.exp(z, span="t")
                u = cls.main_dsp_2(t, w)
                return u
        """,
    )


def test_a_target_without_devices_changes_nothing() -> None:
    check_unchanged(AssignDevices(Target(HASWELL)), from_source(BEFORE.format(attrs="")))


def _placed(attrs: str, *devices: Any) -> list[tuple[str, str]]:
    mod = AssignDevices(_target(*devices))(from_source(BEFORE.format(attrs=attrs)))
    return [row[:2] for row in mod["main"].attrs.get("placed", ())]


@pytest.mark.parametrize(
    ("attrs", "devices", "devices_expected"),
    [
        ("", [DSP, GENERAL], ["dsp", "dsp", "general", "dsp"]),
        ("", [GENERAL, DSP], ["dsp", "dsp", "general", "dsp"]),
        ("", [{**DSP, "target_key": "b"}, DSP], ["b", "b", "", "b"]),
        ("", [HASWELL, HASWELL], ["llvm_0"] * 4),
        ("R.func_attr({'target': 'general'})", [DSP, GENERAL], ["general"] * 4),
        ("R.func_attr({'target': 'dsp'})", [GENERAL, DSP], ["dsp"] * 4),  # a pin is obeyed
        ("R.func_attr({'target': 'llvm_1'})", [HASWELL, HASWELL], ["llvm_1"] * 4),
        ("R.func_attr({'target': 'host'})", [DSP, GENERAL], [""] * 4),
        ("R.func_attr({'target': 'llvm'})", [DSP], [""] * 4),  # as the host is
        ("", [{"devices": [DSP, GENERAL]}], ["dsp", "dsp", "general", "dsp"]),
    ],
)
def test_where_operators_go(attrs: str, devices: list[Any], devices_expected: list[str]) -> None:
    placed = [key or "host" for key in devices_expected]
    assert _placed(attrs, *devices) == list(zip("yztu", placed, strict=False))


@pytest.mark.parametrize("pin", ["R.func_attr({'target': 'gpu'})", ""])
def test_what_a_device_lacks_is_refused_if_it_is_pinned(pin: str) -> None:
    """All such operators at once; what is not pinned goes elsewhere."""
    gpu = {"kind": "opencl", "target_key": "gpu"}
    mod = from_source(BEFORE.format(attrs=pin).replace("float32", "float64"))
    if not pin:
        rows = AssignDevices(_target(gpu))(mod)["main"].attrs["placed"]
        assert {row[1:] for row in rows} == {("host", "gpu: no kernel")}
        return
    with pytest.raises(UnsupportedError, match="it does not have float64") as error:
        AssignDevices(_target(gpu))(mod)
    assert [issue.op for issue in error.value.issues] == ["linear", "softmax", "exp", "linear"]
    double = {**gpu, "supports_float64": True}
    rows = AssignDevices(_target(double))(mod)["main"].attrs["placed"]
    assert {row[1] for row in rows} == {"gpu"}


def test_views_stay_with_their_operand() -> None:
    mod = from_source("""
@R.function
def main(x: R.Tensor((2, 8), "float32"), w: R.Tensor((8, 8), "float32")):
    y = R.linear(x, w)
    z = R.reshape(y, shape=(16,))
    t = R.exp(z)
    return t
""")
    rows = AssignDevices(_target(DSP))(mod)["main"].attrs["placed"]
    assert [row[:2] for row in rows] == [("y", "dsp"), ("z", "dsp"), ("t", "host")]


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("lives", ["gpu", "host"])
def test_views_of_a_parameter_stay_in_its_memory(lives: str, views: int) -> None:
    """Nothing goes to the host and back for them."""
    lines, value = [f"R.func_attr({{'param_devices': ('{lives}',)}})"], "x"
    for k in range(views):
        lines.append(f"y{k} = R.reshape({value}, shape=({2**k}, {16 // 2**k}))")
        value = f"y{k}"
    body = "\n    ".join([*lines, f"z = R.exp({value})", "return z"])
    mod = from_source(f"@R.function\ndef main(x: R.Tensor((2, 8), 'float32')):\n    {body}\n")
    gpu = _target({"kind": "cuda", "target_key": "gpu"})
    rows = AssignDevices(gpu)(mod)["main"].attrs["placed"]
    assert [row[1] for row in rows] == [lives] * views + ["gpu"]


def test_independent_parts_of_one_level_are_one_function() -> None:
    """Three branches of linear, exp, linear: two parts, not six; values that both read."""
    branches = "".join(
        f"""
    a{i} = R.linear(x, w)
    b{i} = R.exp(a{i})
    c{i} = R.linear(b{i}, w)"""
        for i in range(3)
    )
    mod = from_source(f"""
@R.function
def main(x: R.Tensor((2, 8), "float32"), w: R.Tensor((8, 8), "float32")):{branches}
    d = R.add(c0, c1)
    e = R.add(d, c2)
    f = R.add(e, a0)
    return f
""")
    assigned_module = AssignDevices(_target(DSP))(mod)
    parts = [f for f in assigned_module.functions if f.name.startswith("main_dsp")]
    assert [len(f.bindings) for f in parts] == [3, 3]
    assert [len(f.result.fields) for f in parts] == [3, 3]


@pytest.mark.parametrize(
    ("attrs", "devices", "error", "says"),
    [
        ("", [{**DSP, "operators": ["linaer"]}], UserError, "device 'dsp' computes 'linaer'.*"),
        ("R.func_attr({'target': 'dps'})", [DSP], UserError, "'dsp'"),
        ("R.func_attr({'target': 'cuda'})", [DSP], UnsupportedError, "a device by its key: dsp"),
    ],
)
def test_what_is_refused(attrs: str, devices: list[Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        _placed(attrs, *devices)


def test_a_part_that_cuts_a_constant_is_given_a_tensor_of_that_size() -> None:
    """As of positions in a language model whose indices the host checks: nothing else in the part
    has the number of rows."""
    mod = from_source(
        """
@R.function
def main(
    table: R.Tensor((30, 4), "float32"),
    rows: R.Tensor((16, 4), "float32"),
    ids: R.Tensor(("n",), "int64"),
):
    checked = R.bounds_check(ids, extent=30, negative=False)
    first = R.slice(rows, begin=(0, 0), strides=(1, 1), shape=(n, 4))
    x = R.take(table, checked, axis=0)
    return R.add(x, first)
"""
    )
    divided = AssignDevices(_target(GENERAL))(mod)
    verify(divided)
    params = {f.name: [p.name for p in f.params] for f in divided.graphs}
    assert params["main_general"] == ["rows", "ids"]
    assert params["main_general_2"] == ["table", "checked", "first"]

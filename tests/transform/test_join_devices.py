"""join_devices: parts of devices are put back where they are called."""

from __future__ import annotations

from tensorkiln.script import from_source
from tensorkiln.target import Target
from tensorkiln.transform.relax.join_devices import JoinDevices
from tests.transform.graphs import check_text, check_unchanged

CPUS = Target({"host": "llvm", "devices": [{"kind": "llvm", "target_key": "dsp"}, "opencl"]})
KERNEL = """
@tk.script.ir_module
class Module:
    @T.prim_func(private=True)
    def k(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in range(8):
            y[i] = x[i]
"""


def test_parts_with_one_and_with_several_results() -> None:
    check_text(
        JoinDevices(CPUS),
        KERNEL
        + """
    @R.function(private=True)
    def main_dsp(x: R.Tensor((8,), "float32")):
        R.func_attr({"part": True, "target": "dsp"})
        a = cls.k(x)
        b = cls.k(a)
        return (b, a)

    @R.function(private=True)
    def main_dsp_2(x: R.Tensor((8,), "float32")):
        R.func_attr({"part": True, "target": "dsp"})
        a = cls.k(x)
        return a

    @R.function
    def main(x: R.Tensor((8,), "float32")):
        R.func_attr({"placed": (("a", "dsp", "so"),)})
        both = cls.main_dsp(x)
        b = both[0]
        a = both[1]
        c = cls.main_dsp_2(b)
        d = cls.k(c)
        return (d, a)
""",
        KERNEL
        + """
    @R.function
    def main(x: R.Tensor((8,), "float32")):
        R.func_attr({"placed": (("a", "dsp", "so"),)})
        a = cls.k(x)
        b = cls.k(a)
        a_2 = cls.k(b)
        d = cls.k(a_2)
        return (d, a)
""",
    )


def test_without_parts_nothing_changes() -> None:
    mod = from_source(
        KERNEL
        + """
    @R.function
    def main(x: R.Tensor((8,), "float32")):
        y = cls.k(x)
        return y
"""
    )
    check_unchanged(JoinDevices(CPUS), mod)

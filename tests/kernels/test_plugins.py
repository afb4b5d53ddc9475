"""Kernel families of other packages: the example, and rows that are wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln import ops
from tensorkiln.base.errors import UserError
from tensorkiln.ir.expr import Var
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import RVar, constant, tensor
from tensorkiln.kernels import Family, Layouts, Packed, plugins, table
from tensorkiln.kernels.case import Build
from tensorkiln.kernels.records import (
    Record,
    Records,
    schedule_digest,
    target_text,
    workload_of,
)
from tensorkiln.schedule.choose import fitting, schedule_group
from tests.schedule.groups import groups_of
from tests.transform.graphs import graph

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "kernel_family"
Install = Callable[[str, str], None]


@pytest.fixture
def install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_cache: Callable[[Path], Path]
) -> Iterator[Install]:
    """Leave what pip leaves of a package with one entry point: its module and its dist-info."""
    monkeypatch.setenv("KILN_CACHE_DIR", str(fresh_cache(tmp_path / "cache")))
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    modules = []

    def write(module: str, text: str) -> None:
        name = module.replace("_", "-")
        (site / f"{module}.py").write_text(text)
        modules.append(module)
        info = site / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        points = f"[tensorkiln.kernel_families]\n{module} = {module}:FAMILY\n"
        (info / "entry_points.txt").write_text(points)
        table._families.cache_clear()

    yield write
    table._families.cache_clear()
    for module in modules:
        sys.modules.pop(module, None)


def _softmax(axis: int) -> Build:
    return lambda g, x: g.relu(g.softmax(g.neg(x), axis=axis))


def kinds(mod: IRModule) -> list[str]:
    return [place.kernel_class for place in tk.compile(mod).placement()]


@pytest.mark.parametrize("shape", [(2, 21, 5, 64), (64, 32), (7, 3, 32)])
def test_the_example_is_the_kernel_of_its_operator(
    install: Install, shape: tuple[int, ...]
) -> None:
    axis = 0 if len(shape) == 2 else 1
    mod = graph(_softmax(axis), x=shape)
    before = kinds(mod)
    assert "softmax_columns" not in before
    install("softmax_columns", (EXAMPLE / "softmax_columns.py").read_text())
    assert kinds(mod) == ["softmax_columns", "loops"]
    x = 20 * np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    y = tk.runtime.Executor(tk.compile(mod), tk.cpu())["main"](x).numpy()
    e = np.exp(-x.astype(np.float64) - (-x).max(axis, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(axis, keepdims=True), rtol=1e-5, atol=1e-30)
    target = tk.Target("native")
    for group in groups_of(mod, target):
        schedule_group(group, target, check=True)


def test_its_knobs_and_records(install: Install) -> None:
    text = (EXAMPLE / "softmax_columns.py").read_text()
    install("softmax_columns", text)
    mod, target = graph(_softmax(1), x=(2, 21, 5, 64)), tk.Target("native")
    group = next(g for g in groups_of(mod, target) if g.main.op == "softmax")
    family = next(fitting(group, target))
    workload, _ = workload_of(group.function)
    digest, of = schedule_digest(family), (workload, target_text(target), "softmax_columns")
    records = [Record(*of, digest, (("terms", n),), "ms", 1, 1, 2) for n in (1, 2, 4)]
    x = 20 * np.random.default_rng(0).standard_normal((2, 21, 5, 64)).astype(np.float32)
    plain = np.asarray(tk.compile(mod)(x))
    for record in records:
        tuned = tk.compile(mod, records=Records((record,)))
        assert tuned.placement()[0].tuned == f"terms={record.choices['terms']}"
        np.testing.assert_array_equal(np.asarray(tuned(x)), plain)
    # Another version of the package has another schedule.
    (Path(sys.path[0]) / "softmax_columns.py").write_text(text.replace("4096", "8192"))
    schedule_digest.cache_clear()
    assert schedule_digest(family) != digest
    schedule_digest.cache_clear()


def test_where_it_does_not_fit_others_compute(install: Install) -> None:
    install("softmax_columns", (EXAMPLE / "softmax_columns.py").read_text())
    for mod in (
        graph(_softmax(1), x=(2, 64)),
        graph(_softmax(0), x=(2, 5)),
        graph(_softmax(0), x=(Var("N"), 64)),
    ):
        assert "softmax_columns" not in kinds(mod)


def test_its_kernels_are_not_cached(install: Install) -> None:
    """The cache does not know what they depend on: a new version makes new kernels."""
    mod, text = graph(_softmax(0), x=(64, 32)), (EXAMPLE / "softmax_columns.py").read_text()
    install("softmax_columns", text)
    first = tk.compile(mod).placement()[0].kernel_class
    site = Path(sys.path[0])
    (site / "softmax_columns.py").write_text(text.replace('op_class="softmax_', 'op_class="new_'))
    sys.modules.pop("softmax_columns")
    table._families.cache_clear()
    assert (first, kinds(mod)[0]) == ("softmax_columns", "new_columns")


def test_the_page_quotes_the_example() -> None:
    page = (ROOT / "docs" / "howto" / "add-a-kernel-family.md").read_text()
    example = "".join(file.read_text() for file in EXAMPLE.iterdir() if file.is_file())
    quoted = [line.strip() for line in page.splitlines() if line.startswith("    ")]
    assert len(quoted) > 20 and [line for line in quoted if line not in example] == []
    lines = [len(file.read_text().splitlines()) for file in EXAMPLE.iterdir() if file.is_file()]
    assert f"of {sum(lines)} lines" in page and sum(lines) <= 150


GOOD = {
    "op_class": "'mine'",
    "operators": "('softmax',)",
    "schedule": "'tensorkiln.families.loops.schedule:schedule'",
    "prologue": "lambda call, operand, before: True",
}
WRONG = {
    "raises": ("raise RuntimeError('no licence')", "plugin-failed", "no licence"),
    "missing": ("", "plugin-failed", "FAMILY"),
    "other": ("FAMILY = 3", "bad-family", "is int, expected a Family"),
    "operator": ({"operators": "('sofmax',)"}, "bad-family", "no operator 'sofmax'"),
    "all": ({"operators": "()"}, "bad-family", "expected a tuple of names"),
    "name": ({"op_class": "''"}, "bad-family", "op_class is ''"),
    "reference": ({"schedule": "'nowhere'"}, "bad-family", "expected 'module:function'"),
    "device": ({"devices": "('cpus',)"}, "bad-family", "devices are"),
    "no_function": ({"fits": "True"}, "bad-family", "fits is True, expected a function"),
    "algorithm": ({"algorithm": "1"}, "bad-family", "algorithm is 1"),
    "absent": ({"schedule": "'os:absent'"}, "plugin-failed", "absent"),
    "fails": ({"fits": "lambda call, out, target: 1 // 0"}, "plugin-failed", "division"),
    "answers": ({"fits": "lambda call, out, target: None"}, "bad-family", "NoneType"),
    "schedules": ({"schedule": "'builtins:max'"}, "plugin-failed", "schedule raised TypeError"),
    "prologue": ({"prologue": "lambda *given: 'yes'"}, "bad-family", "returned str"),
    "count": ({"layouts": "lambda *given: Layouts(())"}, "bad-family", "0 layouts for 1 operands"),
    "rank": ({"layouts": "lambda *given: Layouts((Layout.plain(3),))"}, "bad-family", "A B C"),
    "packed": (
        {"layouts": "lambda *given: Layouts((Packed(Layout.plain(2), abs),))"},
        "bad-family",
        "operand 0, which is not constant",
    ),
    "unfit": (
        {"layouts": "lambda *given: Layouts((None,))", "fits": "lambda *given: False"},
        "bad-family",
        "does not fit the call in the layouts",
    ),
    "decomposes": ({"decompose": "lambda b: 5"}, "bad-family", "returned int"),
    "elements": ({"decompose": "lambda b: [5]"}, "bad-family", "returned int"),
    "nothing": ({"decompose": "lambda b: []"}, "bad-family", "no binding defines"),
    "another": (
        {"decompose": "lambda b: [Binding(b.var, call('cast', b.value.args[0], dtype='float16'))]"},
        "bad-family",
        "expected",
    ),
    "rewrites": (
        {
            "algorithm": "Algorithm('softmax', lambda *given: 1, "
            "lambda b, choice, rewriter: call('cast', b.value.args[0], dtype='float16'))"
        },
        "bad-family",
        "expected",
    ),
    "knobs": ({"knobs": "lambda *given: [1]"}, "bad-family", "returned list"),
    "knob": ({"knobs": "lambda *given: (1,)"}, "bad-family", "returned int, expected Knob"),
    "knob_twice": (
        {"knobs": "lambda *given: (Knob('a', (1,), 1, ''), Knob('a', (2,), 2, ''))"},
        "bad-family",
        "two of the same name in a, a",
    ),
    "knob_values": (
        {"knobs": "lambda *given: (Knob('a', (1,), 2, ''),)"},
        "bad-family",
        "untuned is 2",
    ),
    "no_knobs": ({"knobs": "3"}, "bad-family", "knobs is 3, expected a function"),
    "parameters": (
        {"schedule": "'wrong_parameters:made'"},
        "bad-family",
        "other parameters than those of its group",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_rows_name_their_package(install: Install, case: str) -> None:
    text, code, says = WRONG[case]
    if isinstance(text, dict):
        row = ", ".join(f"{k}={v}" for k, v in (GOOD | text).items())
        text = (
            "from tensorkiln.ir.layout import Layout\n"
            "from tensorkiln.ir.relax import Binding\n"
            "from tensorkiln.ir.stmt import PrimFunc, Seq\n"
            "from tensorkiln.kernels import Algorithm, Family, Knob, Layouts, Packed\n"
            "from tensorkiln.ops import call\n"
            "from tensorkiln.schedule.primitives import Schedule\n"
            "def made(group, target, check):\n"
            "    return Schedule(PrimFunc(group.name, group.params[1:], Seq(())))\n"
            f"FAMILY = Family({row})\n"
        )
    install(f"wrong_{case}", text)
    with pytest.raises(UserError) as caught:
        tk.compile(graph(_softmax(0), x=(64, 32)))
    assert caught.value.code == code
    assert f"kernel family 'wrong_{case}' of package wrong-{case.replace('_', '-')}" in str(
        caught.value
    )
    assert says in str(caught.value)


def test_one_operator_may_be_decomposed_into_one(install: Install) -> None:
    text = """
from tensorkiln.ir.relax import Binding
from tensorkiln.kernels import Family
from tensorkiln.ops import call

def into_neg(b):
    return [Binding(b.var, call("neg", b.value.args[0]))]

FAMILY = Family("never", ("softmax",), "os:never", lambda *given: False, decompose=into_neg)
"""
    install("one_for_one", text)
    x = np.float32([[1, -2], [3, 4]])
    y = tk.runtime.Executor(tk.compile(graph(_softmax(0), x=(2, 2))), tk.cpu())["main"](x)
    np.testing.assert_array_equal(y.numpy(), np.maximum(x, 0))


def test_no_package_costs_no_look_at_packages() -> None:
    """Importing importlib.metadata takes a tenth of a compile that finds all kernels cached."""
    text = (
        "import sys; from tensorkiln.kernels import families; import tensorkiln as tk; "
        "families(tk.Target('llvm')); print('importlib.metadata' in sys.modules)"
    )
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("prepare", [lambda w: w[:, 1:], lambda w: w.reshape(4, 16), lambda w: w.T])
def test_prepared_constants_suit_the_call(prepare: Callable[[np.ndarray], np.ndarray]) -> None:
    """What comes of a constant must give the same result, by the operator's type rule."""
    layouts = Layouts((None, Packed(Layout.plain(2), prepare)))
    row = Family("rows", ("linear",), "rows:made", layouts=lambda call, out, target: layouts)
    x, w = RVar("x", tensor((5, 8), "float32")), constant(np.ones((8, 8), "f4"))
    call = ops.call("linear", x, w)
    ask = plugins._checked_layouts(row, "kernel family 'rows'")
    out = ops.infer_tensor(call)
    if prepare(w.array).shape == w.array.shape:
        assert ask(call, out, tk.Target("native")) is layouts
        return
    with pytest.raises(UserError, match="kernel family 'rows'"):
        ask(call, out, tk.Target("native"))

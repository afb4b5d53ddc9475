"""Importers of other packages: the example, domains and operators that nobody has, and packages
that are wrong in every way."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.cli import main as kiln
from tensorkiln.frontend import check_onnx, from_onnx
from tensorkiln.frontend.onnx.plugins import GROUP
from tests.frontend.onnx_backend import compiled
from tests.frontend.onnx_models import model, ours, value

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "onnx_importer"
PAGE = ROOT / "docs" / "howto" / "add-an-onnx-operator.md"
Install = Callable[..., None]
X = np.random.default_rng(5).standard_normal((3, 4, 6)).astype(np.float32)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Leave what pip leaves of a package with these entry points: its module and its dist-info."""
    modules: list[str] = []

    def write(module: str, text: str, points: Mapping[str, str] | None = None) -> None:
        site = tmp_path / f"site{len(modules)}"
        site.mkdir()
        monkeypatch.syspath_prepend(site)
        (site / f"{module}.py").write_text(text)
        modules.append(module)
        info = site / f"{module}-1.0.dist-info"
        info.mkdir()
        package = module.replace("_", "-")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        rows = points or {"com.acme": f"{module}:IMPORTERS"}
        lines = "".join(f"{name} = {place}\n" for name, place in rows.items())
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}")

    yield write
    for module in modules:
        sys.modules.pop(module, None)


@pytest.fixture
def example(install: Install) -> None:
    """The package of the page, as its pyproject.toml says."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    assert project["name"] == "acme-onnx"
    text = (EXAMPLE / "acme_onnx.py").read_text()
    install("acme_onnx", text, project["entry-points"][GROUP])


def gated_model(
    op: str = "Gated", *, outputs: int = 1, version: int = 1, domain: str = "com.acme", **attrs: Any
) -> onnx.ModelProto:
    names = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op, ["x"], names, name="it", domain=domain, **attrs)
    return model([node], [value("x", np.float32, X.shape)], names, domains={domain: version})


def halves(x: np.ndarray, axis: int = -1, slope: float = 1.0) -> np.ndarray:
    a, b = np.split(x.astype(np.float64), 2, axis)
    out: np.ndarray = a / (1 + np.exp(-slope * b))
    return out


# -- the example -----------------------------------------------------------------------------------


@pytest.mark.parametrize("attrs", [{}, {"axis": 1}, {"slope": -2.5}, {"axis": -2, "slope": 0.5}])
def test_the_example_compiles(example: None, attrs: dict[str, Any]) -> None:
    (y,) = compiled(from_onnx(gated_model(**attrs)), {"x": X})
    np.testing.assert_allclose(y, halves(X, **attrs), rtol=1e-5, atol=1e-6)


def test_an_operand_that_may_be_left_out_and_a_symbolic_size(example: None) -> None:
    bias = np.arange(1, 7, dtype=np.float32)
    model_proto = model(
        [helper.make_node("Gated", ["x", "b"], ["y"], domain="com.acme")],
        [value("x", np.float32, ["n", 4, 6])],
        ["y"],
        consts={"b": bias},
        domains={"com.acme": 1},
    )
    (y,) = compiled(from_onnx(model_proto), {"x": X})
    np.testing.assert_allclose(y, halves(X + bias), rtol=1e-5, atol=1e-6)


def test_the_commands_read_the_same_table(
    example: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(gated_model(), path)
    assert tk.check(path) == ()
    assert kiln(["check", str(path)]) == 0
    assert kiln(["compile", str(path), "-o", str(tmp_path / "net.so"), "--quiet"]) == 0
    onnx.save(gated_model(axis=0), path)
    assert kiln(["check", str(path)]) == 1
    assert "axis 0 has no halves" in capsys.readouterr().out


def test_the_page_quotes_the_example() -> None:
    page = PAGE.read_text()
    files = [file for file in EXAMPLE.iterdir() if file.is_file()]
    example = "".join(file.read_text() for file in files)
    quoted = [line.strip() for line in page.splitlines() if line.startswith("    ")]
    assert len(quoted) > 15 and [line for line in quoted if line not in example] == []
    lines = len((EXAMPLE / "acme_onnx.py").read_text().splitlines())
    assert f"{lines} lines" in page and lines <= 30


# -- who imports what ------------------------------------------------------------------------------

FUNCTION = helper.make_function(
    "com.acme",
    "Gated",
    ["x"],
    ["y"],
    [helper.make_node("Neg", ["x"], ["y"])],
    [helper.make_opsetid("", 17)],
)


def test_functions_of_the_model_come_first(example: None) -> None:
    model_proto = gated_model()
    model_proto.functions.append(FUNCTION)
    (y,) = ours(from_onnx(model_proto), {"x": X})
    np.testing.assert_array_equal(y, -X)


VERSIONS = """
def first(g, x): return g.emit("neg", x)
def third(g, x): return g.emit("abs", x)
IMPORTERS = {"Of": {1: first, 3: third}, "Later": {2: third}}
"""


@pytest.mark.parametrize(("version", "expected"), [(1, -X), (2, -X), (3, abs(X)), (9, abs(X))])
def test_the_version_in_force(install: Install, version: int, expected: np.ndarray) -> None:
    install("of_versions", VERSIONS)
    (y,) = ours(from_onnx(gated_model("Of", version=version)), {"x": X})
    np.testing.assert_array_equal(y, expected)


def test_an_operator_newer_than_the_model(install: Install) -> None:
    install("of_versions", VERSIONS)
    (issue,) = check_onnx(gated_model("Later"))
    assert (issue.kind, issue.node) == ("opset", "it")
    assert "appears in opset 2, the model declares opset 1" in issue.message


def test_names_of_onnx_are_no_others_in_a_domain(install: Install) -> None:
    """com.acme.Cast takes no narrow types, and com.acme.If no branches, because ONNX's do."""
    text = "def f(g, x): return g.emit('neg', x)\nIMPORTERS = {'If': {1: f}, 'Cast': {1: f}}"
    install("same_names", text)
    (y,) = ours(from_onnx(gated_model("If")), {"x": X})
    np.testing.assert_array_equal(y, -X)
    node = helper.make_node("Cast", ["x"], ["y"], name="it", domain="com.acme")
    narrow = [value("x", TensorProto.INT4, [3])]
    (issue,) = check_onnx(model([node], narrow, ["y"], domains={"com.acme": 1}, opset=21))
    assert (issue.kind, issue.op) == ("dtype", "Cast")


SPELLINGS = {
    "plain": ("", "a: int, b: float, c: str, d: tuple[int, ...], e: tuple[float, ...]"),
    "text": (
        "from __future__ import annotations\n",
        "a: int, b: float, c: str, d: tuple[int, ...], e: tuple[float, ...]",
    ),
    "named": (
        "from tensorkiln.frontend.onnx.dispatch import Float, Floats, Int, Ints, Str\n",
        "a: Int, b: Float, c: Str, d: Ints, e: Floats",
    ),
    "named_text": (
        "from __future__ import annotations\n",
        "a: Int, b: Float, c: Str, d: Ints, e: Floats",
    ),
}


@pytest.mark.parametrize("case", SPELLINGS)
def test_annotations_of_attributes(install: Install, case: str) -> None:
    head, parameters = SPELLINGS[case]
    text = (
        f"{head}\ndef f(g, x, *, {parameters}, left: int | None = None):\n"
        "    assert (a, b, c, d, e, left) == (3, 0.5, 'text', (1, 2), (0.25,), None)\n"
        "    return g.emit('neg', x)\nIMPORTERS = {'Typed': {1: f}}\n"
    )
    install(f"spelled_{case}", text)
    attributes: dict[str, Any] = {"a": 3, "b": 0.5, "c": "text", "d": [1, 2], "e": [0.25]}
    assert check_onnx(gated_model("Typed", **attributes)) == ()
    (issue,) = check_onnx(gated_model("Typed", **{**attributes, "a": 0.5}))
    assert issue.kind == "malformed" and "'a' has type FLOAT, expected INT" in issue.message
    (issue,) = check_onnx(gated_model("Typed", **attributes, f=1))
    assert issue.kind == "attribute" and "attribute 'f' is not supported" in issue.message


# -- what nobody has -------------------------------------------------------------------------------


def test_a_domain_that_nobody_has() -> None:
    (issue,) = check_onnx(gated_model())
    assert (issue.kind, issue.node, issue.op) == ("operator", "it", "Gated")
    assert issue.message == "the operator's domain 'com.acme' is not supported"
    assert (
        issue.hint == f"a package adds importers with an entry point 'com.acme' of group {GROUP!r}"
    )


def test_a_domain_that_is_nearly_one(example: None) -> None:
    (issue,) = check_onnx(gated_model(domain="com.acmee"))
    assert issue.hint.startswith("did you mean 'com.acme'? a package adds importers")


def test_an_operator_that_nobody_has(example: None) -> None:
    (issue,) = check_onnx(gated_model("Gate"))
    assert (issue.kind, issue.message) == ("operator", "the operator is not supported")
    assert "'Gated'" in issue.hint
    (issue,) = check_onnx(gated_model("Relu"))
    assert issue.hint == "package acme-onnx imports Gated of 'com.acme'"


@pytest.mark.parametrize("domain", ["os", "com", "com.acme.more", "acme_onnx:IMPORTERS", "..", "/"])
def test_only_the_package_of_the_domain_is_loaded(example: None, domain: str) -> None:
    (issue,) = check_onnx(gated_model(domain=domain))
    assert issue.kind == "operator" and "acme_onnx" not in sys.modules
    assert check_onnx(gated_model()) == () and "acme_onnx" in sys.modules


def test_domains_of_onnx_have_no_such_hint() -> None:
    (issue,) = check_onnx(gated_model("Frob", domain="ai.onnx.preview"))
    assert GROUP not in issue.hint


def test_no_look_at_packages_without_need(tmp_path: Path) -> None:
    """Importing importlib.metadata takes 30 ms, and a package's module what it likes."""
    onnx.save(gated_model("Frob", domain="com.acme"), tmp_path / "other.onnx")
    relu = helper.make_node("Relu", ["x"], ["y"])
    onnx.save(model([relu], [value("x", np.float32, [2])], ["y"]), tmp_path / "plain.onnx")
    text = (
        "import sys; import tensorkiln.base.entry_points as e; seen = []; own = e._names_group\n"
        "e._names_group = lambda *a: seen.append(a) or own(*a)\n"
        "from tensorkiln.frontend import check_onnx\n"
        "check_onnx(sys.argv[1]); print(bool(seen), 'importlib.metadata' in sys.modules)\n"
    )
    for name, expected_output in (("plain", "False False\n"), ("other", "True")):
        command = [sys.executable, "-c", text, str(tmp_path / f"{name}.onnx")]
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert process.stdout.startswith(expected_output)


# -- packages that are wrong -----------------------------------------------------------------------

F = "def f(g, x): return g.emit('neg', x)\n"
# What a module holds, the error's code, and words of its message.
WRONG: dict[str, tuple[str, str, str]] = {
    "raises": ("raise RuntimeError('no licence')", "plugin-failed", "RuntimeError: no licence"),
    "missing": ("", "plugin-failed", "has no attribute 'IMPORTERS'"),
    "imports": ("import nowhere_at_all", "plugin-failed", "ModuleNotFoundError"),
    "number": ("IMPORTERS = 3", "bad-importer", "it is int, expected {operator"),
    "none": ("IMPORTERS = None", "bad-importer", "it is NoneType, expected {operator"),
    "function": (F + "IMPORTERS = f", "bad-importer", "it is function, expected {operator"),
    "empty": ("IMPORTERS = {}", "bad-importer", "it is empty, expected {operator"),
    "operator": (F + "IMPORTERS = {'com.acme.F': {1: f}}", "bad-importer", "'com.acme.F'"),
    "no_text": (F + "IMPORTERS = {1: {1: f}}", "bad-importer", "an operator is named 1"),
    "unversioned": (F + "IMPORTERS = {'It': f}", "bad-importer", "It is function, expected"),
    "no_version": ("IMPORTERS = {'It': {}}", "bad-importer", "It is empty, expected"),
    "zero": (F + "IMPORTERS = {'It': {0: f}}", "bad-importer", "version 0, expected a number"),
    "true": (F + "IMPORTERS = {'It': {True: f}}", "bad-importer", "version True, expected"),
    "text": (F + "IMPORTERS = {'It': {'1': f}}", "bad-importer", "version '1', expected"),
    "another": (F + "IMPORTERS = {'It': {1: f}, 'Other': 0}", "bad-importer", "Other is int"),
    "no_function": ("IMPORTERS = {'It': {1: 'f'}}", "bad-importer", "is str, expected a function"),
    "builtin": ("IMPORTERS = {'It': {1: iter}}", "bad-importer", "has no signature"),
}
# An importer's parameters or body.
PARAMETERS: dict[str, tuple[str, str]] = {
    "nothing": ("", "expected a first parameter g"),
    "operands": ("*xs", "expected a first parameter g"),
    "keyword": ("*, g", "expected a first parameter g"),
    "any": ("g, x, **attrs", "takes any attribute (**attrs)"),
    "positional": ("g, x, alpha: float = 1.0", "takes 'alpha' as an operand, expected an attrib"),
    "bare": ("g, x, *, alpha=1.0", "annotates attribute 'alpha' with ''"),
    "type": ("g, x, *, alpha: list = ()", "annotates attribute 'alpha' with 'list'"),
    "union": ("g, x, *, alpha: int | float = 0", "annotates attribute 'alpha' with 'int | float'"),
}
BODIES: dict[str, tuple[str, str, str]] = {
    "fails": ("return 1 // 0", "plugin-failed", "ZeroDivisionError"),
    "asserts": ("assert x is None", "plugin-failed", "AssertionError"),
    "calls": ("return g.emit(x)", "plugin-failed", "raised"),
    "absent": ("return None", "bad-importer", "returned NoneType, expected the value of each"),
    "float": ("return 0.5", "bad-importer", "returned float"),
    "array": ("import numpy as np; return np.ones(3)", "bad-importer", "returned ndarray"),
    "name": ("return 'y'", "bad-importer", "returned str"),
    "within": ("return [x, None]", "bad-importer", "returned NoneType"),
    "generator": ("yield x", "bad-importer", "returned generator"),
    "type_of": ("return g.type(x)", "bad-importer", "returned TensorType"),
    "few": ("return ()", "bad-importer", "returned 0 value(s) for 1 outputs"),
    "unknown": ("return g.emit('ngative', x)", "bad-importer", "no operator 'ngative'"),
    "attribute": ("return g.emit('neg', x, k=1)", "bad-importer", "has no attribute 'k'"),
    "lacking": ("return g.emit('softmax_of', x)", "bad-importer", "no operator"),
    "foreign": (
        "from tensorkiln.ir.relax import RVar, tensor; return RVar('v', tensor((2,), 'float32'))",
        "bad-importer",
        "a value of another graph",
    ),
}
CASES = {
    **WRONG,
    **{
        f"with_{k}": (f"def f({p}): pass\nIMPORTERS = {{'It': {{1: f}}}}", "bad-importer", says)
        for k, (p, says) in PARAMETERS.items()
    },
    **{
        f"in_{k}": (f"def f(g, x):\n    {body}\nIMPORTERS = {{'It': {{1: f}}}}", code, says)
        for k, (body, code, says) in BODIES.items()
    },
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_packages_are_named(install: Install, case: str) -> None:
    text, code, says = CASES[case]
    install(f"wrong_{case}", text)
    named = f"ONNX importers 'com.acme' of package wrong-{case.replace('_', '-')}"
    for call in (from_onnx, check_onnx, tk.check):
        with pytest.raises(UserError) as caught:
            call(gated_model("It"))
        assert caught.value.code == code, caught.value
        assert named in str(caught.value) and says in str(caught.value)
        sys.modules.pop(f"wrong_{case}", None)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ai.onnx", "the domain is ONNX's own"),
        ("ai.onnx.ml", "the domain is ONNX's own"),
        ("ai.onnx.preview.training", "the domain is ONNX's own"),
        ("com acme", "expected a domain such as 'com.acme'"),
        ("com.äcme", "expected a domain such as 'com.acme'"),
    ],
)
def test_domains_that_no_package_can_have(install: Install, name: str, says: str) -> None:
    """Also where the model uses another domain: nobody would say so otherwise."""
    install("claims", "IMPORTERS = 3", {name: "claims:IMPORTERS"})
    for domain in ("com.acme", "ai.onnx.preview"):
        with pytest.raises(UserError) as caught:
            from_onnx(gated_model(domain=domain))
        assert caught.value.code == "bad-importer"
        assert f"ONNX importers {name!r} of package claims: {says}" in str(caught.value)


def test_a_domain_of_two_packages(install: Install, example: None) -> None:
    install("acme_again", "raise RuntimeError('never loaded')")
    with pytest.raises(UserError, match="of packages acme-again and acme-onnx") as caught:
        from_onnx(gated_model())
    assert caught.value.code == "name-clash" and "'com.acme'" in str(caught.value)


def test_two_outputs(install: Install) -> None:
    """Too few values for outputs that are read; those that nothing reads need none."""
    text = "def f(g, x): return [g.emit('neg', x)]\nIMPORTERS = {'It': {1: f}}"
    install("one_value", text)
    with pytest.raises(UserError, match=r"of package one-value: It returned 1 value.*2 outputs"):
        from_onnx(gated_model("It", outputs=2))
    model_proto = gated_model("It", outputs=2)
    del model_proto.graph.output[1]
    (y,) = ours(from_onnx(model_proto), {"x": X})
    np.testing.assert_array_equal(y, -X)


def test_what_ends_a_process_passes(install: Install) -> None:
    install("stops", "def f(g, x): raise KeyboardInterrupt\nIMPORTERS = {'It': {1: f}}")
    with pytest.raises(KeyboardInterrupt) as caught:
        from_onnx(gated_model("It"))
    assert any("of package stops: It" in note for note in caught.value.__notes__)


def test_operands_that_do_not_fit_are_an_issue(install: Install) -> None:
    """Of the node, beside those of others; the importer is named."""
    text = "def f(g, x): return g.emit('matmul', x, g.const([[1]], 'float32'))\n"
    install("fits_not", text + "IMPORTERS = {'It': {1: f}}")
    model_proto = gated_model("It")
    model_proto.graph.node.append(helper.make_node("Frob", ["x"], ["z"], name="other"))
    issues = check_onnx(model_proto)
    assert [i.node for i in issues] == ["it", "other"]
    assert "ONNX importers 'com.acme' of package fits-not: It: " in issues[0].message


def test_refusals_of_an_importer_stay_as_they_are(install: Install) -> None:
    text = (
        "from tensorkiln.frontend.graph.issues import malformed, unsupported\n"
        "def f(g, x, *, bad: int = 0):\n"
        "    raise (malformed if bad else unsupported)('so it is', 'do otherwise')\n"
        "IMPORTERS = {'It': {1: f}}\n"
    )
    install("refuses", text)
    for bad, kind in ((0, "attribute"), (1, "malformed")):
        (issue,) = check_onnx(gated_model("It", bad=bad))
        assert (issue.kind, issue.message, issue.hint) == (kind, "so it is", "do otherwise")

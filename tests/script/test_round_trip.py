"""Every pass of the automatic pipelines leaves a module whose text is the module: read back it is
equal, and the last one compiles to the same bytes.

`make test` takes a few modules; `make roundtrip` the seventeen networks and 500 generated modules.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import tensorkiln as tk
from tensorkiln.artifact.metadata import ParamInfo
from tensorkiln.base.errors import InternalError, UnsupportedError, UserError
from tensorkiln.frontend import from_onnx
from tensorkiln.ir.attrs import NO_ATTRS, Attrs
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.dtype import FLOAT32, DType
from tensorkiln.ir.expr import IntImm, Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Function, RVar, TensorType, Tuple, constant
from tensorkiln.ir.stmt import For, PrimFunc, Store
from tensorkiln.passes import pass_name
from tensorkiln.passes.instruments import require_round_trip
from tensorkiln.pipeline import relax_passes, tir_passes
from tensorkiln.script import from_source
from tests.script.generate_outer import real_outers
from tests.script.generate_runnable import runnable_programs
from tests.script.round_trip import check_round_trip, reread
from tests.transform.test_random_graphs import modules
from tests.verification.test_planted import residual
from tests.zoo.light import NAMES as LIGHT

TORCH = ("mlp", "resnet18", "resnet50", "mobilenetv2", "convnext_t", "vit_b16", "bert", "gpt2")
QUICK = ("mlp", "residual")
ALL_MODELS = (*TORCH, *(f"light_{name}" for name in LIGHT))
# kind of module -> how it is generated, how many in `make test`, in `make roundtrip`; how many
# draws it takes at most, since what the compiler refuses does not count.
GENERATED: dict[str, tuple[Any, int, int]] = {
    "graphs": (modules(), 10, 200),
    "tensor programs": (runnable_programs(), 8, 150),
    "outer functions": (real_outers(), 8, 150),
}
DRAWS = 3


def load(name: str) -> IRModule:
    """A network of the zoo, or a ResNet-18 in small."""
    if name == "residual":
        return residual()
    pytest.importorskip("onnx")
    if name.startswith("light_"):
        from tests.zoo.light import light_path

        return from_onnx(light_path(name.removeprefix("light_")))
    pytest.importorskip("torch")
    from tests.zoo.export import model_path

    return from_onnx(model_path(name))


def test_there_are_seventeen_and_five_hundred() -> None:
    assert len(set(ALL_MODELS)) == 17
    assert sum(full for _, _, full in GENERATED.values()) >= 500


def check_model(name: str) -> None:
    changed = check_round_trip(load(name))
    passes = [*relax_passes(tk.Target("native")), *tir_passes(tk.Target("native"))]
    assert set(changed) <= set(map(pass_name, passes))
    assert {"fuse_ops", "lower_groups", "plan_memory", "partial_graph_aot"} <= set(changed)
    assert "vectorize_loops" in changed


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_model(name: str) -> None:
    check_model(name)


@pytest.mark.roundtrip
@pytest.mark.parametrize("name", ALL_MODELS)
def test_all_models(name: str) -> None:
    check_model(name)


def refused_alike(mod: IRModule, error: UserError | UnsupportedError) -> None:
    """What cannot be compiled cannot be compiled from its text, for as many reasons: or, where only
    passes made a fault plain, such as an index that is a number now, not after these."""
    with pytest.raises(type(error)) as caught:
        done = tk.compile(reread(mod)).module
        tk.compile(done, relax_pipeline=None, tir_pipeline=None)
    assert caught.value.code == error.code
    assert len(getattr(caught.value, "issues", ())) == len(getattr(error, "issues", ()))


def check_generated(kind: str, wanted: int) -> None:
    strategy = GENERATED[kind][0]
    done = refused = 0

    # Not shrunk: every step would compile. The text of the module is in the message.
    @settings(
        max_examples=DRAWS * wanted,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def each(mod: IRModule) -> None:
        nonlocal done, refused
        if done == wanted:
            return
        try:
            check_round_trip(mod)
            done += 1
        except InternalError as error:
            raise AssertionError(mod.script()) from error
        except (UserError, UnsupportedError) as error:
            refused_alike(mod, error)
            refused += 1

    each()
    print(f"{kind}: {done} came back, {refused} were refused alike")
    assert done == wanted


@pytest.mark.parametrize("kind", GENERATED)
def test_generated(kind: str) -> None:
    check_generated(kind, GENERATED[kind][1])


@pytest.mark.roundtrip
@pytest.mark.parametrize("kind", GENERATED)
def test_five_hundred_generated(kind: str) -> None:
    check_generated(kind, GENERATED[kind][2])


def test_the_check_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass whose result the text does not tell is found, by its name."""
    from tests.transform.graphs import graph

    mod = graph(lambda g, x: g.tanh(g.mul(x, 2.0)), x=(4,))
    real = tk.script.from_source

    def forgetful(text: str, *rest: Any, **named: Any) -> IRModule:
        return real(text.replace("R.tanh", "R.neg"), *rest, **named)

    monkeypatch.setattr(tk.script, "from_source", forgetful)
    with pytest.raises(InternalError, match="its text reads back differently: .*'tanh' != 'neg'"):
        check_round_trip(mod)


def test_text_that_is_not_read_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no module that is refused."""

    def refuses(*args: Any, **named: Any) -> IRModule:
        raise UserError("not this text")

    monkeypatch.setattr(tk.script, "from_source", refuses)
    with pytest.raises(InternalError, match="its text is not read back: not this text"):
        check_round_trip(real_module())


def real_module() -> IRModule:
    n, x = Var("n"), Var("x")
    v = RVar("x", TensorType((n, x), DType("float32")))
    y = RVar("x", v.type)
    f = Function("main", (v,), (Binding(y, Call("tanh", (v,))),), y, Attrs.of(outer=True))
    return IRModule((f,))


def test_names_are_those_of_the_text() -> None:
    """Names that text must tell apart, or spell otherwise: the product has those of the text."""
    check_round_trip(real_module())
    entry = next(a for a in tk.compile(real_module()).artifacts if a.file_name == "entry.c")
    assert "float32 [n, x_1]" in entry.content.decode()

    n, other = Var("n"), Var("n")
    a, b = Buffer("in", FLOAT32, (n, other)), Buffer("in", FLOAT32, (n, other))
    i, j = Var("i"), Var("i")
    copy = Store(b, (i, j), Load(a, (i, j)))
    rows = For(i, IntImm(0), n, "serial", For(j, IntImm(0), other, "serial", copy))
    kernel = PrimFunc("copy", (a, b), rows, public=True)
    check_round_trip(IRModule((kernel,)))
    header = next(a for a in tk.compile(IRModule((kernel,))).artifacts if a.file_name == "model.h")
    assert "int64_t n, int64_t n_1" in " ".join(header.content.decode().split())


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_equal_constants(size: int, outer: bool, shared: bool) -> None:
    """One array or several: text does not tell, nor does the product."""
    x = RVar("x", TensorType((IntImm(size),), FLOAT32))
    three = np.full(size, 3, "f4")
    arrays = [three, three if shared else three.copy(), np.arange(size, dtype="f4")]
    fields = tuple(constant(a) for a in (*arrays, arrays[1]))
    f = Function("main", (x,), (), Tuple((x, *fields)), Attrs.of(outer=True) if outer else NO_ATTRS)
    check_round_trip(IRModule((f,)))


def test_a_model_keeps_its_names_of_sizes() -> None:
    """An input and a dimension of one name: text tells them apart, callers read the model's."""
    pytest.importorskip("onnx")
    from onnx.helper import make_node

    from tests.frontend.onnx_models import model, value

    made = model([make_node("Relu", ["n"], ["y"])], [value("n", np.float32, ["n", 3])], ["y"])
    mod = from_onnx(made)
    check_round_trip(mod)
    for one in (mod, reread(mod)):
        (f,) = tk.compile(one).functions
        assert f.info.inputs == (ParamInfo("n", "float32", ("n", 3)),)


def test_a_declared_type_with_symbols_of_an_inner_body() -> None:
    """`q` is known when the inner function runs; each type that mentions it has its own."""
    mod = from_source(
        """
@tk.script.ir_module
class Module:
    @R.function(attrs={"outer": True})
    def main(m: R.Object) -> R.Object:
        @R.function
        def a() -> R.Callable((), R.Tensor(("q", 2), "float32")):
            @R.function
            def b() -> R.Tensor(("q", 2), "float32"):
                c = R.match_cast(m, R.Tensor(("q", 2), "float32"))
                return c
            return b
        return a
"""
    )
    require_round_trip(mod, "input")
    with pytest.raises(UserError, match="not of the declared type"):
        declared = 'R.Callable((), R.Tensor(("q", 2)'
        from_source(mod.script().replace(declared, declared.replace("2", "3")))

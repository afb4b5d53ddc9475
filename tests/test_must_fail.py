"""Programs that must fail: those of pipelines and executors, and the count of all areas.

Each asserts the error's class, the place and the hint. At a call the place is the function with its
argument or value, and the hint is what was expected or what to do, in one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.ir.module import IRModule
from tensorkiln.kernels.case import rand
from tensorkiln.passes import Instrument, PrintAfter
from tensorkiln.runtime import Executor
from tensorkiln.script import from_source
from tests.ir import (
    test_verify,
    test_verify_effects,
    test_verify_outer,
    test_verify_planned,
)
from tests.schedule import test_blocks_must_fail, test_primitives_must_fail
from tests.script import test_graph_errors, test_script_errors
from tests.transform.graphs import graph

MODULE = graph(lambda g, x: g.tanh(g.mul(x, rand(64))), x=(64,))


def answers_nothing(mod: IRModule) -> Any:
    return None


def looks_up(mod: IRModule) -> IRModule:
    raise KeyError("nothing")


def turns_around(mod: IRModule) -> IRModule:
    """Values are used before they are bound."""
    return mod.map_graphs(lambda f: replace(f, bindings=tuple(reversed(f.bindings))))


def drops_all(mod: IRModule) -> IRModule:
    return mod.with_functions(())


class Same:
    def __call__(self, mod: IRModule) -> IRModule:
        return mod


# arguments of compile; code; the place; the hint
PIPELINE: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "relax name": ({"relax_pipeline": "minimul"}, "unknown-pipeline", "relax_pipeline", "minimal"),
    "tir name": ({"tir_pipeline": "autoo"}, "unknown-pipeline", "tir_pipeline", "'auto'"),
    "number": ({"relax_pipeline": 3}, "bad-pass", "relax_pipeline: pass 0", "is a function"),
    "name in a list": ({"tir_pipeline": ["auto"]}, "bad-pass", "tir_pipeline: pass 0", "alone"),
    "class": ({"relax_pipeline": [Same]}, "bad-pass", "relax_pipeline: pass 0", "Same(...)"),
    "None": ({"relax_pipeline": answers_nothing}, "bad-pass", "relax_pipeline: answers", "return"),
    "raises": ({"relax_pipeline": looks_up}, "pass-failed", "relax_pipeline: pass 1", "before.py"),
    "raises in tir": ({"tir_pipeline": looks_up}, "pass-failed", "'looks_up'", "reproduce.py"),
    "breaks": ({"relax_pipeline": turns_around}, "malformed-ir", "main.bindings[0]", "before.py"),
    "nothing run": ({"relax_pipeline": None}, "not-lowered", "main: tanh = tanh", '"auto"'),
    "no tir": ({"tir_pipeline": None}, "not-lowered", "mul_tanh: there are blocks", "lower_blocks"),
    "drops all": ({"relax_pipeline": drops_all}, "nothing-to-compile", "compile", "public"),
    "no instrument": ({"instruments": [3]}, "bad-instrument", "instruments[0]", "Instrument is"),
    "a class": ({"instruments": [Instrument]}, "bad-instrument", "instruments[0]", "to subclass"),
    "print": ({"instruments": [PrintAfter("fuse_op")]}, "unknown-pass", "instruments", "fuse_ops"),
    "target": ({"target": "lvm"}, "unknown-kind", "target", "'llvm'"),
}


@pytest.mark.parametrize("name", PIPELINE)
def test_pipeline(name: str) -> None:
    arguments, code, place, hint = PIPELINE[name]
    with pytest.raises(UserError) as caught:
        tk.compile(MODULE, **arguments)
    error = caught.value
    assert error.code == code
    assert place in f"{error.where}: {error.message}"
    assert hint in f"{error.message} {error.hint}" and error.hint


SCRIPT = """
@ir_module
class M:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
        return R.neg(x)

    @R.function
    def pick(o: R.Object) -> R.Tensor((4,), "float32"):
        y = R.match_cast(o, R.Tensor((4,), "float32"))
        return y

    @R.function
    def call(
        f: R.Callable((R.Tensor((), "float32"),), R.Tensor((), "float32")),
        x: R.Tensor((), "float32"),
    ) -> R.Tensor((), "float32"):
        y = f(x)
        return y

    @R.function
    def unknown(x: R.Tensor((), "float32")) -> R.Object:
        y: R.Object = R.call_packed("must_fail.nobody", x)
        return y

    @R.function
    def endless(o: R.Object) -> R.Object:
        y: R.Object = M.endless(o)
        return y

    @R.function
    def text(s: R.String, n: R.Shape(2)) -> R.String:
        t: R.Object = R.call_packed("must_fail.nobody", n)
        return s
"""


def z(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


Use = Callable[[Executor], object]
# what is done; class; code; the place; what was expected, or what to do
EXECUTOR: dict[str, tuple[Use, type, str, str, str]] = {
    "function": (lambda e: e["mian"], LookupError, "no-function", "'mian'", "mean 'main'"),
    "few": (lambda e: e["main"](), TypeError, "argument-count", "main:", "expected 1 input (x"),
    "many": (lambda e: e["main"](z(2, 4), 1), TypeError, "argument-count", "main:", "expected 1"),
    "name": (lambda e: e["main"](y=z(2, 4)), TypeError, "unknown-input", "'y'", "it has x"),
    "rank": (lambda e: e["main"](z(4)), ValueError, "rank-mismatch", "input 'x'", "2 dimensions"),
    "shape": (lambda e: e["main"](z(2, 5)), ValueError, "shape-mismatch", "'x'", "expected 4"),
    "dtype": (
        lambda e: e["main"](np.zeros((2, 4))), TypeError, "dtype-mismatch", "main: input 'x'",
        "must be float32",
    ),
    "kind": (lambda e: e["main"]({1: 2}), TypeError, "argument-kind", "input 'x'", "DLPack"),
    "output": (
        lambda e: e["main"](z(2, 4), out=z(3, 4)), ValueError, "shape-mismatch",
        "main: output 'output0'", "expected 2",
    ),
    "cast": (lambda e: e["pick"](z(5)), ValueError, "shape-mismatch", "value of y", "expected 4"),
    "cast of text": (
        lambda e: e["pick"]("no"), TypeError, "argument-kind", "pick: the value of y",
        "must be float32 [4]",
    ),
    "closure": (
        lambda e: e["call"](z(), z()), TypeError, "argument-kind", "argument 'f'",
        "must be a function",
    ),
    "packed": (
        lambda e: e["unknown"](z()), LookupError, "no-function", "in unknown, at y",
        'register_function("must_fail.nobody", f)',
    ),
    "endless": (
        lambda e: e["endless"](z()), RecursionError, "call-depth", "[in endless]",
        "a while_loop needs no stack",
    ),
    "string": (
        lambda e: e["text"](3, (1, 2)), TypeError, "argument-kind", "argument 's'",
        "must be a string",
    ),
    "sizes": (
        lambda e: e["text"]("a", (1, 2, 3)), ValueError, "rank-mismatch", "argument 'n'",
        "a shape of 2",
    ),
    "no executor": (
        lambda e: e.module["main"](z(2, 4)), LookupError, "needs-executor", "'main'",
        'Executor(lib, tk.cpu())["main"]',
    ),
    "invoke": (lambda e: e.invoke("main"), UserError, "no-inputs", "main", 'set_input("main"'),
    "outputs": (lambda e: e.get_outputs("main"), UserError, "no-outputs", "main", "invoke("),
    "input": (lambda e: e.set_input("main", z=1), TypeError, "unknown-input", "'z'", "it has x"),
}  # fmt: skip


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    run = Executor(tk.compile(from_source(SCRIPT)).jit(), tk.cpu())
    yield run
    np.testing.assert_array_equal(run["main"](z(2, 4) + 1).numpy(), -z(2, 4) - 1)
    run.module.close()
    with pytest.raises(UserError, match="is closed") as caught:
        run["main"](z(2, 4))
    assert caught.value.code == "closed" and "load_module" in caught.value.hint


@pytest.mark.parametrize("name", EXECUTOR)
def test_executor(executor: Executor, name: str) -> None:
    use, kind, code, place, hint = EXECUTOR[name]
    with pytest.raises(UserError) as caught:
        use(executor)
    assert isinstance(caught.value, kind)
    assert caught.value.code == code
    assert place in str(caught.value)
    assert hint in str(caught.value)


def test_the_corpus_is_large_and_covers_every_area() -> None:
    """Rows of the tables whose tests assert class, place and hint; those without a hint of their
    own do not count."""
    scripts = [
        row
        for table in (
            test_script_errors.WRONG_TIR,
            test_script_errors.WRONG_BLOCKS,
            test_script_errors.WRONG_GRAPH,
            test_graph_errors.WRONG,
        )
        for row in table
        if row[1] and row[-1]
    ]
    counts = {
        "script": len(scripts),
        "verifier": sum(
            len(table)
            for table in (
                *test_verify.TABLES,
                test_verify_outer.WRONG,
                test_verify_effects.WRONG,
                test_verify_planned.FORM,
                test_verify_planned.CALLS,
            )
        ),
        "schedule": len(test_primitives_must_fail.ROWS) + len(test_blocks_must_fail.ROWS),
        "pipeline": len(PIPELINE),
        "executor": len(EXECUTOR),
    }
    print(counts)
    assert min(counts.values()) >= 8, counts
    assert sum(counts.values()) >= 80, counts
    assert sum(n for area, n in counts.items() if area != "verifier") >= 80, counts

"""Kernels of several results: which of them are used for what, and where they are called."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.pipeline import minimal_relax_passes
from tensorkiln.runtime import Executor
from tensorkiln.script import from_source

# name -> results of the kernel: shape and dtype as in the script, and what NumPy says of x
KERNELS = {
    "one": [("(8,)", "float32")],
    "two": [("(8,)", "float32"), ("(2, 4)", "int32")],
    "three": [("(8,)", "int8"), ("(4,)", "float64"), ("(1, 2, 4)", "float32")],
    "sized": [('("n",)', "float32"), ('("n",)', "bool")],
    "four": [("(32,)", "float32"), ("(16,)", "float32"), ("(32,)", "float32"), ("()", "uint8")],
}
USES = ("unused", "returned", "operand", "both", "twice", "kernel")


def values(name: str, x: np.ndarray) -> list[np.ndarray]:
    """Results of a kernel: result k holds x[i mod len(x)] * (k + 1), cast."""
    out = []
    for k, (shape, dtype) in enumerate(KERNELS[name]):
        extents = (len(x),) if "n" in shape else eval(shape)
        count = int(np.prod(extents, dtype=int))
        flat = np.resize(x, count) * np.float32(k + 1)
        out.append(flat.astype(dtype).reshape(extents))
    return out


def kernel(name: str) -> str:
    results = KERNELS[name]
    size = '("n",)' if name == "sized" else "(8,)"
    params = [f'X: T.Buffer({size}, "float32")']
    lines = []
    for k, (shape, dtype) in enumerate(results):
        params.append(f'Y{k}: T.Buffer({shape}, "{dtype}")')
        extents = ["n"] if "n" in shape else [str(d) for d in eval(shape)]
        subscript = ", ".join(f"i{d}" for d in range(len(extents)))
        flat = "0"
        for d, extent in enumerate(extents):
            flat = f"({flat}) * {extent} + i{d}" if d else f"i{d}"
        value = f'T.Cast("{dtype}", X[({flat}) % {"n" if name == "sized" else 8}] * {k + 1}.0)'
        pad = "        "
        for d, extent in enumerate(extents):
            lines.append(f"{pad}for i{d} in range({extent}):")
            pad += "    "
        lines.append(f"{pad}Y{k}[{subscript or '()'}] = {value}")
    head = f"    @T.prim_func(private=True)\n    def {name}({', '.join(params)}):\n"
    return head + "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Case:
    """A graph function that calls a kernel and uses its results."""

    name: str
    kernel: str
    uses: tuple[str, ...]
    where: str  # graph: straight on; branch, closure: in a part of an outer function

    def text(self) -> str:
        size = '("n",)' if self.kernel == "sized" else "(8,)"
        types = [f'R.Tensor({s.replace(chr(34), "")}, "{d}")' for s, d in KERNELS[self.kernel]]
        whole = types[0] if len(types) == 1 else f"({', '.join(types)})"
        body, results = [f"r = R.call_tir(Module.{self.kernel}, [x], {whole})"], []
        for k, use in enumerate(self.uses):
            item = f"r[{k}]" if len(types) > 1 else "r"
            if use == "unused":
                continue
            body.append(f"a{k} = {item}")
            if use in ("returned", "both", "twice"):
                results.append(f"a{k}")
            if use in ("operand", "both"):
                body.append(f"b{k} = R.where(R.equal(a{k}, a{k}), a{k}, a{k})")
                results.append(f"b{k}")
            if use == "twice":
                body += [f"c{k} = {item}", f"d{k} = R.concat(a{k}, c{k}, axis=0)"]
                results.append(f"d{k}")
            if use == "kernel":
                body.append(
                    f'e{k} = R.reshape(R.cast(a{k}, dtype="float32"), shape=({self.count(k)},))'
                )
                n = self.count(k)
                types = f'R.Tensor(({n},), "float32"), R.Tensor((1,), "int64")'
                body.append(f"f{k} = R.call_tir(Module.copy_{n}, [e{k}], ({types}))")
                body += [f"g{k} = f{k}[1]", f"h{k} = f{k}[0]"]
                results += [f"h{k}", f"g{k}"]
        results.append("y")
        body.append("y = R.add(x, x)")
        answer = f"({', '.join(results)})" if len(results) > 1 else results[0]
        head = f'    @R.function\n    def {self.name}(x: R.Tensor({size}, "float32")'
        if self.where == "graph":
            lines = [*body, f"return {answer}"]
            return head + "):\n" + "".join(f"        {line}\n" for line in lines)
        lines = [*(f"    {line}" for line in body), f"    out = {answer}"]
        lines = ["if c:", *lines, "else:", *lines, "return out"]
        return (
            head + ', c: R.Tensor((), "bool")):\n' + "".join(f"        {line}\n" for line in lines)
        )

    def count(self, k: int) -> str:
        shape = KERNELS[self.kernel][k][0]
        return "n" if "n" in shape else str(int(np.prod(eval(shape), dtype=int)))

    def expected(self, x: np.ndarray) -> list[np.ndarray]:
        out = []
        for use, value in zip(self.uses, values(self.kernel, x), strict=True):
            if use != "unused" and use not in ("operand", "kernel"):
                out.append(value)
            if use in ("operand", "both"):
                out.append(value)
            if use == "twice":
                out.append(np.concatenate([value, value]))
            if use == "kernel":
                flat = value.astype("float32").reshape(-1)
                out += [flat, np.array([len(flat)])]
        return [*out, x + x]


def cases() -> Iterator[Case]:
    number = itertools.count()
    for name, results in KERNELS.items():
        count = len(results)
        choices = list(itertools.product(USES, repeat=count))
        if len(choices) > 40:  # each use at each place, beside different others
            choices = [
                tuple(USES[(j * (k + 1) + k) % len(USES)] for k in range(count))
                for j in range(len(USES))
            ] + choices[:: len(choices) // 24]
        for uses in dict.fromkeys(choices):
            shapes = [s for s, _ in results]
            if any(u == "twice" and s == "()" for u, s in zip(uses, shapes, strict=True)):
                continue  # nothing to concatenate along
            k = next(number)
            yield Case(f"f{k}", name, uses, "branch" if k % 3 == 2 else "graph")


def module(chosen: list[Case]) -> str:
    sizes = sorted({c.count(k) for c in chosen for k, u in enumerate(c.uses) if u == "kernel"})
    copies = "".join(
        f"    @T.prim_func(private=True)\n"
        f'    def copy_{n}(X: T.Buffer(({chr(34) + n + chr(34) if n == "n" else n},), "float32"), '
        f'Y: T.Buffer(({n},), "float32"), N: T.Buffer((1,), "int64")):\n'
        f"        N[0] = {n}\n"
        f"        for i in range({n}):\n"
        f"            Y[i] = X[i]\n"
        for n in sizes
    )
    head = "import tensorkiln as tk\nfrom tensorkiln.script import R, T\n\n"
    head += "@tk.script.ir_module\nclass Module:\n"
    return head + "".join(map(kernel, KERNELS)) + copies + "".join(c.text() for c in chosen)


@pytest.mark.parametrize("pipeline", ["auto", "minimal"])
def test_every_use_of_every_result(pipeline: str) -> None:
    chosen = list(cases())
    target = tk.Target("llvm")
    passes = "auto" if pipeline == "auto" else minimal_relax_passes(target)
    mod = from_source(module(chosen))
    run = Executor(tk.compile(mod, target, relax_pipeline=passes).jit())
    x = np.arange(8, dtype="float32")  # a cast saturates, NumPy's of -2 to uint8 does not
    for c in chosen:
        for flag in [()] if c.where == "graph" else [(np.array(True),), (np.array(False),)]:
            results = run[c.name](x, *flag)
            results = list(results) if isinstance(results, tuple) else [results]
            want = c.expected(x)
            assert len(results) == len(want), c
            for a, b in zip(results, want, strict=True):
                assert np.asarray(a).dtype == b.dtype and np.asarray(a).shape == b.shape, c
                np.testing.assert_array_equal(np.asarray(a), b, err_msg=str(c))

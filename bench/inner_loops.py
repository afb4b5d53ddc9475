"""`python -m bench.inner_loops MODEL.onnx TARGET [DIM=N ...]`: what each kernel's main loop is made
of on a target, which need not be this machine: a tag, JSON, or a processor such as `x86-64-v3`."""

from __future__ import annotations

import argparse
from pathlib import Path

import tensorkiln as tk
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.measure.inner_loops import InnerLoop, inner_loops_of


def main_loop(loops: list[InnerLoop]) -> InnerLoop | None:
    """The innermost loop with the most multiply-adds; None where no loop has one."""
    busy = [x for x in loops if x.multiply_adds]
    return max(busy, key=lambda x: x.multiply_adds, default=None)


def table(funcs: list[PrimFunc], counted: list[list[InnerLoop]]) -> str:
    """Aligned text, one line per kernel that multiplies; the stack column counts all its loops."""
    lines = [
        f"{'kernel':44} {'class':18} {'instrs':>6} {'fma':>5} {'share':>5} {'loads':>5} "
        f"{'stores':>6} {'bcast':>5} {'stack':>5}"
    ]
    for f, loops in zip(funcs, counted, strict=True):
        x = main_loop(loops)
        if x is None:
            continue
        stack = sum(loop.spills + loop.reloads for loop in loops)
        lines.append(
            f"{f.name[:44]:44} {f.op_class:18} {x.instructions:6} {x.multiply_adds:5} "
            f"{x.share:5.0%} {x.loads:5} {x.stores:6} {x.broadcasts:5} {stack:5}"
        )
    return "\n".join(lines)


def target_of(text: str) -> tk.Target:
    """A target as the command line spells it; a bare processor is one of x86-64."""
    return (
        tk.Target({"kind": "llvm", "mcpu": text}) if text.startswith("x86-64") else tk.Target(text)
    )


def main(arguments: list[str] | None = None) -> None:
    """Compile, count, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.inner_loops", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("target", type=target_of)
    parser.add_argument("dims", nargs="*", help="symbolic dimensions: NAME=N")
    options = parser.parse_args(arguments)
    freeze = {name: int(n) for name, n in (d.split("=") for d in options.dims)}
    mod = tk.frontend.from_onnx(options.model, freeze=freeze or None)
    funcs = list(tk.compile(mod, options.target).module.with_programs().prim_funcs)
    print(table(funcs, inner_loops_of(funcs, options.target)))


if __name__ == "__main__":
    main()

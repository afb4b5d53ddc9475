"""Scripts of a few lines, or of one construct nested deeply, with large consequences."""

from __future__ import annotations

from collections.abc import Iterator

HEAD = "@T.prim_func\ndef f(A: T.Buffer((16,), 'float32'), B: T.Buffer((16,), 'float32')):\n"
ZERO = "T.float32(0)"


def loops() -> Iterator[tuple[str, str]]:
    for n in (10**5 * 2, 10**9, 2**63 - 1, -1, 2**63):
        for word in ("unroll", "vectorized", "parallel", "serial"):
            body = f"    for i in T.{word}({n}):\n        B[i % 16] = A[i % 16]\n"
            yield f"{word}({n})", HEAD + body
    for count, word in ((100, "unroll"), (10, "unroll"), (100, "vectorized")):
        nest = [f"{'    ' * (k + 1)}for i{k} in T.{word}({count}):\n" for k in range(12)]
        yield f"{word} nested", HEAD + "".join(nest) + "    " * 13 + "B[0] = A[0]\n"


def nested() -> Iterator[tuple[str, str]]:
    for d in (60, 150, 3000):
        expressions = {
            "parentheses": "(" * d + "A[0]" + ")" * d,
            "sum": "A[0]" + " + A[0]" * d,
            "signs": "-" * d + "A[0]",
            "min": "T.min(A[0], " * d + "A[1]" + ")" * d,
            "choices": f"(A[0] if A[1] > {ZERO} else " * d + "A[2]" + ")" * d,
            "number": "T.float32(1" + "0" * d + ")",
        }
        for name, text in expressions.items():
            yield f"{name} of {d}", f"{HEAD}    B[0] = {text}\n"
        conditions = {
            "not": "not " * d + f"(A[0] > {ZERO})",
            "and": f"A[0] > {ZERO}" + f" and A[1] > {ZERO}" * d,
            "and, or": "(" * d + f"A[0] > {ZERO}" + f" and A[1] > {ZERO} or A[2] > {ZERO})" * d,
        }
        for name, text in conditions.items():
            yield f"{name} of {d}", f"{HEAD}    if {text}:\n        B[0] = A[0]\n"
        index = "(" * d + "i" + " // 2 + i) % 16" * d
        yield f"index of {d}", f"{HEAD}    for i in range(16):\n        B[{index}] = A[i]\n"
        graphs = {
            "tuple type": ("R.Tuple(" * d + "R.Tensor((2,), 'float32')" + ")" * d, "x"),
            "tuple": ("R.Tensor((2,), 'float32')", "(" * d + "x" + ",)" * d),
            "rank": ("R.Tensor((" + "1," * d + "), 'float32')", "R.nn.relu(x)"),
            "calls": ("R.Tensor((2,), 'float32')", "R.nn.relu(" * d + "x" + ")" * d),
            "size": (f"R.Tensor(('n', '{'n*' * d}n'), 'float32')", "R.nn.relu(x)"),
        }
        for name, (kind, result) in graphs.items():
            yield f"{name} of {d}", f"@R.function\ndef main(x: {kind}):\n    return {result}\n"


def graphs() -> Iterator[tuple[str, str]]:
    steps = {
        "concat": ("R.concat(({v}, {v}), axis=0)", 70),
        "tile": ("R.tile({v}, (3,))", 50),
        "tile by 2^40": ("R.tile({v}, (1099511627776,))", 2),
        "tile by 2^63 - 1": ("R.tile({v}, (9223372036854775807,))", 2),
    }
    for name, (step, count) in steps.items():
        for size in ("'n'", "8"):
            lines = [f"    v{i + 1} = {step.format(v=f'v{i}')}\n" for i in range(count)]
            head = f"@R.function\ndef main(v0: R.Tensor(({size},), 'float32')):\n"
            yield f"{name} of {size}", f"{head}{''.join(lines)}    return v{count}\n"
    for count in (3, 14, 40):
        lines = [f"    v{i + 1} = (v{i}, v{i})\n" for i in range(count)]
        head = "@R.function\ndef main(v0: R.Tensor((2,), 'float32')):\n"
        yield f"tuple that doubles {count} times", f"{head}{''.join(lines)}    return v{count}\n"


def macros() -> Iterator[tuple[str, str]]:
    for depth in (8, 40):
        text = "@T.macro\ndef m0(A):\n    A[0] = A[0] + 1.0\n"
        for k in range(1, depth):
            text += f"@T.macro\ndef m{k}(A):\n" + f"    m{k - 1}(A)\n" * 2
        main = f"@T.prim_func\ndef f(A: T.Buffer((4,), 'float32')):\n    m{depth - 1}(A)\n"
        yield f"macros that double, {depth} times", text + main
    yield "a macro of itself", f"@T.macro\ndef m(A):\n    m(A)\n{HEAD}    m(A)\n"

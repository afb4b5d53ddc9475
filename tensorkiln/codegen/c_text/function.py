"""A function of C: its head, the statements of its body, and how it is declared and defined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorkiln.codegen.c_text.text import quote, wrap


@dataclass(frozen=True, slots=True)
class CFunction:
    """`head` is `static int f(int64_t n)`, and `body` its lines, indented."""

    head: str
    body: Sequence[str] = ()

    @staticmethod
    def of(
        result: str, name: str, parameters: Sequence[str], body: Sequence[str] = ()
    ) -> CFunction:
        """A function with these declarations of parameters; `result` has its linkage, too. A head
        that is too long is broken."""
        space = "" if result.endswith("*") else " "
        return CFunction(wrap(f"{result}{space}{name}(", list(parameters) or ["void"], ")"), body)

    @property
    def declaration(self) -> str:
        """The head alone, a statement."""
        return f"{self.head};"

    @property
    def definition(self) -> str:
        """The whole function and a line feed."""
        return "\n".join([self.head, "{", *self.body, "}\n"])

    @property
    def exported(self) -> str:
        """The declaration, which compilers want of a function that others call, and the
        definition."""
        return f"{self.declaration}\n{self.definition}"


def aligned(head: str, parameters: Sequence[str]) -> str:
    """A head whose last parameter stands under the first of the line above."""
    *first, last = parameters
    return f"{head}{', '.join(first)},\n{' ' * len(head)}{last})"


def ffi_entry(name: str, call: str) -> str:
    """The tvm-ffi entry of a function of the library, which returns `call(args, count, result)`:
    `call` is the text before these arguments."""
    head = f"KILN_API int __tvm_ffi_{name}("
    parameters = ("void *self", "const kiln_value *args", "int32_t count", "kiln_value *result")
    body = ["    (void)self;", f"    return {call}, args, count, result);"]
    types = "void *, const kiln_value *, int32_t, kiln_value *"
    return f"{head}{types});\n{CFunction(aligned(head, parameters), body).definition}"


def range_failure(name: str) -> list[str]:
    """Lines that end a function of kernels where a size of it does not fit: `name` is what the
    message calls it."""
    return [
        f"    if (kiln_fits(KILN_ERROR_RANGE, {quote(name)}, &large) != KILN_OK) {{",
        "        kiln_kernel_failed(KILN_ERROR_RANGE);",
        "        return;",
        "    }",
    ]

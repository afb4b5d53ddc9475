"""The Python syntax of both IR levels: `T` for tensor programs, `R` for graphs.

Decorators convert Python definitions to IR; `from_source` does the same for text:

    @tk.script.ir_module
    class Module:
        @T.prim_func
        def add_one(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
            for i in range(4):
                Y[i] = X[i] + 1
"""

from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.ir.text.printer import constant_table, print_expr, print_function, print_module
from tensorkiln.script.decorators import function, ir_module, macro, prim_func
from tensorkiln.script.dialect import ScriptNamespace
from tensorkiln.script.functions import FUNCTIONS, meta
from tensorkiln.script.parser import from_source

_BOTH = {"ExternalDependency": ExternalDependency}
T = ScriptNamespace("T", {"prim_func": prim_func, "macro": macro, "meta": meta, **_BOTH}, FUNCTIONS)
R = ScriptNamespace("R", {"function": function, **_BOTH})
# Scripts of other compilers import the two languages under these names.
tir, relax = T, R

__all__ = [
    "R",
    "T",
    "constant_table",
    "from_source",
    "ir_module",
    "print_expr",
    "print_function",
    "print_module",
    "relax",
    "tir",
]

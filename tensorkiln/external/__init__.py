"""Bring your own code generator: the interface `External`, the pass that partitions a graph for it,
and one example.

`tk.compile(module, externals=[...])` moves the operators that an external supports into functions
for which the external emits code. They have the C interface of every kernel and take part in memory
planning.
"""

from tensorkiln.artifact.dependency import ExternalDependency
from tensorkiln.external.emit import Emitted, checked, emit_externals
from tensorkiln.external.external import External
from tensorkiln.external.partition import PartitionExternals
from tensorkiln.ir.relax import size_symbols as symbols

__all__ = [
    "Emitted",
    "External",
    "ExternalDependency",
    "PartitionExternals",
    "checked",
    "emit_externals",
    "symbols",
]

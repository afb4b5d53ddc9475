"""Bring your own code generator: the interface `External`, the pass that partitions a graph for it,
and one example.

`tk.compile(module, externals=[...])` moves the operators that an external supports into functions
for which the external emits code. They have the C interface of every kernel and take part in memory
planning.
"""

from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.external.dependencies import (
    declared_dependencies,
    in_memory_dependencies,
    settled_dependencies,
    uses_of,
)
from tensorkiln.external.emit import Emitted, checked, emit_externals, with_key
from tensorkiln.external.external import External
from tensorkiln.external.match import Definitions, Refused, Taken
from tensorkiln.external.partition import PartitionExternals
from tensorkiln.external.partition_patterns import PartitionPatterns
from tensorkiln.ir.relax import size_symbols as symbols

__all__ = [
    "Definitions",
    "Emitted",
    "External",
    "ExternalDependency",
    "PartitionExternals",
    "PartitionPatterns",
    "Refused",
    "Taken",
    "checked",
    "declared_dependencies",
    "emit_externals",
    "in_memory_dependencies",
    "settled_dependencies",
    "symbols",
    "uses_of",
    "with_key",
]

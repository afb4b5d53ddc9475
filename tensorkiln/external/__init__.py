"""Bring your own code generator: what one is, how it gets its part of a graph, and one example.

`tk.compile(module, externals=[...])` moves the operators that an external supports into functions
that it emits. They obey the C interface of every kernel and take part in memory planning.
"""

from tensorkiln.artifact.dependency import ExternalDependency
from tensorkiln.external.emit import checked_artifacts, emit_externals
from tensorkiln.external.external import External, symbols
from tensorkiln.external.partition import PartitionExternals

__all__ = [
    "External",
    "ExternalDependency",
    "PartitionExternals",
    "checked_artifacts",
    "emit_externals",
    "symbols",
]

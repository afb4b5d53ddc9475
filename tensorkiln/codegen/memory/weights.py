"""What the weights of a library take in place of those of the model, and why.

A weight keeps its name through the passes, so that what it has become is found by that: other
elements (transformed, or with zeros between groups), zeros around them, a second form, another
type.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from tensorkiln.codegen.host.weights import WeightArena
from tensorkiln.codegen.memory.figures import WeightCause, WeightMemory
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Constant, Function
from tensorkiln.ir.visit_graph import bindings_in, values_in
from tensorkiln.kernels.table import larger_weights

# Weights of more than _MUCH times the model's, and at least _WORTH bytes more, are worth a note.
_MUCH, _WORTH = 1.5, 1 << 20
_NAMED = 3  # weights of a row
_SECOND, _ZEROS, _COMPUTED = "stored a second time", "zeros up to whole blocks", "computed"
_WIDER, _ROUNDED = "of a wider type", "zeros up to 64 bytes"
_OTHERS = "packed for other processors"


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """A model's constants: bytes and number of elements by name, and the bytes of all of them.
    Memory that several are views of counts once."""

    named: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    bytes: int = 0


def model_weights(mod: IRModule) -> ModelWeights:
    """The constants of a module, before any pass."""
    named: dict[str, tuple[int, int]] = {}
    memories: set[Hashable] = set()
    for c in _constants(f for f in mod.functions if isinstance(f, Function)):
        if (memory := _memory(c)) not in memories:
            memories.add(memory)
            size, count = named.get(c.name, (0, 0))
            named[c.name] = size + c.data.nbytes, count + c.data.size
    return ModelWeights(named, sum(size for size, _ in named.values()))


def _memory(c: Constant) -> Hashable:
    """What constants have in common that are the same elements of the same memory, whatever the
    order of their dimensions: a table of words and its transpose."""
    if not isinstance(c.data, np.ndarray):
        return id(c.data)
    axes = zip(c.data.strides, c.data.shape, strict=True)
    address = c.data.__array_interface__["data"][0]
    return address, c.data.dtype.str, frozenset((s, n) for s, n in axes if n != 1)


def _constants(functions: Iterable[Function]) -> Iterator[Constant]:
    for f in functions:
        values = (b.value for b in bindings_in(f.bindings))
        for value in (*values, f.result):
            yield from (v for v in values_in(value) if isinstance(v, Constant))


@dataclass(frozen=True, slots=True)
class _Stored:
    """One constant in the library: its bytes, its elements without those that fill up blocks, the
    bytes of one, and the class of the kernel that reads it."""

    bytes: int
    count: int
    itemsize: int
    kernel: str

    @property
    def content(self) -> int:
        """The bytes of its elements."""
        return self.count * self.itemsize


def weight_memory(mod: IRModule, model: ModelWeights, total: int) -> WeightMemory:
    """What the weights of a module whose graphs are planned take; `total` are their bytes, and
    those of the modules for other processors of the same library."""
    rows: dict[str, list[tuple[str, int, int]]] = {}  # cause -> name, bytes, bytes in the model
    stored, module_bytes = _stored(mod, model)
    for name, forms in stored.items():
        for cause, have, instead in _changes(forms, model.named.get(name)):
            rows.setdefault(cause, []).append((name or "without a name", have, instead))
    rounded = module_bytes - sum(f.bytes for forms in stored.values() for f in forms)
    causes = [_cause(cause, weights) for cause, weights in rows.items()]
    if rounded > 0:
        causes.append(WeightCause(_ROUNDED, rounded, 0, sum(map(len, stored.values())), ()))
    if total > module_bytes:
        causes.append(WeightCause(_OTHERS, total - module_bytes, 0, 0, ()))
    causes.sort(key=lambda c: (-c.more, c.cause))
    return WeightMemory(total, model.bytes, tuple(causes), _note(total, model.bytes, causes))


def is_much(total: int, model: int) -> bool:
    """Whether weights of `total` bytes are worth a note beside a model of `model` bytes."""
    return total > _MUCH * model and total - model >= _WORTH


def _stored(mod: IRModule, model: ModelWeights) -> tuple[dict[str, list[_Stored]], int]:
    """The constants of the module by the name that the model has for them, each place once, and the
    bytes of all."""
    arena, stored = WeightArena(), dict[str, list[_Stored]]()
    classes = {k.name: k.op_class for k in mod.kernels}
    for call, c in (pair for plan in mod.planned for pair in plan.constants_read()):
        end = arena.size
        if arena.place_constant(c) == end and arena.size > end:
            count = prod(int_value(d) or 0 for d in c.type.shape)
            row = _Stored(c.data.nbytes, count, c.data.itemsize, classes.get(call.name, ""))
            stored.setdefault(_model_name(c.name, model), []).append(row)
    return stored, arena.size


def _model_name(name: str, model: ModelWeights) -> str:
    """The model's name of a constant: without the columns that `w[0:64]` has of it."""
    return name if name in model.named else name.partition("[")[0]


def _changes(
    forms: Sequence[_Stored], model_size: tuple[int, int] | None
) -> Iterator[tuple[str, int, int]]:
    """Yield causes for which a weight takes more than in the model, where it takes `model_size`,
    bytes for so many elements: the bytes that it takes, and those that it takes in the model. None:
    the model has no weight of this name."""
    zeros = sum(f.bytes - f.content for f in forms)
    if zeros:
        yield _ZEROS, zeros, 0
    content = sum(f.content for f in forms)
    if model_size is None:
        yield _COMPUTED, content, 0
        return
    size, count = model_size
    first = max(forms, key=lambda f: f.content)
    if first.content > size:
        cause = larger_weights().get(first.kernel, _COMPUTED) if first.count > count else _WIDER
        yield cause, first.content, size
        size = first.content
    if content > size:
        yield _SECOND, content - size, 0


def _cause(cause: str, weights: list[tuple[str, int, int]]) -> WeightCause:
    by_size = sorted(weights, key=lambda w: w[2] - w[1])
    have, instead = sum(w[1] for w in weights), sum(w[2] for w in weights)
    return WeightCause(cause, have, instead, len(weights), tuple(w[0] for w in by_size[:_NAMED]))


def _note(total: int, model: int, causes: Iterable[WeightCause]) -> str:
    if not is_much(total, model):
        return ""
    largest = [c for c in causes if c.more > (total - model) / 10]
    reasons = "; ".join(
        f"{c.cause}, {c.bytes:,} in place of {c.model_bytes:,}" for c in largest[:_NAMED]
    )
    times = f"{total / model:.1f} times the model's {model:,}" if model else "the model has none"
    return f"weights take {total:,} bytes, {times}: {reasons}"

"""Fused attention: scores, softmax and the weighted sum of the values in one kernel.

Operands of 16 bits are multiplied in tiles or in pairs where the target can (`wide`); softmax is of
float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorkiln.families.attention.decomposition import decomposed
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import FLOAT32
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import Binding, Call, TensorType
from tensorkiln.ir.tiles import TILE_ROWS
from tensorkiln.kernels.family import Family, Layouts
from tensorkiln.kernels.fusion import computes_nothing
from tensorkiln.kernels.halves import of_halves
from tensorkiln.kernels.knobs import MOST_ON_STACK, TERMS, Knob, heights, knob, steps_knob
from tensorkiln.kernels.layouts import is_float32, takes_pairs, takes_tiles
from tensorkiln.target import Target
from tensorkiln.target.registers import highest, max_rows


def _fits(call: Call, out: TensorType, target: Target) -> bool:
    """Whether the head size is a multiple of the vector width, and operands are packed as the
    family asks."""
    layouts = _layouts(call, out, target)
    if layouts is None:
        return False
    arg_layouts = zip(call.args, layouts.operands, strict=True)
    return all(
        isinstance(a.type, TensorType) and want in (None, a.type.layout) for a, want in arg_layouts
    )


def head_sizes(call: Call) -> tuple[int | None, int | None]:
    """The sizes of a head in the queries and in the values; None for a symbolic one."""
    q, v = call.args[0].type, call.args[2].type
    assert isinstance(q, TensorType) and isinstance(v, TensorType)
    return int_value(q.shape[3]), int_value(v.shape[3])


def lacks_types(call: Call) -> str:
    """Why no kernel computes an attention, from its types; empty if one may."""
    if not is_float32(call):
        return "its operands are not all float32"
    return _lacks_sizes(call)


def _lacks_sizes(call: Call) -> str:
    return "its head size is symbolic" if None in head_sizes(call) else ""


def _lacks(call: Call, target: Target) -> str:
    lanes = target.vector_lanes("float32")
    depth, width = head_sizes(call)
    if lanes == 1:
        return "the target has no vectors"
    pairs = call.attrs.get("wide") and takes_pairs(call, target)
    if (reason := _lacks_sizes(call) if pairs else lacks_types(call)) or depth is None:
        return reason
    if depth != width:
        return f"its queries have head size {depth}, its values {width}"
    return f"its head size {depth} is no multiple of {lanes} lanes" if depth % lanes else ""


def _layouts(call: Call, out: TensorType, target: Target) -> Layouts | None:
    """Keys packed by lanes, or by lanes and pairs of features, with values packed by pairs of keys.
    Needs vectors, float32 or a target that multiplies pairs of 16 bits, and a head size that is a
    multiple of the vector width and the same in v as in k."""
    if _lacks(call, target):
        return None
    lanes = target.vector_lanes("float32")
    keys, values = Layout.parse(f"A B C/{lanes} D C%{lanes}"), None
    if call.attrs.get("wide"):
        keys = Layout.parse(f"A B C/{lanes} D/2 C%{lanes} D%2")
        values = Layout.parse("A B C/2 D C%2")
    return Layouts((None, keys, values, *[None] * len(call.args[3:])))


def in_tiles(call: Call, target: Target) -> bool:
    """Whether the operands, packed for products of pairs, are multiplied in tiles of the
    processor."""
    return bool(call.attrs.get("wide")) and takes_tiles(call, target)


def _multiplies_pairs(call: Call, target: Target) -> bool:
    """Whether a kernel multiplies operands of 16 bits in pairs."""
    wide = replace(call, attrs=Attrs.of(**{**call.attrs, "wide": True}))
    return takes_pairs(call, target) and not _lacks(wide, target)


def _prologue(call: Call, operand: int, before: Sequence[Binding]) -> bool:
    """Data movement of queries, and of values that are not packed. Arithmetic would be repeated for
    each head."""
    moved = (0,) if call.attrs.get("wide") else (0, 2)
    return operand in moved and computes_nothing(before)


def _epilogue(anchor: Binding, last: TensorType, reader: Binding) -> bool:
    """Data movement to a row-major result, and its conversion."""
    call, t = reader.value, reader.var.type
    moves = isinstance(call, Call) and call.op in ("transpose", "reshape", "cast")
    return moves and isinstance(t, TensorType) and t.layout is None


# Keys of a block: all of them up to SINGLE_BLOCK, which needs no rescaling between blocks; else
# KEY_BLOCK. And others, of which all are whole vectors.
SINGLE_BLOCK, KEY_BLOCK, _BLOCKS = 512, 128, (64, 128, 256, 512)
# Vectors per row of a register tile: of keys in q k^T, of the head's columns in scores v.
_VECTORS, _MOST_VECTORS = 2, 4
# Tiles of rows that take a block of keys in turn where keys and values of a head are large.
_TILES, _TOGETHER = (1, 4, 8, 16), 8
# Keys of a tile of values, which are whole vectors.
TILE_KEYS = TILE_ROWS * 2
# Rows of a causal tile: all its rows take the keys that its last one sees, so taller ones do more
# for nothing. With 8 instead of 13 rows, 64 queries took 0.92 of the time on a Zen 5.
_CAUSAL_ROWS = 8


def _keys_knob(k: TensorType, step: int) -> Knob:
    """How many keys a block has, of which `step` are taken at a time."""
    keys = int_value(k.shape[2])
    whole = keys is not None and 0 < keys <= SINGLE_BLOCK
    block = -(-keys // step) * step if whole and keys else KEY_BLOCK
    blocks = [n for n in _BLOCKS if n % step == 0 and (keys is None or n < keys)]
    return knob("keys", blocks, block, "keys of a block")


def _knobs(call: Call, out: TensorType, target: Target) -> tuple[Knob, ...]:
    q, k = (a.type for a in call.args[:2])
    assert isinstance(q, TensorType) and isinstance(k, TensorType)
    if in_tiles(call, target):
        return (_keys_knob(k, TILE_KEYS),)
    rows = int_value(q.shape[2])
    tall = max_rows(target, _VECTORS)
    tall = min(tall, _CAUSAL_ROWS) if call.attrs.causal else tall
    terms = TERMS if target.multiplies_by_lane else 1  # then four neighbours are one load
    return (
        knob(
            "rows",
            heights(rows, highest(target, _VECTORS), tall),
            tall,
            "rows of queries of a tile",
        ),
        knob("vectors", range(1, _MOST_VECTORS + 1), _VECTORS, "vectors per row of a tile"),
        steps_knob((head_sizes(call)[0] or 1), terms),
        _keys_knob(k, target.vector_lanes("float32")),
        *_tiles_knob(call, target, tall),
    )


def _tiles_knob(call: Call, target: Target, height: int) -> tuple[Knob, ...]:
    """How many tiles, of `height` rows, take a block of keys before the next block: some, if keys
    and values of a head do not stay in the second-level cache from one tile to the next, and the
    stack has room for the rows' sums."""
    q, k = (a.type for a in call.args[:2])
    assert isinstance(q, TensorType) and isinstance(k, TensorType)
    rows, keys, size = int_value(q.shape[2]), int_value(k.shape[2]), head_sizes(call)[0] or 1
    if rows is None or keys is None or call.attrs.causal:
        return ()
    sums = height * size * FLOAT32.bytes
    counts = [n for n in _TILES if n == 1 or n * sums <= MOST_ON_STACK // 2]
    large = 2 * keys * size * q.dtype.bytes > target.l2_bytes // 2
    doc = "tiles of rows that take a block of keys in turn"
    return (knob("tiles", counts, _TOGETHER if large and _TOGETHER in counts else 1, doc),)


ATTENTION = Family(
    op_class="attention_fused",
    operators=("attention",),
    fits=_fits,
    layouts=_layouts,
    lacks=lambda call, out, target: _lacks(call, target),
    decompose=decomposed,
    epilogue=_epilogue,
    prologue=_prologue,
    knobs=_knobs,
    algorithm=of_halves("attention", _multiplies_pairs),
)

ROWS = (ATTENTION,)

"""The attribute `array_types` of graph functions: pairs of an input's or output's name and the
element type of the caller's arrays, where programs do not have that type (`NARROW_TYPES`).

In the body, a tensor of such a type is a tensor of bytes, one per element. In an argument, the bits
of a byte above the element may have any value.
"""

from __future__ import annotations

from tensorkiln.base.element_types import NARROW_TYPES
from tensorkiln.ir.hints import among
from tensorkiln.ir.malformed import Malformed
from tensorkiln.ir.relax import Function, TensorType, TupleType
from tensorkiln.ir.type_text import show

ARRAY_TYPES = "array_types"


def array_type(f: Function, name: str, dtype: str) -> str:
    """The element type of arrays for the input or output `name` of `f`, a tensor of `dtype`."""
    return str(dict(f.attrs.get(ARRAY_TYPES, ())).get(name, dtype))


def check_array_types(f: Function) -> None:
    """Raise Malformed for a name that is not an input or output, for a type that is unknown, and
    for one whose bytes are of another type than the tensor."""
    if ARRAY_TYPES not in f.attrs:
        return
    result_type = f.result.type
    results = result_type.fields if isinstance(result_type, TupleType) else (result_type,)
    names = f.attrs.get("output_names") or [f"output{i}" for i in range(len(results))]
    named = dict(zip(names, results, strict=False))
    names = f.attrs.get("input_names") or [p.name for p in f.params]
    named |= zip(names, [p.type for p in f.params], strict=False)
    for name, array in f.attrs[ARRAY_TYPES]:
        if name not in named:
            raise Malformed(f"{ARRAY_TYPES}: no input or output {name!r}", among(name, named))
        if array not in NARROW_TYPES:
            message = f"{ARRAY_TYPES}: {array!r} is no element type that is held in bytes"
            raise Malformed(message, among(array, NARROW_TYPES))
        stored, tensor = NARROW_TYPES[array].storage, named[name]
        if not isinstance(tensor, TensorType) or tensor.dtype.name != stored:
            raise Malformed(
                f"{ARRAY_TYPES}: {name!r} is {show(tensor)}, and arrays of {array} are tensors of "
                f"{stored}",
                f"make {name} a tensor of {stored}",
            )

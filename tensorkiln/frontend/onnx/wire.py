"""Parse and write the protobuf wire format by tables (`Schema`), with every offset checked.

It replaces a protobuf runtime for ONNX files: `bytes` fields are views of the mapped file, so that
weights are not copied; files over 2 GB can be read; and malformed data raises `WireError` only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_DEPTH = 100  # as protobuf's own readers: 33 bodies of nodes, one in another


class WireError(Exception):
    """The bytes are not a message of the expected type; the text gives the field or the offset."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a schema. `kind`: int, float, str, bytes, varints, floats, doubles, message.

    The plural kinds collect packed and unpacked elements into one NumPy array. `repeated` fields of
    other kinds become a tuple. `schema` returns the schema of a nested message; it is a function
    because messages are recursive (a graph holds nodes, whose attributes hold graphs).
    """

    name: str
    kind: str
    repeated: bool = False
    schema: Callable[[], Schema] | None = None


@dataclass(frozen=True, slots=True)
class Schema:
    """A message type: `fields` by field number, and `make(**values)`, which builds its object.

    Fields that are not listed are skipped. `name` is for error messages.
    """

    name: str
    make: Callable[..., Any]
    fields: Mapping[int, Field]


_WIRE_OF = {"int": 0, "float": 5, "str": 2, "bytes": 2, "message": 2}
# kind -> (wire type of one unpacked element, struct format, element type)
_ARRAYS = {"varints": (0, "", "<i8"), "floats": (5, "<f", "<f4"), "doubles": (1, "<d", "<f8")}


def varint(data: memoryview, offset: int, end: int) -> tuple[int, int]:
    """Decode the varint at `offset`: (unsigned 64-bit value, offset of the next byte).

    WireError if it is longer than 64 bits or reaches `end`.
    """
    value = shift = 0
    while offset < end:
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, offset
        shift += 7
        if shift > 63:
            raise WireError(f"an integer at byte {offset} is longer than 64 bits")
    raise WireError(f"the data ends inside an integer at byte {end}")


def signed(value: int) -> int:
    """An unsigned 64-bit value reinterpreted as two's complement."""
    return value - (1 << 64) if value >> 63 else value


def packed_varints(data: memoryview) -> np.ndarray:
    """All varints of a packed field as int64, without a Python loop over elements.

    WireError if one is longer than 10 bytes or the data ends inside one.
    """
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    if raw.size and (not ends.size or ends[-1] != raw.size - 1):
        raise WireError("packed integers end in the middle of one")
    starts = np.concatenate(([0], ends[:-1] + 1)) if ends.size else ends
    lengths = ends - starts + 1
    if lengths.size and lengths.max() > 10:
        raise WireError("a packed integer is longer than 64 bits")
    out = np.zeros(ends.size, np.uint64)
    for k in range(int(lengths.max()) if lengths.size else 0):
        has = lengths > k
        out[has] |= (raw[starts[has] + k].astype(np.uint64) & np.uint64(0x7F)) << np.uint64(7 * k)
    return out.view(np.int64)


def decode(schema: Schema, data: memoryview, depth: int = 0) -> Any:
    """Decode the message in `data` and return the object that `schema.make` builds.

    Of a field that is not repeated but occurs twice, the last value counts. WireError if the bytes
    are malformed or messages are nested deeper than `MAX_DEPTH`.
    """
    if depth > MAX_DEPTH:
        raise WireError(f"messages are nested deeper than {MAX_DEPTH}")
    values: dict[str, Any] = {}
    offset, end = 0, len(data)
    while offset < end:
        key, offset = varint(data, offset, end)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise WireError(f"{schema.name}: field number 0 at byte {offset}")
        field = schema.fields.get(number)
        payload, offset = _payload(schema.name, wire, data, offset, end)
        if field is not None:
            _store(schema.name, field, wire, payload, values, depth)
    for field in schema.fields.values():
        if field.kind in _ARRAYS and field.name in values:
            values[field.name] = np.concatenate(values[field.name])
        elif field.repeated and field.name in values:
            values[field.name] = tuple(values[field.name])
    return schema.make(**values)


def _payload(
    name: str, wire: int, data: memoryview, offset: int, end: int
) -> tuple[int | memoryview, int]:
    """The undecoded value of one field, and the offset of the next field."""
    if wire == 0:
        return varint(data, offset, end)
    if wire == 2:
        size, offset = varint(data, offset, end)
    elif wire in (1, 5):
        size = 8 if wire == 1 else 4
    else:
        raise WireError(f"{name}: wire type {wire} at byte {offset} is not defined by protobuf")
    if size > end - offset:
        raise WireError(
            f"{name}: a field of {size} bytes starts at byte {offset}, but only {end - offset} are "
            "left"
        )
    return data[offset : offset + size], offset + size


def _store(
    name: str, field: Field, wire: int, payload: Any, values: dict[str, Any], depth: int
) -> None:
    if field.kind in _ARRAYS:
        values.setdefault(field.name, []).append(_elements(name, field, wire, payload))
        return
    if wire != _WIRE_OF[field.kind]:
        raise WireError(f"{name}.{field.name}: wire type {wire} does not fit a {field.kind}")
    value: Any
    match field.kind:
        case "int":
            value = signed(payload)
        case "float":
            value = struct.unpack("<f", payload)[0]
        case "str":
            try:
                value = str(payload, "utf-8")
            except UnicodeDecodeError:
                raise WireError(f"{name}.{field.name}: the text is not UTF-8") from None
        case "bytes":
            value = payload
        case _:
            assert field.schema is not None
            value = decode(field.schema(), payload, depth + 1)
    if field.repeated:
        values.setdefault(field.name, []).append(value)
    else:
        values[field.name] = value


def _elements(name: str, field: Field, wire: int, payload: Any) -> np.ndarray:
    single, fmt, dtype = _ARRAYS[field.kind]
    if wire == 2:
        if not fmt:
            return packed_varints(payload)
        if len(payload) % np.dtype(dtype).itemsize:
            raise WireError(
                f"{name}.{field.name}: {len(payload)} bytes are not a whole number of elements"
            )
        return np.frombuffer(payload, dtype)
    if wire != single:
        raise WireError(f"{name}.{field.name}: wire type {wire} does not fit {field.kind}")
    value = signed(payload) if not fmt else struct.unpack(fmt, payload)[0]
    return np.array([value], dtype)


def encode(schema: Schema, message: Any) -> bytes:
    """The bytes that `decode` reads as `message`, without fields that have their defaults."""
    blank = schema.make()
    out = bytearray()
    for number, field in schema.fields.items():
        value = getattr(message, field.name)
        if field.kind in _ARRAYS:
            values: Sequence[Any] = [_packed(field, value)] if value.size else []
        elif field.repeated:
            values = value
        else:
            values = [] if value == getattr(blank, field.name) else [value]
        for item in values:
            out += _encoded(number, field, item)
    return bytes(out)


def _encoded(number: int, field: Field, item: Any) -> bytes:
    """One field with its key."""
    key = _varint_bytes(number << 3 | _WIRE_OF.get(field.kind, 2))
    data: bytes
    match field.kind:
        case "int":
            return key + _varint_bytes(item)
        case "float":
            return key + struct.pack("<f", item)
        case "str":
            data = item.encode()
        case "message":
            assert field.schema is not None
            data = encode(field.schema(), item)
        case _:
            data = bytes(item)
    return key + _varint_bytes(len(data)) + data


def _packed(field: Field, array: np.ndarray) -> bytes:
    if field.kind == "varints":
        return b"".join(map(_varint_bytes, array.tolist()))
    return bytes(array.astype(_ARRAYS[field.kind][2], copy=False))


def _varint_bytes(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)

"""How a C-like language spells types, literals and vectors, and what it leaves open. The printers
know nothing else of a language.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tensorkiln.codegen.c_like.code import PREFIX, Code, call
from tensorkiln.codegen.expand.float_bits import half_bits, single
from tensorkiln.ir.dtype import FLOAT32, FLOAT64, UINT32, UINT64, DType


@dataclass(frozen=True, slots=True)
class Dialect:
    """Facts of one language.

    `scalars` are the types of values; floats of 16 bits are kept as their bits and computed in
    float32. The templates have fields in braces: `type` is the name of a type, `x` the text of a
    value, `items` texts joined by commas, `i` a number.
    """

    scalars: Mapping[str, str]
    widest: str  # a literal that needs more than 32 bits, with `u` if it is unsigned
    lowest: str  # the most negative number x of a type of `bits`, called `name`: it has no literal
    infinity: str
    nan: str
    vector_name: str  # of `count` `element`s, which helpers call `lane`
    vector_declaration: str  # of a vector `type` of `count` `element`s, `bytes` long; or nothing
    memory_declaration: str  # of what such a vector is in memory, aligned to `align`; or nothing
    most_lanes: int  # of a vector; 0 if there is no limit
    convert_vector: str  # the numbers of x as lanes of `type`
    vector_bits: str  # the bits of x as lanes of `type`
    scalar_bits: str  # the bits of a scalar x as a `type`; "" if a helper function does that
    comparison: str  # the comparison x of vectors as the integers of `type`
    vector_of: str  # a vector of the lanes `items`
    splat: str  # a vector of x in all lanes; "" if a helper function does that
    choice: str  # lanes of `a` where `mask` is -1, else of `b`; "" likewise
    lane: str  # lane `i` of x
    load: str  # a vector of `type`, of `count` lanes, at p
    store: str  # a statement that writes x there
    load_vector: str  # the function `name` that this calls, which reads a vector; or nothing
    store_vector: str  # the function `name`, which writes one; or nothing
    word_bits: int  # of a register for indices; 0 if the target's processor decides
    spaces: Mapping[str, str]  # qualifiers of pointers to buffers, by scope; may be empty
    indices: Mapping[str, str]  # of a thread by "blockIdx", ..., along `axis`, x to z or `number`
    barrier: str  # a statement at which all threads of a block wait for each other
    array: str  # the declaration of a local array `name` of `size` elements, aligned to `align`
    prefetch: str  # a statement, or nothing
    square_root: Callable[..., str]  # (writer, name, dtype) -> the text of the function
    dot: Callable[..., str | None]  # (writer, function, name, lanes) -> text of the function
    note_failure: str  # a statement that puts `message` into the variable at `cell`
    parallel_for: bool  # whether parallel loops are run by kiln_parallel_for
    extern: str  # declares the function `symbol`, under the name `name`
    restrict: str
    function: str  # qualifiers of a function that only this text calls
    vector_function: str  # the same if it takes vectors, which should not pass through memory
    instructions: str = ""  # its key in the table of device instructions; "" without any
    # The defaults below are C's.
    cast: str = "({type}){x}"
    narrow: str = ""  # x as a number of `bits` bits, where a type of more bits holds it
    wraps: bool = False  # whether signed integers wrap around
    reassociates: bool = False  # whether compilers may reassociate sums of floats
    stores_bools: bool = False  # whether elements in memory may be bools; else they are bytes
    only_words: bool = False  # whether integers have at most word_bits
    constant: str = "const {type} {name} = {x};"
    variables: Callable[[str, Sequence[str]], list[str]] = lambda t, names: [
        f"{t} {', '.join(names)};"
    ]  # the declarations of variables of a type
    discard: str = "(void){x};"  # a statement that only uses x
    loop: str = "for ({type} {name} = {first}; {name} < {end}; ++{name})"
    conditional: str = "{condition} ? {a} : {b}"
    parameter: str = "{type} {name}"
    definition: str = "{how} {result} {name}({parameters})"
    isnan: str = ""  # whether x is NaN; "" if x != x says so
    nonzero: str = ""  # whether the float x is not 0, or NaN; "" if x != 0 says so
    rounded: str = ""  # x after `op` (floor, ceil, trunc, round); "" if a helper does that

    def has(self, dtype: DType) -> bool:
        """Whether the language has values of a type."""
        return dtype.name in self.scalars

    def scalar(self, dtype: DType) -> str:
        """The type of a scalar value."""
        return self.scalars[dtype.name]

    def element(self, dtype: DType) -> str:
        """The type of an element in memory."""
        return self.scalars[dtype.row.name if self.stores_bools else dtype.row.stored.name]

    def _suffix(self, dtype: DType) -> str:
        """What ends a literal of a type: `u` for what is an unsigned integer of 32 bits here."""
        if dtype.is_float:
            return "f" if dtype.element == FLOAT32 else ""
        return "u" if self.scalars.get(dtype.name) == self.scalar(UINT32) else ""

    def integer(self, value: int, dtype: DType) -> Code:
        """A literal of an integer type."""
        if dtype.is_bool:
            return Code("true" if value else "false")
        lowest = -(1 << dtype.bits - 1)
        if not dtype.is_unsigned and value == lowest and dtype.bits >= 32:
            name = self.scalar(dtype).upper()
            return Code(self.lowest.format(bits=dtype.bits, name=name, x=value))
        digits = f"{value}{self._suffix(dtype)}"
        # Large literals get the widest type: C computes small ones as int, which overflows where
        # 64 bits would not.
        if dtype.element == UINT64 or abs(value) >= 1 << (32 if dtype.is_unsigned else 31):
            digits = self.widest.format(x=value, u="U" if dtype.is_unsigned else "")
        return Code(digits, PREFIX) if value < 0 else Code(digits)

    def real(self, value: float, dtype: DType) -> Code:
        """An exact literal of a float type: floats of 16 bits as their bits, others in decimal if
        that is short, else in hexadecimal. Of a NaN only the sign is kept."""
        if dtype.is_half:
            number = math.copysign(math.nan, value) if value != value else value
            suffix = self._suffix(DType(dtype.row.storage))
            return Code(f"0x{half_bits(number, dtype.row):04x}{suffix}")
        suffix = self._suffix(dtype)
        sign = "-" if math.copysign(1.0, value) < 0 else ""
        size = abs(single(value) if dtype.element == FLOAT32 else value)
        if size != size or size == math.inf:
            text = self.nan if size != size else self.infinity
            if dtype.element == FLOAT64:
                text = call("(double)", text).replace("(double)(", "(double)(")
            return Code(f"{sign}{text}", PREFIX)
        return Code(sign + _digits(size, dtype) + suffix, PREFIX if sign else 9)


def _digits(value: float, dtype: DType) -> str:
    """A float that is not negative: in at most 8 decimal digits if they say it exactly."""
    short = f"{value:.7g}"
    exact = float(short) if dtype.element == FLOAT64 else _single(float(short))
    if exact == value and float(short) == value:
        return short if any(c in short for c in ".e") else f"{short}.0"
    mantissa, _, exponent = value.hex().partition("p")
    return f"{mantissa.rstrip('0').rstrip('.')}p{exponent}"


def _single(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])

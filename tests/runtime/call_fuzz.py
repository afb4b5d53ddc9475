"""Random calls of random functions, right ones and wrong ones, against a model in NumPy.

    python -m tests.runtime.call_fuzz LIBRARY SEED FUNCTIONS FIRST COUNT

makes calls FIRST, FIRST + 1, ... and prints a line for each before it is made, so that whoever
reads them knows which one ended the process; findings are lines that begin with `!`. The model says
of each call whether it is taken, and then what is in every byte of memory after it, results too;
one that is refused raises a UserError and leaves memory as it was.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from tensorkiln.base.errors import UserError
from tensorkiln.runtime import Executor, Tensor, load_module
from tests.exports import WRONG
from tests.runtime.call_arguments import (
    JUNK,
    View,
    converted,
    memory,
    number,
    overlapping,
    view,
)
from tests.runtime.call_programs import Function, Param, bind, compute, functions, size_of
from tests.runtime.scalars import DTYPES, numpy_type

_MISSING = object()


@dataclass
class Call:
    """A call: the arguments by position, by name, and what `out=` is (_MISSING: not given)."""

    function: Function
    blocks: list[Any]
    positional: list[Any]
    named: dict[str, Any]
    out: Any = _MISSING

    def real(self, thing: Any) -> Any:
        """An argument as it is passed."""
        if isinstance(thing, View):
            return thing.argument(self.blocks)
        if isinstance(thing, list | tuple) and any(isinstance(x, View) for x in thing):
            return type(thing)(map(self.real, thing))
        return thing


# ---- making calls -------------------------------------------------------------------------------


def make_call(f: Function, rng: Random) -> Call:
    """A call that is right in most, and wrong in at most a few ways."""
    sizes = {s: rng.choice((1, 2, 3, 4, 6)) for s in "nm"}
    call = Call(f, [], [], {})
    for p in f.params:
        call.positional.append(_argument(p, sizes, call, rng))
    if f.kind == "graph" and rng.random() < 0.4:
        call.out = _out(f, sizes, call, rng)
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
        rng.choice(_MUTATIONS)(call, sizes, rng)
    if rng.random() < 0.25:
        first = rng.randrange(len(call.positional) + 1)
        names = [p.name for p in f.params]
        call.named |= dict(zip(names[first:], call.positional[first:], strict=False))
        del call.positional[first:]
    return call


def _argument(p: Param, sizes: dict[str, int], call: Call, rng: Random) -> Any:
    if p.dims is None:
        return number(rng, p.dtype)
    shape = tuple(size_of(d, sizes) for d in p.dims)
    if shape == () and not p.written and rng.random() < 0.4:
        return numpy_type(p.dtype).type(rng.randrange(5))
    return _tensor(shape, p.dtype, call, rng)


def _tensor(shape: tuple[int, ...], dtype: str, call: Call, rng: Random) -> View:
    candidates = [
        v for v in call.positional if isinstance(v, View) and v.dtype == numpy_type(dtype)
    ]
    if candidates and rng.random() < 0.25:
        tensor_view = overlapping(rng, rng.choice(candidates), call.blocks, shape)
        if tensor_view is not None:
            return tensor_view
    return view(rng, call.blocks, shape, numpy_type(dtype))


def _out(f: Function, sizes: dict[str, int], call: Call, rng: Random) -> Any:
    places = [
        _tensor(tuple(size_of(d, sizes) for d in dims), dtype, call, rng)
        for dtype, dims in f.results
    ]
    return (
        places[0] if len(places) == 1 and rng.random() < 0.6 else rng.choice((list, tuple))(places)
    )


# ---- making them wrong --------------------------------------------------------------------------


def _pick(call: Call, rng: Random) -> int:
    return rng.randrange(len(call.positional)) if call.positional else -1


def _junk(call: Call, _: Any, rng: Random) -> None:
    """Something else for any parameter: no tensor, no number, or one where the other is wanted."""
    i = _pick(call, rng)
    junk_values = [*JUNK, 1, 2.5, True, np.float32(1), np.int64(2)]
    if i >= 0:
        junk_value = rng.choice(junk_values)
        call.positional[i] = (
            view(rng, call.blocks, (), np.dtype("int8")) if rng.random() < 0.2 else junk_value
        )


def _change(call: Call, rng: Random, change: Any) -> None:
    views = [
        i for i, v in enumerate(call.positional) if isinstance(v, View) and 1 << 57 not in v.shape
    ]
    if views:
        i = rng.choice(views)
        call.positional[i] = change(call.positional[i])


def _dtype(call: Call, _: Any, rng: Random) -> None:
    """Another element type, also of the other byte order, and ones that there are none of here."""

    def change(v: View) -> View:
        new_dtype = numpy_type(rng.choice(DTYPES))
        if rng.random() < 0.4:
            new_dtype = np.dtype(
                rng.choice((">f4", ">i8", "c8", "S4", "M8[s]", "i4,f4", ">f2", ">u2"))
            )
        return view(rng, call.blocks, v.shape, new_dtype)

    _change(call, rng, change)


def _rank(call: Call, _: Any, rng: Random) -> None:
    def change(v: View) -> View:
        shape = (*v.shape, 1) if not v.shape or rng.random() < 0.5 else v.shape[1:]
        return view(rng, call.blocks, rng.choice((shape, (1,) * 17)), v.dtype)

    _change(call, rng, change)


def _size(call: Call, _: Any, rng: Random) -> None:
    """A dimension that is too small, too large, or nothing."""

    def change(v: View) -> View:
        if not v.shape:
            return v
        shape = list(v.shape)
        shape[rng.randrange(len(shape))] = rng.choice((0, 0, 1, 2, 4, 7))
        return view(rng, call.blocks, tuple(shape), v.dtype)

    _change(call, rng, change)


def _enormous(call: Call, _: Any, rng: Random) -> None:
    """Every tensor of a stride of nothing along a dimension that no memory has room for."""
    i = _pick(call, rng)
    if i < 0 or not isinstance(call.positional[i], View) or not call.positional[i].shape:
        return
    v = call.positional[i]
    block = memory(rng, call.blocks, v.dtype.itemsize, v.dtype)
    shape = (1 << 57, *(1 for _ in v.shape[1:]))
    call.positional[i] = View(block, 64, shape, (0,) * len(shape), v.dtype)


def _lie(call: Call, _: Any, rng: Random) -> None:
    _change(call, rng, lambda v: v if v.dtype.name == "bfloat16" else _liar(v, rng, call))


def _liar(v: View, rng: Random, call: Call) -> View:
    """NumPy must have an export for it, which is then wrong."""
    plain = memory(rng, call.blocks, 4096, v.dtype)
    strides = tuple(v.dtype.itemsize for _ in v.shape)
    return replace(
        v, block=plain, offset=64, strides=strides, lie=rng.choice(WRONG), origin="numpy"
    )


def _lock(call: Call, _: Any, rng: Random) -> None:
    _change(call, rng, lambda v: replace(v, origin="locked"))


def _count(call: Call, _: Any, rng: Random) -> None:
    i = _pick(call, rng)
    if rng.random() < 0.5 and i >= 0:
        del call.positional[i]
    else:
        call.positional.append(rng.choice((1, None, view(rng, call.blocks, (2,), np.dtype("f4")))))


def _names(call: Call, _: Any, rng: Random) -> None:
    """A name that there is none of, or twice."""
    name = rng.choice(("q", "p", "P0", "p0", "p1", "self", "", "arguments"))
    call.named[name] = rng.choice((1, None, view(rng, call.blocks, (2,), np.dtype("f4"))))


def _wrong_out(call: Call, sizes: dict[str, int], rng: Random) -> None:
    places = list(call.out) if isinstance(call.out, list | tuple) else [call.out]
    # An earlier mutation may have left no place, and a function may return nothing.
    if call.function.kind == "tensor" or call.out is _MISSING or not places:
        call.out = rng.choice(JUNK)
        return
    k = rng.randrange(len(places))
    match rng.choice(("few", "more", "junk", "locked", "dtype", "shape", "same")):
        case "few":
            places.pop()
        case "more":
            places.append(places[0])
        case "junk":
            places[k] = rng.choice(JUNK)
        case "locked" if isinstance(places[k], View):
            places[k] = replace(places[k], origin="locked")
        case "same":
            places = [places[0]] * len(places)
        case "dtype" if isinstance(places[k], View):
            places[k] = view(rng, call.blocks, places[k].shape, numpy_type(rng.choice(DTYPES)))
        case "shape" if isinstance(places[k], View):
            places[k] = view(rng, call.blocks, (*places[k].shape, 2), places[k].dtype)
    call.out = places


_MUTATIONS = (
    _junk,
    _junk,
    _dtype,
    _rank,
    _size,
    _size,
    _enormous,
    _lie,
    _lock,
    _count,
    _names,
    _wrong_out,
)


# ---- the model ----------------------------------------------------------------------------------


def in_order(call: Call) -> list[Any] | None:
    """An argument per parameter; None where there is not one for each."""
    f, names = call.function, [p.name for p in call.function.params]
    if call.out is not _MISSING and f.kind == "tensor":
        return None
    if len(call.positional) > len(names):
        return None
    remaining_names = names[len(call.positional) :]
    if set(call.named) != set(remaining_names):
        return None
    return [*call.positional, *(call.named[n] for n in remaining_names)]


def expected(call: Call) -> tuple[list[Any], list[Any]] | None:
    """Memory after the call and its results; None when it is refused."""
    f, arguments = call.function, in_order(call)
    if arguments is None:
        return None
    blocks = [b.copy() for b in call.blocks]
    values: list[Any] = []
    for p, a in zip(f.params, arguments, strict=True):
        value = _value(p, a, blocks)
        if value is None:
            return None
        values.append(value)
    sizes = bind(f, {i: v.shape for i, v in enumerate(values) if f.params[i].dims is not None})
    if sizes is None or any(v.size > 1 << 40 for v in values):
        return None
    writes = compute(f, [np.array(v) if v.ndim else v for v in values])
    if f.kind == "tensor":
        for place, array in writes:
            _write(arguments[place].array(blocks), array)
        return blocks, []
    if call.out is _MISSING or call.out is None:
        return blocks, [array for _, array in writes]
    places = call.out if isinstance(call.out, list | tuple) else [call.out]
    if len(places) != len(writes) or not all(isinstance(v, View) for v in places):
        return None
    for v, (_, array), (dtype, _) in zip(places, writes, f.results, strict=True):
        if not v.taken(dtype, True) or v.shape != array.shape:
            return None
    for v, (_, array) in zip(places, writes, strict=True):
        _write(v.array(blocks), array)
    return blocks, []


def _value(p: Param, a: Any, blocks: Sequence[Any]) -> Any:
    """What a parameter is given, as an array or a number of its type; None when it is refused."""
    if p.dims is None:
        return None if isinstance(a, View) else converted(p.dtype, a)
    if isinstance(a, np.generic):
        return np.asarray(a) if a.dtype == numpy_type(p.dtype) and not p.written else None
    if not isinstance(a, View) or not a.taken(p.dtype, p.written):
        return None
    return a.array(blocks)


def _write(place: Any, values: Any) -> None:
    """Element by element: of those that share memory the last one stays."""
    for index in np.ndindex(place.shape):
        place[index] = values[index]


# ---- making the calls ---------------------------------------------------------------------------


def outcome(call: Call, function: Any) -> str:
    """What is wrong with a call, or nothing."""
    want = expected(call)
    before = [b.copy() for b in call.blocks]
    positional = [call.real(a) for a in call.positional]
    named = {k: call.real(a) for k, a in call.named.items()}
    if call.out is not _MISSING:
        named["out"] = call.real(call.out)
    try:
        result = function(*positional, **named)
    except UserError as error:
        if want is not None:
            return f"refused, and the model takes it: {type(error).__name__}: {error}"
        return _differences(call.blocks, before, "a refused call wrote memory")
    except BaseException as error:
        return f"bare {type(error).__name__}: {error}"
    if want is None:
        return "taken, and the model refuses it"
    blocks, results = want
    difference = _differences(call.blocks, blocks, "memory is wrong")
    if difference or not results:
        if not difference and result is not (
            named.get("out") if call.function.kind == "graph" else None
        ):
            return f"the result is {result!r}"
        return difference
    results_of_call = result if isinstance(result, tuple) else (result,)
    for g, w in zip(results_of_call, results, strict=True):
        if not isinstance(g, Tensor) or g.dtype != w.dtype or g.shape != w.shape:
            return f"the result is {g!r}, expected {w!r}"
        if g.numpy().tobytes() != w.tobytes():
            return f"the result is {g.tolist()}, expected {w.tolist()}"
    return ""


def _differences(memory: Sequence[Any], want: Sequence[Any], words: str) -> str:
    for k, (a, b) in enumerate(zip(memory, want, strict=True)):
        if not np.array_equal(a, b):
            return f"{words}: block {k} at byte {int(np.nonzero(a != b)[0][0])}"
    return ""


def call_number(k: int, seed: int, functions_drawn: Sequence[Function]) -> Call:
    """Call k of a seed."""
    rng = Random(f"call {seed} {k}")
    return make_call(rng.choice(functions_drawn), rng)


def shown(call: Call) -> str:
    """A call in a line."""
    named = call.named if call.out is _MISSING else {**call.named, "out": call.out}
    return f"{call.function.name}(*{call.positional}, **{named}) of {call.function.params}"


def main(library: str, *numbers: str) -> None:
    """As the module says."""
    seed, count, first, calls = map(int, numbers)
    warnings.simplefilter("ignore")
    functions_drawn = functions(seed, count)
    executor = Executor(load_module(library))
    accepted = 0
    for k in range(first, first + calls):
        call = call_number(k, seed, functions_drawn)
        print(k, flush=True)
        accepted += expected(call) is not None
        wrong = outcome(call, executor[call.function.name])
        if wrong:
            print(f"! {k}: {wrong}\n    {shown(call)}", flush=True)
    print(f"= {accepted} taken", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

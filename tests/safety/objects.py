"""Objects whose protocol methods misbehave."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from tests.exports import Exports

ERRORS: tuple[type[BaseException], ...] = (
    ValueError,
    TypeError,
    RuntimeError,
    BufferError,
    MemoryError,
    RecursionError,
    StopIteration,
    KeyboardInterrupt,
    SystemExit,
    AttributeError,
    OSError,
)
NONSENSE = (
    None,
    0,
    -1,
    1 << 70,
    1.5,
    float("nan"),
    "text",
    b"bytes",
    (),
    (1,),
    (1, 0),
    (1, 0, 2),
    [],
    {},
    (2, 0),
    (1 << 40, 0),
    object(),
    int,
    NotImplemented,
    True,
    np.float32(1),
    np.zeros(3),
)
METHODS = (
    "__dlpack__",
    "__dlpack_device__",
    "__array__",
    "__array_interface__",
    "__buffer__",
    "__index__",
    "__int__",
    "__float__",
    "__bool__",
    "__len__",
    "__getitem__",
    "__iter__",
    "__hash__",
    "__eq__",
    "__getattr__",
    "__class__",
    "__del__",
    "shape",
    "dtype",
    "ndim",
    "flags",
    "__call__",
)
# What a method may do besides answering.
DEEDS = ("raise", "nonsense", "call", "close", "mutate", "collect", "twice")


def misbehaving(
    rng: Random, array: Any, call: Callable[[], object], close: Callable[[], object]
) -> tuple[object, BaseException, str]:
    """Something in the place of an array, whose method does what it should not; what it may raise,
    and its name.

    `call` calls the library, `close` closes it.
    """
    method, deed = rng.choice(METHODS[:2] * 8 + METHODS), rng.choice(DEEDS)
    error, answer = rng.choice(ERRORS)("raised"), rng.choice(NONSENSE)
    is_array = rng.random() < 0.3
    busy: list[int] = []

    def act(self: Any, *arguments: Any, **options: Any) -> Any:
        if deed == "raise":
            raise error
        if deed == "nonsense":
            return answer
        if not busy:
            busy.append(1)
            try:
                _do(deed, array, call, close)
            finally:
                busy.clear()
        if method == "__dlpack__":
            return array.__dlpack__(**options)
        return array if method == "__array__" else answer

    base: tuple[type, ...] = (np.ndarray,) if is_array else (Exports,)
    value: Any = act
    if method in ("shape", "dtype", "ndim", "flags", "__array_interface__", "__class__"):
        value = property(act)
    misbehaving_class: Any = type("Misbehaving", base, {method: value})
    misbehaving_object = array.view(misbehaving_class) if is_array else misbehaving_class(array)
    words = f"{method} {deed} {type(error).__name__} {type(answer).__name__}"
    return misbehaving_object, error, f"{'ndarray' if is_array else 'object'} {words}"


def _do(deed: str, array: Any, call: Callable[[], object], close: Callable[[], object]) -> None:
    if deed == "call":
        call()
    elif deed == "close":
        close()
    elif deed == "mutate" and array.flags.writeable:
        array[...] = 1
        array.resize((1,) * array.ndim, refcheck=False) if array.flags.owndata else None
    elif deed == "collect":
        import gc

        gc.collect()

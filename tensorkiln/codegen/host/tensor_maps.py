"""Tensor maps: what the tensor memory accelerator of a GPU has to know of a tensor of which it
copies boxes, and the C of it. The runtime makes the map itself at each launch
(crt/cuda_maps.c)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Types by the number that the driver has for them (CUtensorMapDataType).
MAPPED_TYPES = {"float16": 6, "bfloat16": 9}
SWIZZLE_BYTES = 128  # of a row of a box: all maps here have this pattern
MOST_MAPS, MOST_PARAMS = 8, 64  # of a function: maps; all that a launch gives it
MAP_BYTES = 128


@dataclass(frozen=True, slots=True)
class Size:
    """A number: `factor`, times the value of parameter `param` of the function if there is one."""

    factor: int
    param: int | None = None

    def at(self, args: Sequence[object]) -> int:
        """Its value for the arguments of a launch."""
        return self.factor if self.param is None else self.factor * int(str(args[self.param]))

    def times(self, n: int) -> Size:
        """So many times as much."""
        return Size(self.factor * n, self.param)

    def entry(self) -> object:
        """It in JSON."""
        return self.factor if self.param is None else {"param": self.param, "times": self.factor}


@dataclass(frozen=True, slots=True)
class PixelWindows:
    """The windows of images whose pixels are copied one after the other, along columns and rows:
    the first and the last one (from the first and the last pixel of the image), and the distance
    from one to the next."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...]

    def entry(self) -> dict[str, object]:
        """The entry of a table of device functions."""
        return {k: list(getattr(self, k)) for k in ("lower", "upper", "steps")}


@dataclass(frozen=True, slots=True)
class TensorMap:
    """Of parameter `param` of a function: its elements along each dimension, bytes from one element
    to the next along all but the first, and elements of a box. Innermost dimensions come first. Of
    windows of images, a box has channels and pixels."""

    param: int
    dtype: str
    dims: tuple[Size, ...]
    strides: tuple[Size, ...]
    box: tuple[int, ...]
    window: PixelWindows | None = None

    def entry(self) -> dict[str, object]:
        """The row of a table of device functions."""
        window = {} if self.window is None else {"window": self.window.entry()}
        return {
            "param": self.param,
            "dtype": self.dtype,
            "dims": [s.entry() for s in self.dims],
            "strides": [s.entry() for s in self.strides],
            "box": list(self.box),
            "swizzle": SWIZZLE_BYTES,
            **window,
        }

    def c_text(self, name: str) -> str:
        """Its definition in C, as a kiln_tensor_map."""
        sizes = self.dims, self.strides
        rows = [*([s.factor for s in factors] for factors in sizes), self.box]
        w = self.window
        if w is not None or any(s.param is not None for factors in sizes for s in factors):
            rows += [[0 if s.param is None else 1 + s.param for s in factors] for factors in sizes]
        if w is not None:
            rows += [w.lower, w.upper, w.steps]
        numbers = ", ".join(f"{{{', '.join(map(str, row))}}}" for row in rows)
        head = f"static const kiln_tensor_map {name} = {{"
        return (
            f"{head}\n    {self.param}, {MAPPED_TYPES[self.dtype]}, {len(self.dims)}, {numbers}}};"
        )


__all__ = [
    "MAPPED_TYPES",
    "MAP_BYTES",
    "MOST_MAPS",
    "MOST_PARAMS",
    "SWIZZLE_BYTES",
    "Size",
    "TensorMap",
]

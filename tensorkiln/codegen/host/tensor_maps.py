"""Tensor maps: what the tensor memory accelerator of a GPU has to know of a tensor of which it
copies boxes, and the C of it. The runtime makes the map itself at each launch
(crt/cuda_maps.c)."""

from __future__ import annotations

from dataclasses import dataclass

# Types by the number that the driver has for them (CUtensorMapDataType).
MAPPED_TYPES = {"float16": 6, "bfloat16": 9}
SWIZZLE_BYTES = 128  # of a row of a box: all maps here have this pattern
MOST_MAPS, MOST_PARAMS = 8, 64  # of a function: maps; all that a launch gives it
MAP_BYTES = 128


@dataclass(frozen=True, slots=True)
class TensorMap:
    """Of parameter `param` of a function: its elements along each dimension, bytes from one element
    to the next along all but the first, and elements of a box. Innermost dimensions come first."""

    param: int
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]

    def entry(self) -> dict[str, object]:
        """The row of a table of device functions."""
        return {
            "param": self.param,
            "dtype": self.dtype,
            "dims": list(self.dims),
            "strides": list(self.strides),
            "box": list(self.box),
            "swizzle": SWIZZLE_BYTES,
        }

    def c_text(self, name: str) -> str:
        """Its definition in C, as a kiln_tensor_map."""
        numbers = [
            f"{{{', '.join(map(str, given))}}}" for given in (self.dims, self.strides, self.box)
        ]
        head = f"static const kiln_tensor_map {name} = {{"
        rest = (
            f"{self.param}, {MAPPED_TYPES[self.dtype]}, {len(self.dims)}, {', '.join(numbers)}}};"
        )
        return f"{head}\n    {rest}"


__all__ = ["MAPPED_TYPES", "MAP_BYTES", "MOST_MAPS", "MOST_PARAMS", "SWIZZLE_BYTES", "TensorMap"]

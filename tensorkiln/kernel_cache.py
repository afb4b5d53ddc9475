"""Kernels in the cache, found by what they were made from.

A kernel is determined by its `KernelKey`, its name, the processor and this compiler. The compile
that makes a kernel stores several entries, so that a later one finds it without scheduling it, and
uses as few of them as it needs:

    entry               key                                            a hit saves
    object              text of loops without names, symbol, target,   LLVM
                        sources of the code generators, version
    alias: the key of   text of the group, target, sources of the      printing and lowering
      an object         package, passes over loops                     the kernel
    head: parameters,   text of the group, target, sources             scheduling it
      class, ...
    text                as the alias, and all names                    making its program to be read
    LLVM IR, assembly   the key of an object                           emitting it to be read

The link has entries of its own: linked code (keyed by objects, C sources, exports, flags, tool, but
not weights), runtime objects and stubs. Kernels of families of other packages have no entries,
because their sources are unknown. The cache never changes a byte of an artifact.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tensorkiln.base.cache import Cache, key_of, user_cache
from tensorkiln.base.sources import source_digest
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.known_kernel import KernelKey, KnownKernel
from tensorkiln.ir.stmt import Param, PrimFunc
from tensorkiln.ir.text.printer import print_function


@dataclass(frozen=True, slots=True)
class KernelCache:
    """The cache entries of kernels in `store`: heads, aliases, texts and objects."""

    store: Cache

    def kernel(
        self,
        name: str,
        source: str,
        forms: Sequence[tuple[Param, Param]],
        make: Callable[[], PrimFunc],
    ) -> KnownKernel | None:
        """The kernel of `source`, under this name, if its head is stored; `make` makes its program.

        `forms` are the two forms of each parameter: the buffer with its shape, and flat.
        """
        head = self.store.get(key_of(_head_key(source)))
        if head is None:
            return None
        row = json.loads(head)
        params = tuple(
            next(p for p in pair if _rank(p) == rank)
            for pair, rank in zip(forms, row["ranks"], strict=True)
        )
        return KnownKernel(
            name,
            params,
            make,
            row["outputs"],
            tuple(row["inplace"]),
            row["op_class"],
            stack=row["stack"],
            features=frozenset(row["features"]),
        )

    def object(self, name: str, key: KernelKey, processor: str) -> tuple[str, bytes] | None:
        """The object of a kernel, with the key under which it is stored."""
        alias = self.store.get(key_of(_alias_key(name, key, processor)))
        content = self.store.get(alias.decode()) if alias is not None else None
        return (alias.decode(), content) if alias is not None and content is not None else None

    def text(self, name: str, key: KernelKey) -> str | None:
        """The text of a kernel's program."""
        data = self.store.get(key_of(_text_key(name, key)))
        return zlib.decompress(data).decode() if data is not None else None

    def remember(
        self,
        f: PrimFunc,
        key: KernelKey,
        processor: str,
        object_key: str,
        stack: int,
        features: Collection[str],
    ) -> None:
        """Store the head and the text of a kernel, and where its object is stored. `stack` are the
        bytes of its local buffers, `features` those of the processor that it is compiled with."""
        row = {
            "ranks": list(map(_rank, f.params)),
            "outputs": f.outputs,
            "inplace": f.inplace,
            "op_class": f.op_class,
            "stack": stack,
            "features": sorted(features),
        }
        for components, content in (
            (_alias_key(f.name, key, processor), object_key.encode()),
            (_head_key(key.source), json.dumps(row).encode()),
            (_text_key(f.name, key), zlib.compress(print_function(f).encode(), 1)),
        ):
            self.store.put(key_of(components), content, components)


def kernel_cache() -> KernelCache | None:
    """The kernels in the user's cache; None if it is turned off."""
    store = user_cache()
    return KernelCache(store) if store is not None else None


def _rank(p: Param) -> int:
    return len(p.shape) if isinstance(p, Buffer) else 0


def _head_key(source: str) -> dict[str, str]:
    return {"kind": "head", "source": source, "compiler": source_digest()}


def _body_key(key: KernelKey) -> dict[str, str]:
    return {**_head_key(key.source), "kind": "body", "steps": " ".join(key.steps)}


def _alias_key(name: str, key: KernelKey, processor: str) -> dict[str, str]:
    return {**_body_key(key), "symbol": name, "target": processor}


def _text_key(name: str, key: KernelKey) -> dict[str, str]:
    """The key of a kernel's text. Unlike the key of an object, it contains all names."""
    return {**_body_key(key), "kind": "tir text", "names": json.dumps([name, *key.names])}

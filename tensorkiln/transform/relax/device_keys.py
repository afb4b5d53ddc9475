"""The devices that the attributes `target` of a caller's functions name, by their keys."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.relax import Function
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.target import Target, accelerators, device_named, devices_of
from tensorkiln.transform.tir.split_device import has_threads


def with_device_keys(mod: IRModule, target: Target, runs_passes: bool) -> IRModule:
    """The module with the key of the device in each attribute `target` that names one by its text.

    Raises UserError for an invalid text; UnsupportedError for one that is neither the target of
    this compile nor its CPU or a device, and for what does not run beside devices with memory of
    their own: tensor programs without loops over threads, unless no graph passes run
    (`runs_passes`), and host steps, which allocate as they run.
    """
    accelerator_keys, functions = accelerators(target), list[AnyFunction]()
    for f in mod.functions:
        named = device_named(f.attrs.get("target"), target, f.name)
        if f.attrs.get("target") and not named and isinstance(f, PrimFunc) and accelerator_keys:
            named = accelerator_keys[0]  # the text of a target that is one device
        threads = isinstance(f, PrimFunc) and has_threads(f.body)
        if named in accelerator_keys and isinstance(f, PrimFunc) and runs_passes and not threads:
            raise UnsupportedError(
                f"a tensor program without loops over the threads of device {named!r}",
                where=f.name,
                hint='T.thread_binding(n, thread="blockIdx.x"), or `bind` of its Schedule',
            )
        if accelerator_keys and isinstance(f, Function) and f.is_outer:
            raise UnsupportedError(
                "branches, loops and values other than tensors beside "
                f"{', '.join(accelerator_keys)}, which has memory of its own",
                where=f.name,
                hint="a target of CPUs, or straight-line functions",
            )
        if named in devices_of(target) and named != f.attrs.get("target"):
            f = replace(f, attrs=Attrs.of(**dict(f.attrs) | {"target": named}))
        functions.append(f)
    is_unchanged = all(a is b for a, b in zip(functions, mod.functions, strict=True))
    return mod if is_unchanged else mod.with_functions(tuple(functions))


__all__ = ["with_device_keys"]

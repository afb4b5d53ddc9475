"""Checks of the arguments of `from_torch`, before torch sees them: torch's own messages would name
functions that the user has not called."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tensorkiln.base.errors import UserError, nearest, require


def check_module(module: Any) -> None:
    """Raise UserError (code `bad-model`) unless `module` is a `torch.nn.Module` none of whose
    parameters and buffers is on the device `meta`, where tensors have no values."""
    import torch

    if not isinstance(module, torch.nn.Module):
        description = module.__name__ if isinstance(module, type) else f"a {type(module).__name__}"
        hint = f"pass an instance, {description}(...)" if isinstance(module, type) else ""
        raise UserError(
            f"expected a torch.nn.Module, got {description}", code="bad-model", hint=hint
        )
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_meta:
            raise UserError(
                f"{name} of {type(module).__name__} is on the device 'meta' and has no values",
                code="bad-model",
                hint="module.to_empty(device='cpu') and load_state_dict(...)",
            )


def check_inputs(
    module: Any, example_inputs: Any, kwargs: Any = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return `example_inputs` as a tuple of positional arguments, and `kwargs` as a dict of named
    ones, that fit the signature of `module.forward`.

    Raises UserError (code `bad-inputs`) if they do not, if `example_inputs` is not a sequence, or
    if it holds an array that is not a torch.Tensor, such as one of NumPy.
    """
    import torch

    if isinstance(example_inputs, torch.Tensor | str | Mapping) or not hasattr(
        example_inputs, "__iter__"
    ):
        raise UserError(
            f"example_inputs is a {type(example_inputs).__name__}, expected the positional "
            "arguments of a call in a tuple or list",
            code="bad-inputs",
            hint="(x,) for one argument",
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise UserError(
            f"kwargs is a {type(kwargs).__name__}, expected arguments by name in a dict",
            code="bad-inputs",
        )
    args, named = tuple(example_inputs), dict(kwargs or {})
    places = [(f"example_inputs[{i}]", arg) for i, arg in enumerate(args)]
    places += [(f"kwargs[{name!r}]", arg) for name, arg in named.items()]
    for place, leaf in ((place, leaf) for place, arg in places for leaf in _leaves(arg)):
        if hasattr(leaf, "__array__") and not isinstance(leaf, torch.Tensor):
            raise UserError(
                f"{place} is a {type(leaf).__name__}, expected a torch.Tensor",
                code="bad-inputs",
                hint="torch.from_numpy(array)",
            )
    try:
        inspect.signature(module.forward).bind(*args, **named)
    except TypeError as error:
        raise UserError(
            f"{type(module).__name__}.forward{_parameters(module)} does not take {len(args)} "
            f"positional argument(s){_also(named)}: {error}",
            code="bad-inputs",
            hint="example_inputs are the positional arguments of one call, kwargs those with names",
        ) from error
    except ValueError:  # `forward` is a built-in without a signature
        pass
    return args, named


def _also(named: Mapping[str, Any]) -> str:
    return f" and {', '.join(named)}" if named else ""


def _parameters(module: Any) -> inspect.Signature:
    """The signature of `module.forward` without its annotations, which may be long."""
    signature = inspect.signature(module.forward)
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return signature.replace(parameters=plain, return_annotation=signature.empty)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)
    else:
        yield value


def check_names(option: str, names: Any) -> list[str] | None:
    """Return `names` as a list, or None if it is None.

    Raises UserError (code `bad-names`) unless they are distinct, non-empty strings in a sequence.
    """
    if names is None:
        return None
    many = isinstance(names, Sequence) and not isinstance(names, str)
    if not many or not all(isinstance(name, str) and name for name in names):
        raise UserError(f"{option} is {names!r}, expected a list of names", code="bad-names")
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise UserError(f"{option} holds {twice[0]!r} twice", code="bad-names")
    return list(names)


def check_count(option: str, names: list[str] | None, values: Sequence[Any]) -> None:
    """Raise UserError (code `bad-names`) if there are more names than inputs or outputs in
    `values`."""
    if names is not None and len(names) > len(values):
        raise UserError(
            f"{option} holds {len(names)} names, expected at most {len(values)}: "
            f"{names[len(values)]!r} is left over",
            code="bad-names",
        )


def check_dynamic_shapes(
    module: Any, args: tuple[Any, ...], named: Mapping[str, Any], shapes: Any
) -> None:
    """Raise UserError (code `bad-dynamic-shapes`) if `shapes` does not fit the arguments.

    A tuple or list needs one entry for each argument; a dict may only have names of arguments; an
    entry may only mention axes of its tensor. `torch.export` checks the values.
    """
    if shapes is None:
        return
    option = "dynamic_shapes"
    if isinstance(shapes, Mapping):
        names = list(inspect.signature(module.forward).parameters)
        for name in shapes:
            if name not in names:
                hint = nearest(str(name), names) or f"it takes {', '.join(names)}"
                message = f"{type(module).__name__}.forward has no argument {name!r}"
                raise UserError(message, code="bad-dynamic-shapes", where=option, hint=hint)
        arguments = {**dict(zip(names, args, strict=False)), **named}
        pairs = [(f"[{n!r}]", a, shapes[n]) for n, a in arguments.items() if n in shapes]
    elif isinstance(shapes, tuple | list):
        if named:
            raise UserError(
                "expected a dict by the names of all arguments, since some are given by name",
                code="bad-dynamic-shapes",
                where=option,
            )
        if len(shapes) != len(args):
            raise UserError(
                f"{len(shapes)} entries for {len(args)} example input(s)",
                code="bad-dynamic-shapes",
                where=option,
            )
        pairs = [(f"[{i}]", a, s) for i, (a, s) in enumerate(zip(args, shapes, strict=True))]
    else:
        raise UserError(
            f"expected a tuple with an entry for each argument, or a dict by their names, got a "
            f"{type(shapes).__name__}",
            code="bad-dynamic-shapes",
            where=option,
        )
    for place, arg, entry in pairs:
        for axis in axes_of(arg, entry):
            if not isinstance(axis, int) or not -arg.ndim <= axis < arg.ndim:
                raise UserError(
                    f"there is no axis {axis!r}: the example has shape {list(arg.shape)}",
                    code="bad-dynamic-shapes",
                    where=option + place,
                )


def axes_of(arg: Any, entry: Any) -> list[Any]:
    """The axes of tensor `arg` that its entry of `dynamic_shapes` mentions; empty if `arg` is not a
    tensor."""
    if not hasattr(arg, "ndim"):
        return []
    if isinstance(entry, tuple | list):
        entry = dict(enumerate(entry))
    return list(entry) if isinstance(entry, Mapping) else []


def check_open(args: tuple[Any, ...], shapes: Any, inputs: Sequence[Any]) -> None:
    """Raise UserError (code `bad-dynamic-shapes`) if a dimension that `shapes` names has a fixed
    size in `inputs`, the inputs of the exported graph.

    torch does not report it when the module's code only works for one size and it exports that.
    """
    import torch

    entries = list(shapes.values()) if isinstance(shapes, Mapping) else list(shapes or ())
    if len(entries) != len(args) or len(inputs) != len(args):
        return  # some arguments are nested or not tensors, so that inputs do not correspond
    for arg, entry, value in zip(args, entries, inputs, strict=True):
        table = dict(enumerate(entry)) if isinstance(entry, tuple | list) else entry
        for axis in axes_of(arg, entry):
            dim = table[axis]
            if isinstance(dim, torch.export.Dim | str) and isinstance(value.shape[axis], int):
                name = dim if isinstance(dim, str) else dim.__name__
                raise UserError(
                    f"dimension {name!r} cannot stay open: the module takes {value.shape[axis]} "
                    f"for axis {axis} of {value.name!r} only",
                    code="bad-dynamic-shapes",
                    where="dynamic_shapes",
                )


def check_seed(seed: Any) -> None:
    """Raise UserError unless `seed` is None or one that `numpy.random.RandomState` takes."""
    if seed is None:
        return
    require(seed, int, "seed")
    if not 0 <= seed < 2**32:
        raise UserError(f"seed is {seed}, expected 0 to {2**32 - 1}", code="bad-value")

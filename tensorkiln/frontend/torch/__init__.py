"""Convert PyTorch modules and programs to IRModule: `from_torch`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.packages import missing_package
from tensorkiln.frontend.torch.arguments import (
    check_count,
    check_dynamic_shapes,
    check_inputs,
    check_module,
    check_names,
    check_open,
    check_seed,
)
from tensorkiln.frontend.torch.failures import export_error
from tensorkiln.frontend.torch.quiet import quiet
from tensorkiln.ir.module import IRModule

_ROUTES = ("export", "onnx")
_STATES = ("refuse", "arguments")


def from_torch(
    module: Any,
    example_inputs: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    from_onnx: Callable[..., IRModule],
    dynamic_shapes: Any = None,
    freeze: Mapping[str, int] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    state: str = "refuse",
    via: str = "export",
    seed: int | None = None,
) -> IRModule:
    """Import a `torch.nn.Module` as a module with one function, `main`, in evaluation mode; or a
    `torch.export.ExportedProgram`, which has its example inputs and dynamic shapes already.

    `example_inputs` and `kwargs` are the arguments of one call. Tensors among them become
    parameters of the same shape, except for dimensions that `dynamic_shapes` (in the form
    `torch.export` takes; a name stands for a `Dim` of that name) leaves open; a later call with a
    size outside the range of its `torch.export.Dim` is refused. Arguments that are not tensors
    become constants. `freeze` gives open dimensions a size.

    Inputs have the names of the parameters of `forward`, outputs those of keys and fields:
    `logits`, `cache.0.1`; `output` or `output_0` where there are none. `input_names` and
    `output_names` rename them, from the first on. Weights are views of the module's memory. The
    training flags of the module and its submodules are set to evaluation during the export and
    restored after it.

    Buffers that the model changes are refused by name, or with `state="arguments"` they are
    parameters after the inputs, and their new values results after the outputs, `new_<name>`.
    `via="onnx"` goes through torch's ONNX exporter and `from_onnx`, the importer of ONNX models,
    instead, and names are the exporter's.
    `seed`, from 0 to 2**32-1, is for random numbers, which are constants: those of
    `numpy.random.RandomState(seed)` in the order of the program. Without one they are refused.

    Raises UserError for wrong arguments, if torch is not installed, or if it cannot export the
    module (code `export-failed`); UnsupportedError with all operators that are not supported, each
    with the module and the line of the model's code. The `__cause__` of a failed export is torch's
    own exception.
    """
    try:
        import torch
    except ImportError:
        instead = "export to ONNX and use from_onnx"
        raise missing_package("torch", "from_torch", instead) from None
    _check_choice("via", via, _ROUTES)
    _check_choice("state", state, _STATES)
    check_seed(seed)
    names = {
        "input_names": check_names("input_names", input_names),
        "output_names": check_names("output_names", output_names),
    }
    if isinstance(module, torch.export.ExportedProgram):
        return _from_program(
            module, example_inputs, kwargs, dynamic_shapes, freeze, names, state, via, seed
        )
    check_module(module)
    args, named = check_inputs(module, example_inputs, kwargs)
    check_dynamic_shapes(module, args, named, dynamic_shapes)
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        if via == "onnx":
            for option, is_set in {
                'state="arguments"': state != "refuse",
                "seed": seed is not None,
            }.items():
                if is_set:
                    raise UserError(f'{option} needs via="export"', code="bad-option")
            return _by_onnx(module, args, named, dynamic_shapes, freeze, names, from_onnx)
        return _by_export(module, args, named, dynamic_shapes, freeze, names, state, seed)
    finally:
        for m, training in modes:
            m.training = training


def _check_choice(option: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise UserError(
            f"{option} is {value!r}, expected {' or '.join(map(repr, choices))}",
            code="bad-option",
            hint=nearest(str(value), choices),
        )


def _from_program(
    program: Any,
    example_inputs: Sequence[Any],
    kwargs: Any,
    dynamic_shapes: Any,
    freeze: Mapping[str, int] | None,
    names: dict[str, list[str] | None],
    state: str,
    via: str,
    seed: int | None,
) -> IRModule:
    settings = {"example_inputs": bool(example_inputs), "kwargs": bool(kwargs)}
    settings |= {"dynamic_shapes": dynamic_shapes is not None, 'via="onnx"': via != "export"}
    for option, set_ in settings.items():
        if set_:
            raise UserError(f"{option} has no use for an ExportedProgram", code="bad-option")
    return _imported(program, program, {}, freeze, names, state, seed)


def _by_export(
    module: Any,
    args: tuple[Any, ...],
    named: dict[str, Any],
    dynamic_shapes: Any,
    freeze: Mapping[str, int] | None,
    names: dict[str, list[str] | None],
    state: str,
    seed: int | None,
) -> IRModule:
    import torch

    from tensorkiln.frontend.torch.program import dimension_names
    from tensorkiln.frontend.torch.recurrent import whole_recurrences

    shapes = _with_dims(dynamic_shapes)
    try:
        with quiet(), whole_recurrences(), torch.no_grad():
            program = torch.export.export(module, args, named, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        failure, cause = export_error(module, error)
        raise failure from cause
    arguments = _bound(module, args, named)
    dims = dimension_names(program, list(arguments), list(arguments.values()), dynamic_shapes)
    return _imported(module, program, dims, freeze, names, state, seed)


def _bound(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """The arguments by the names of parameters, in torch's order: those by position first."""
    try:
        words = list(inspect.signature(module.forward).parameters)
    except ValueError:
        words = []
    words += [f"args_{k}" for k in range(len(words), len(args))]
    return {**dict(zip(words, args, strict=False)), **named}


def _imported(
    module: Any,
    program: Any,
    dims: Mapping[Any, str],
    freeze: Mapping[str, int] | None,
    names: dict[str, list[str] | None],
    state: str,
    seed: int | None,
) -> IRModule:
    import torch

    from tensorkiln.frontend.torch.program import decomposed, import_program

    try:
        with quiet(), torch.no_grad():
            plain = decomposed(program)
    except Exception as error:
        failure, cause = export_error(module, error)
        raise failure from cause
    kind = "model" if module is program else type(module).__name__
    return import_program(
        plain,
        name=kind,
        dims=dims,
        freeze=freeze,
        state=state,
        seed=seed,
        input_names=names["input_names"],
        output_names=names["output_names"],
    )


def _with_dims(shapes: Any) -> Any:
    """`dynamic_shapes` with a `torch.export.Dim` for each name; one name is one dimension."""
    import torch

    dims: dict[str, Any] = {}

    def walk(entry: Any) -> Any:
        if isinstance(entry, str):
            if not entry.isidentifier():
                raise UserError(f"dimension {entry!r} is no identifier", code="bad-dynamic-shapes")
            return dims.setdefault(entry, torch.export.Dim(entry))
        if isinstance(entry, Mapping):
            return {k: walk(v) for k, v in entry.items()}
        return type(entry)(map(walk, entry)) if isinstance(entry, tuple | list) else entry

    return walk(shapes)


def _by_onnx(
    module: Any,
    args: tuple[Any, ...],
    named: dict[str, Any],
    dynamic_shapes: Any,
    freeze: Mapping[str, int] | None,
    names: dict[str, list[str] | None],
    from_onnx: Callable[..., IRModule],
) -> IRModule:
    from tensorkiln.frontend.torch.via_onnx import exported, imported

    program = exported(module, args, named, dynamic_shapes=dynamic_shapes, **names)
    graph = program.model.graph
    check_count("input_names", names["input_names"], graph.inputs)
    check_count("output_names", names["output_names"], graph.outputs)
    check_open(args, dynamic_shapes, graph.inputs)
    return imported(module, program, freeze, from_onnx)

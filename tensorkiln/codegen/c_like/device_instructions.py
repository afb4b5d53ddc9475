"""Device instructions, as the table has them for a language (`ir/device_instructions.py`).

Each becomes a function with the types of its operands, so an operand is computed once whatever the
text does with it.
"""

from __future__ import annotations

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.codegen.c_like.code import call
from tensorkiln.codegen.c_like.memory import offset, pointer
from tensorkiln.codegen.c_like.types import define, type_name
from tensorkiln.codegen.c_like.writer import TextWriter
from tensorkiln.codegen.device_functions import instructions_in
from tensorkiln.ir.buffer import Load
from tensorkiln.ir.device_instructions import (
    DEVICE_INSTRUCTIONS,
    SUBGROUP,
    DeviceInstruction,
    InstructionText,
)
from tensorkiln.ir.expr import Intrin, int_value
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.target import Target


def text_of(row: DeviceInstruction, codegen: str, target: Target) -> InstructionText | None:
    """The text of a row for a code generator and target; None if there is none."""
    texts = row.text.get(codegen, ())
    return next((t for t in texts if not t.option or target[t.option]), None)


def device_instruction(w: TextWriter, e: Intrin) -> str:
    """A call of the function that is the instruction."""
    row, codegen = DEVICE_INSTRUCTIONS[e.name], w.dialect.instructions
    instruction = text_of(row, codegen, w.target)
    assert instruction is not None, e.name  # require_instructions
    operands = e.args[:-1] if row.participants == SUBGROUP else e.args
    args, parameters, name, space = [], [], f"{e.name}_{type_name(e.dtype)}", ""
    for k, a in enumerate(operands):
        if k in row.memory:
            assert isinstance(a, Load)
            place, _ = offset(w, a.buffer, a.indices)
            args.append(pointer(w, a.buffer, place))
            space = w.dialect.spaces[a.buffer.scope]
            name += f"_{a.buffer.scope}"
            t = f"{space}const {w.dialect.element(a.dtype)} *"
        else:
            args.append(w.value(a))
            t = w.type(a.dtype)
        parameters.append((t, "abc"[k]))
    text = instruction.text.format(lanes=e.dtype.lanes, space=space)
    return call(
        w.helper(name, lambda: define(w, w.type(e.dtype), name, parameters, [], text)), *args
    )


def require_instructions(f: PrimFunc, codegen: str, target: Target) -> tuple[str, ...]:
    """The extensions of a device that the instructions of a function need. Raises UnsupportedError
    for one without text here, or whose sub-groups are not those of the target."""
    extensions: list[str] = []
    for e in instructions_in(f):
        row = DEVICE_INSTRUCTIONS[e.name]
        instruction = text_of(row, codegen, target)
        if instruction is None:
            options = [t.option for t in row.text.get(codegen, ())]
            names = [k for k, entry in DEVICE_INSTRUCTIONS.items() if codegen in entry.text]
            hint = f"the target's code generator has {', '.join(names) or 'none'}"
            if options:
                hint = f'{{"{options[0]}": true}}, if the device has it'
            message = f"{e.name} is an instruction that the target does not have"
            raise UnsupportedError(message, where=f.name, hint=hint)
        if row.participants == SUBGROUP and int_value(e.args[-1]) != target["thread_warp_size"]:
            raise UnsupportedError(
                f"{e.name} over {int_value(e.args[-1])} threads, and sub-groups of the target have "
                f"{target['thread_warp_size']}",
                where=f.name,
                hint="the target's option thread_warp_size",
            )
        extensions += instruction.extensions
    return tuple(sorted(set(extensions)))


def uses_subgroups(f: PrimFunc) -> bool:
    """Whether a function has an instruction in which several threads take part."""
    return any(DEVICE_INSTRUCTIONS[e.name].participants == SUBGROUP for e in instructions_in(f))


__all__ = ["device_instruction", "require_instructions", "text_of", "uses_subgroups"]

"""The target of a compile that was given none: what functions say by their attribute `target`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tensorkiln.base.errors import UserError, nearest
from tensorkiln.target.composite import PLAIN
from tensorkiln.target.kinds import HOST, KINDS
from tensorkiln.target.target import Target


@dataclass(slots=True)
class _Annotations:
    """The targets that functions name, in order of their first function, and the names that are not
    targets."""

    targets: dict[Target, str] = field(default_factory=dict)  # with the function's name
    keys: dict[str, str] = field(default_factory=dict)


def annotated_target(annotations: Iterable[tuple[str, str]]) -> Target | None:
    """The target of functions whose attributes `target` are given as (function name, attribute):
    the one target that all name, or a composite of the targets that they name, in order; None if no
    function names one.

    A name may also be the key of one of these targets, or `host`. Raises UserError (code
    `unknown-device`) for a name that is neither a target nor such a key, and the errors of an
    invalid target.
    """
    distinct_annotations = _Annotations()
    for name, text in annotations:
        _note(distinct_annotations, name, text)
    device_keys = {HOST, *(t.target_key for t in distinct_annotations.targets if t.target_key)}
    for key, name in distinct_annotations.keys.items():
        if key not in device_keys:
            raise UserError(
                f"{key!r} is no target, nor the key of one that another function names",
                code="unknown-device",
                where=f"{name}.attrs.target",
                hint=nearest(key, (*KINDS, *device_keys)) or 'compile(target={"devices": [...]})',
            )
    targets = list(distinct_annotations.targets)
    if len(targets) < 2 and not any(t.target_key or t.operators for t in targets):
        return targets[0] if targets else None
    return Target({"kind": PLAIN, "devices": [t.to_json() for t in targets]})


def _note(distinct_annotations: _Annotations, name: str, text: str) -> None:
    try:
        distinct_annotations.targets.setdefault(Target(text), name)
    except UserError as error:
        if text.lstrip().startswith("{"):
            place = f"{name}.attrs.target"
            raise UserError(error.message, code=error.code, where=place, hint=error.hint) from None
        distinct_annotations.keys.setdefault(text, name)


__all__ = ["annotated_target"]

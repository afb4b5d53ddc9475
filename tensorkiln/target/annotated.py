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
    """Targets in the order of their first function, and what has no target's text."""

    targets: dict[Target, str] = field(default_factory=dict)  # with the function's name
    keys: dict[str, str] = field(default_factory=dict)


def annotated_target(annotations: Iterable[tuple[str, str]]) -> Target | None:
    """The target of functions of which (name, attribute `target`) are given: the one that all
    name, or a composite of those that they name, in their order; None if no function names one.

    A name that is the key of one of these targets, or `host`, stands for that. Raises UserError
    (code `unknown-device`) for another that is not a target, and those of an invalid target.
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

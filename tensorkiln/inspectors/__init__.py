"""Inspect the output of a compile, without running any of it (docs/howto/inspect.md)."""

from tensorkiln.inspectors.plugins import known_inspectors, register_inspector
from tensorkiln.inspectors.registry import Inspector, Inspectors
from tensorkiln.inspectors.subject import Absent, Subject, open_subject

__all__ = [
    "Absent",
    "Inspector",
    "Inspectors",
    "Subject",
    "known_inspectors",
    "open_subject",
    "register_inspector",
]

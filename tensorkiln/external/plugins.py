"""Externals by name: those of this package, and those of installed packages.

A package adds one with an entry point of group `tensorkiln.externals`, an `External` or a function
without arguments that returns one:

    [project.entry-points."tensorkiln.externals"]
    npu = "npu_tools.external:NPU"

Then `compile(..., externals=["npu"])` and `kiln compile --external npu` use it. None is used unless
it is named, since it changes what a library needs.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.plugin import bad_answer, plugin
from tensorkiln.external.external import External

GROUP = "tensorkiln.externals"
BUILT_IN = tuple(
    EntryPoint(name, value, GROUP)
    for name, value in (
        ("c_reference", "tensorkiln.external.example:C_REFERENCE"),
        ("cmsis_nn", "tensorkiln.external.cmsis_nn:CMSIS_NN"),
        ("cblas", "tensorkiln.external.cblas:cblas"),
        ("onednn", "tensorkiln.external.onednn:onednn"),
    )
)


def known_externals() -> dict[str, str]:
    """The names of all installed externals, with the package of each."""
    return {p.name: _package(p) for p in _points()}


def external_called(name: str) -> External:
    """The installed external of that name. Raises UserError: code `unknown-external` with the
    nearest name; `name-clash` if two packages have one of that name; `bad-external` for an entry
    point that is not an External or has another name; `plugin-failed` if it cannot be loaded."""
    points = [p for p in _points() if p.name == name]
    if not points:
        names = sorted(known_externals())
        hint = nearest(name, names) or f"there are {', '.join(names)}"
        raise UserError(f"no external {name!r} is installed", code="unknown-external", hint=hint)
    if len(points) > 1:
        packages = " and ".join(map(_package, points))
        raise UserError(
            f"external {name!r} is of packages {packages}",
            code="name-clash",
            hint="pass the object itself: externals=[...]",
        )
    label = f"external {name!r} of package {_package(points[0])}"
    with plugin(label):
        external: object = points[0].load()
        if callable(external) and not isinstance(external, External):
            external = external()
    if not isinstance(external, External):
        raise bad_answer(label, external, "an External", "bad-external")
    if external.name != name:
        message = f"{label} is named {external.name!r}, expected the name of its entry point"
        raise UserError(message, code="bad-external")
    return external


def _points() -> list[EntryPoint]:
    """All entry points, those of this package first."""
    installed = entry_points(group=GROUP)
    return [*BUILT_IN, *sorted(installed, key=lambda p: (_package(p), p.name))]


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "tensorkiln"

"""Licenses of the files in an archive that somebody else than the model's owner wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorkiln.artifact.components import archive_components
from tensorkiln.artifact.mlf.metadata import License, Model
from tensorkiln.base.version import VERSION
from tensorkiln.mlf.layout import RUNTIME, TEMPLATES


def licenses_of(models: Mapping[str, Model], paths: Sequence[str]) -> tuple[License, ...]:
    """The licenses of the components that have files in the archive: Tensorkiln's own, and sources
    of dependencies. What a compile makes of a model, generated C and kernels, is its owner's, and
    has none."""
    folders = [f for f in (RUNTIME, TEMPLATES) if any(p.startswith(f"{f}/") for p in paths)]
    components = archive_components(models, folders, VERSION)
    return tuple(License(c.license, c.name, "", c.files) for c in components if c.how == "embedded")

"""Licenses of the files in an archive that somebody else than the model's owner wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorkiln.artifact.mlf.metadata import License, Model
from tensorkiln.mlf.layout import RUNTIME, TEMPLATES

_SPDX = "Apache-2.0"  # of Tensorkiln, whose sources these are


def licenses_of(models: Mapping[str, Model], paths: Sequence[str]) -> tuple[License, ...]:
    """The licenses of files that others wrote: Tensorkiln's, and sources of dependencies. What a
    compile makes of a model, generated C and kernels, is its owner's, and has none."""
    own = [f for f in (RUNTIME, TEMPLATES) if any(p.startswith(f"{f}/") for p in paths)]
    found = [License(_SPDX, "Tensorkiln", "", tuple(own))] if own else []
    for model in models.values():
        found += [
            License(d.license, d.short_name, "", (model.bundled[d.short_name].path,))
            for d in model.external_dependencies
            if d.short_name in model.bundled
        ]
    return tuple(found)

"""Artifacts and what inspectors say of them as files in a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tensorkiln.artifact import ArtifactSet
from tensorkiln.artifact.manifest import listed_artifacts
from tensorkiln.base.errors import UserError
from tensorkiln.base.files import resolve_inside
from tensorkiln.base.folders import atomic_dir, write_list
from tensorkiln.inspectors.registry import Inspector, Inspectors, unknown_inspector
from tensorkiln.inspectors.subject import files_of


def extract(
    artifacts: ArtifactSet,
    inspectors: Inspectors,
    folder: str | Path,
    *,
    only: str = "",
    warn: Callable[[str], object],
) -> int:
    """Write `artifacts` as `ArtifactSet.save` does, and the texts beside them; how many texts.

    A text of one artifact is `<its file><writes>`, one of several `<short name><writes>`. `only`
    is an inspector's name: then its texts are all that is written beside, whether or not it says
    what they are to be called. What one inspector cannot read is told to `warn` and left out. The
    folder appears whole or not at all, and is replaced as `ArtifactSet.save` does. Raises UserError
    as that does, and for an unknown inspector.
    """
    wanted: list[tuple[str, Inspector, object]]
    files = files_of(artifacts)
    wanted = [(f"{a.name}{_writes(row)}", row, a) for a in files for row in inspectors.of(a)]
    wanted += [
        (f"{row.short_name}{_writes(row)}", row, found) for row, found in inspectors.groups(files)
    ]
    chosen = [w for w in wanted if (w[1].is_called(only) if only else w[1].writes)]
    if only and not chosen:
        raise unknown_inspector(only, (row for _, row, _ in wanted), str(folder))
    done = 0
    with atomic_dir(folder, listed_artifacts) as temporary:
        artifacts.save(temporary)
        for name, row, given in chosen:
            try:
                _write(resolve_inside(temporary, name), row.pieces(given))
                done += 1
            except UserError as error:
                warn(f"{name} is left out: {error}")
        write_list(temporary, without=listed_artifacts(temporary))
    return done


def _writes(row: Inspector) -> str:
    return row.writes or f".{row.name}.txt"


def _write(file: Path, shown: Iterable[str]) -> None:
    """The text, or nothing where it cannot be made to its end."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with file.open("x", encoding="utf-8", newline="\n") as stream:
            stream.writelines(shown)
    except FileExistsError:
        raise UserError("an artifact has that name", code="name-clash") from None
    except UserError:
        file.unlink()
        raise

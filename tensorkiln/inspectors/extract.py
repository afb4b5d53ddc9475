"""Write artifacts, and the texts that inspectors make of them, to a folder."""

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
    """Write `artifacts` as `ArtifactSet.save` does, and inspectors' texts beside them; return the
    number of texts.

    The text of one artifact is called `<its file><writes>`, of a group `<short name><writes>`.
    Without `only`, the inspectors with a `writes` suffix are used; with it, the inspectors of that
    name (`.<name>.txt` stands for a missing suffix). A text that an inspector cannot make is
    reported to `warn` and left out. The folder is written atomically, and a former one replaced, as
    by `ArtifactSet.save`. Raises UserError as that does, and for an unknown inspector.
    """
    outputs: list[tuple[str, Inspector, object]]
    files = files_of(artifacts)
    outputs = [(f"{a.name}{_writes(row)}", row, a) for a in files for row in inspectors.of(a)]
    outputs += [
        (f"{row.short_name}{_writes(row)}", row, group) for row, group in inspectors.groups(files)
    ]
    chosen = [w for w in outputs if (w[1].is_called(only) if only else w[1].writes)]
    if only and not chosen:
        raise unknown_inspector(only, (row for _, row, _ in outputs), str(folder))
    count = 0
    with atomic_dir(folder, listed_artifacts) as temporary:
        artifacts.save(temporary)
        for name, row, source in chosen:
            try:
                _write(resolve_inside(temporary, name), row.pieces(source))
                count += 1
            except UserError as error:
                warn(f"{name} is left out: {error}")
        write_list(temporary, without=listed_artifacts(temporary))
    return count


def _writes(row: Inspector) -> str:
    return row.writes or f".{row.name}.txt"


def _write(file: Path, pieces: Iterable[str]) -> None:
    """Write the text to a new file; the file is removed again if the inspector raises UserError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with file.open("x", encoding="utf-8", newline="\n") as stream:
            stream.writelines(pieces)
    except FileExistsError:
        raise UserError("an artifact has that name", code="name-clash") from None
    except UserError:
        file.unlink()
        raise

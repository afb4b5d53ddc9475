"""Progress of a compile, reported to an object that the caller passes; the default is silent."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from tensorkiln.base.errors import UserError
from tensorkiln.base.plugin import plugin
from tensorkiln.base.terminal import escaped, is_terminal, width_of, write_styled


class Progress:
    """Silent progress, and the base class of the others.

    A compile calls `phase(name, total)` when a phase begins, `advance()` for each of its `total`
    items, `note(text)` for what the user should know, and `finish()` once at the end. `phases`
    records the name of each finished phase and its duration in seconds, in order, and `notes` the
    notes. `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._started = clock()
        self._phase_started = self._started
        self.name = ""
        self.done = 0
        self.total = 0
        self.phases: list[tuple[str, float]] = []
        self.notes: list[str] = []

    def phase(self, name: str, total: int = 0) -> None:
        """Begin a phase and end the former; `total` is its number of items, 0 if unknown."""
        self._close()
        self.name, self.total, self.done = name, total, 0
        self._phase_started = self._clock()
        self._show_phase()

    def advance(self, count: int = 1, item: str = "") -> None:
        """Count `count` more items as done; `item` names the last of them."""
        self.done += count
        self._show_item(item)

    def note(self, text: str) -> None:
        """Show one line that the user should know."""
        self.notes.append(text)
        self._show_note(text)

    def finish(self) -> None:
        """End the last phase; safe to call twice."""
        if self.name:
            self._close()
            self._show_finish()

    def elapsed(self) -> float:
        """Seconds since this object was made."""
        return self._clock() - self._started

    def _close(self) -> None:
        if self.name:
            self.phases.append((self.name, self._clock() - self._phase_started))
            self._show_closed()
            self.name = ""

    def _show_phase(self) -> None:
        pass

    def _show_item(self, item: str) -> None:
        pass

    def _show_note(self, text: str) -> None:
        pass

    def _show_closed(self) -> None:
        pass

    def _show_finish(self) -> None:
        pass


_NAME = 22  # characters that the names of phases have, where there is room


def _fitted(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


class PlainProgress(Progress):
    """One line per phase, for logs."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.perf_counter):
        super().__init__(clock)
        self._stream = stream
        self._wide = _NAME  # characters of a phase's name

    def _line(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def _show_note(self, text: str) -> None:
        self._line(f"  note: {text}")

    def _show_closed(self) -> None:
        name, seconds = self.phases[-1]
        count = f"{self.done}/{self.total}" if self.total else (str(self.done) if self.done else "")
        self._line(self._row(name, count, seconds))

    def _show_finish(self) -> None:
        self._line(self._row("total", "", self.elapsed()))

    def _row(self, name: str, count: str, seconds: float) -> str:
        return f"  {_fitted(name, self._wide):<{self._wide}} {count:>9} {seconds:8.2f} s"


class TtyProgress(PlainProgress):
    """The current phase on one line that is redrawn, below a line for each finished phase."""

    _REDRAW = 0.1  # seconds between redraws: drawing every item would slow a fast phase

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.perf_counter):
        super().__init__(stream, clock)
        self._width = width_of(stream) or 80
        self._wide = max(8, min(_NAME, self._width - 1 - len(self._row("", "", 0)) + _NAME))
        self._drawn = 0.0

    def _line(self, text: str) -> None:
        write_styled(self._stream, f"\r\x1b[K{escaped(text)}\n")
        self._stream.flush()

    def _draw(self, item: str) -> None:
        self._drawn = self._clock()
        count = f"{self.done}/{self.total}" if self.total else ""
        row = self._row(self.name, count, self._drawn - self._phase_started)
        text = _fitted(escaped(f"{row}  {item}"), self._width - 1)
        write_styled(self._stream, f"\r\x1b[K{text}")
        self._stream.flush()

    def _show_phase(self) -> None:
        self._draw("")

    def _show_item(self, item: str) -> None:
        if self._clock() - self._drawn >= self._REDRAW:
            self._draw(item)


class _UserProgress(Progress):
    """A wrapper of a user's progress object; an exception of it becomes a UserError that names
    it."""

    def __init__(self, inner: Progress):
        super().__init__()
        self._inner, self._kind = inner, type(inner).__name__

    def phase(self, name: str, total: int = 0) -> None:
        with plugin(f"progress {self._kind}: phase({name!r})"):
            self._inner.phase(name, total)

    def advance(self, count: int = 1, item: str = "") -> None:
        with plugin(f"progress {self._kind}: advance({item!r})"):
            self._inner.advance(count, item)

    def note(self, text: str) -> None:
        with plugin(f"progress {self._kind}: note"):
            self._inner.note(text)

    def finish(self) -> None:
        with plugin(f"progress {self._kind}: finish"):
            self._inner.finish()


def watched(progress: Progress | None) -> Progress:
    """Return a progress object to report to: a silent one for None, a wrapper for a user's own.

    Raises UserError (code `bad-progress`) if one of the four methods is missing.
    """
    if progress is None or type(progress) in (Progress, PlainProgress, TtyProgress):
        return progress or Progress()
    methods = ("phase", "advance", "note", "finish")
    reporter: object = progress
    if isinstance(reporter, type) or not all(callable(getattr(reporter, m, None)) for m in methods):
        raise UserError(
            f"progress is {reporter!r}, expected an object with {', '.join(methods)}",
            code="bad-progress",
            hint="tensorkiln.base.progress.Progress is what to subclass",
        )
    return _UserProgress(progress)


def make_progress(stream: TextIO, mode: str = "auto") -> Progress:
    """Return progress on `stream`: `tty` redraws a line, `plain` writes a line per phase, `off` is
    silent, `auto` is `tty` on a terminal and `plain` elsewhere."""
    if mode == "off":
        return Progress()
    if mode == "tty" or (mode == "auto" and is_terminal(stream)):
        return TtyProgress(stream)
    return PlainProgress(stream)

from __future__ import annotations

import io

import pytest

from tensorkiln.base.progress import PlainProgress, Progress, TtyProgress, make_progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def drive(progress: Progress, clock: Clock) -> None:
    progress.phase("read model")
    clock.now += 1
    progress.note("baseline")
    progress.phase("kernels", total=2)
    for name in ("conv", "pool"):
        clock.now += 0.5
        progress.advance(1, name)
    progress.finish()
    progress.finish()


def test_silent_keeps_times() -> None:
    clock = Clock()
    progress = Progress(clock)
    drive(progress, clock)
    assert progress.phases == [("read model", 1.0), ("kernels", 1.0)]


def test_plain_is_one_line_per_phase() -> None:
    clock, stream = Clock(), io.StringIO()
    drive(PlainProgress(stream, clock), clock)
    lines = [line.split() for line in stream.getvalue().splitlines()]
    assert lines == [
        ["note:", "baseline"],
        ["read", "model", "1.00", "s"],
        ["kernels", "2/2", "1.00", "s"],
        ["total", "2.00", "s"],
    ]


def test_tty_draws_the_item_at_work_and_leaves_whole_lines() -> None:
    clock, stream = Clock(), io.StringIO()
    drive(TtyProgress(stream, clock), clock)
    text = stream.getvalue()
    assert "conv" in text
    assert "1/2" in text
    final = [part.rsplit("\x1b[K", 1)[-1] for part in text.split("\n")]
    assert [line.split()[0] for line in final if line] == ["note:", "read", "kernels", "total"]


def test_tty_does_not_draw_every_item() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = TtyProgress(stream, clock)
    progress.phase("kernels", total=1000)
    before = stream.getvalue().count("\r")
    for _ in range(1000):
        clock.now += 0.001
        progress.advance()
    assert 5 <= stream.getvalue().count("\r") - before <= 10


def test_choice() -> None:
    stream = io.StringIO()
    assert type(make_progress(stream)) is PlainProgress
    assert type(make_progress(stream, "tty")) is TtyProgress
    assert type(make_progress(stream, "off")) is Progress
    stream.isatty = lambda: True  # type: ignore[method-assign]
    assert type(make_progress(stream)) is TtyProgress
    assert type(make_progress(stream, "plain")) is PlainProgress


def test_tty_lines_fit_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is longer is cut where it says so: a line that wraps could not be redrawn."""
    for width in (40, 60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        clock, stream = Clock(), io.StringIO()
        stream.isatty = lambda: True  # type: ignore[method-assign]
        progress = TtyProgress(stream, clock)
        progress.phase("a phase of a rather long name", total=100)
        clock.now += 1
        progress.advance(99, "conv" * 60)
        progress.finish()
        lines = stream.getvalue().replace("\n", "\r\x1b[K").split("\r\x1b[K")
        assert max(map(len, lines)) < width
        assert any(line.endswith("…") for line in lines)
        assert [line.split()[-1] for line in lines if line][-2:] == ["s", "s"]

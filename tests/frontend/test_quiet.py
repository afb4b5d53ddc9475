from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Callable

import pytest

from tensorkiln.frontend.torch.quiet import quiet


def _speak(who: str) -> None:
    print(f"{who} prints")
    print(f"{who} prints an error", file=sys.stderr)
    logging.getLogger(f"some.{who}").error("%s logs", who)


def _in_thread(do: Callable[[], None]) -> None:
    thread = threading.Thread(target=do)
    thread.start()
    thread.join()


def test_only_the_thread_that_asks_is_quiet(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """What other threads printed and logged while a model of torch's was exported was lost."""
    before = sys.stdout, sys.stderr, logging.root.manager.disable
    with quiet():
        _speak("exporter")
        warnings.warn("exporter warns", stacklevel=1)
        _in_thread(lambda: _speak("other"))
    _speak("afterwards")
    assert (sys.stdout, sys.stderr, logging.root.manager.disable) == before
    out, err = capsys.readouterr()
    assert out == "other prints\nafterwards prints\n"
    assert "other prints an error" in err and "exporter" not in err
    assert [r.getMessage() for r in caplog.records] == ["other logs", "afterwards logs"]


def test_it_ends_with_an_error_too(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="x"), quiet():
        raise ValueError("x")
    logging.getLogger("some").error("afterwards")
    assert [r.getMessage() for r in caplog.records] == ["afterwards"]


def test_one_thread_at_a_time() -> None:
    """Two would restore each other's filters of warnings and streams."""
    streams, entered = (sys.stdout, sys.stderr), threading.Event()

    def other() -> None:
        with quiet():
            entered.set()

    with quiet():
        thread = threading.Thread(target=other)
        thread.start()
        assert not entered.wait(0.05)
    thread.join()
    assert entered.is_set() and (sys.stdout, sys.stderr) == streams

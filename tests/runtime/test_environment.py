"""Variables of the environment that libraries read: Python and the C runtime refuse the same, in
the same words, and understand the same."""

from __future__ import annotations

import _ctypes
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorkiln.base.config import read_config
from tensorkiln.base.errors import UserError
from tensorkiln.runtime import Executor, load_module
from tests.link import sample

NUMBERS = (
    "", "0", "1", "2", "007", "-0", "4096", "4097", "100000", "2147483647", "2147483648",
    "4294967295", "4294967296", "4294967297", "9223372036854775808", "1" * 40, "1" * 41, "0" * 40,
    "-1", "-4294967295", "1.5", "1e3", "0x4", " 4", "4 ", "+4", "4_0", "four", "-", "--1", "٤",
)  # fmt: skip
FLAGS = ("", "0", "1", "on", "off", "ON", "oFF", "2", "yes", "true", "01", "1 ", "o", "onn", "-1")
FLAGS += ("\x10", "\x11", "\x4f\x0e", "O\x0e", "0n")  # other cases of no letters
CASES = [("KILN_NUM_THREADS", text) for text in NUMBERS]
CASES += [("KILN_VERIFY_WEIGHTS", text) for text in FLAGS]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample.build(tmp_path_factory.mktemp("environment") / "mlp.so")


@pytest.fixture
def dll(library: Path) -> Iterator[ctypes.CDLL]:
    """The library as a program in C has it, read anew."""
    library_dll = ctypes.CDLL(os.fspath(library))
    library_dll.kiln_last_error.restype = ctypes.c_char_p
    yield library_dll
    _ctypes.dlclose(library_dll._handle)


@pytest.mark.parametrize(("variable", "text"), CASES)
def test_python_and_c_agree(
    library: Path, dll: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, variable: str, text: str
) -> None:
    for name in ("KILN_NUM_THREADS", "KILN_VERIFY_WEIGHTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, text)
    try:
        wish = read_config().num_threads
    except UserError as error:
        assert error.code == "bad-knob"
        message = str(error).splitlines()[0]
        assert dll.kiln_open() == 20
        if not text.isprintable():  # C shows such characters as they are
            message = message.replace(repr(text), f"'{text}'")
        assert dll.kiln_last_error().decode() == message
        executor = ctypes.c_void_p()
        assert dll.kiln_executor_create(ctypes.byref(executor)) == 20
        with pytest.raises(UserError, match="expected") as caught:
            load_module(library)
        assert (str(caught.value).splitlines()[0], caught.value.code) == (message, "bad-knob")
        return
    assert dll.kiln_open() == 0, dll.kiln_last_error()
    allowed = len(os.sched_getaffinity(0))
    assert 1 <= dll.kiln_get_num_threads() <= min(wish or allowed, allowed)


@pytest.mark.parametrize("threads", [-1, 4097, 1 << 31, (1 << 32) + 1, -(1 << 63), 1 << 70])
def test_numbers_that_are_set(library: Path, dll: ctypes.CDLL, threads: int) -> None:
    lib = load_module(library)
    for receiver in (lib, Executor(lib)):
        with pytest.raises(ValueError, match=r"expected a whole number from 0 to 4096"):
            receiver.set_num_threads(threads)
        with pytest.raises(TypeError, match="whole number"):
            receiver.set_num_threads("2")  # type: ignore[arg-type]
        receiver.set_num_threads(4096)
    dll.kiln_set_num_threads(ctypes.c_int(threads))  # which takes 32 bits of it, and cannot refuse
    assert 1 <= dll.kiln_get_num_threads() <= 4096

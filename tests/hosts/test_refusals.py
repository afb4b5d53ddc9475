"""The same mistake in four languages: one code, one sentence."""

from __future__ import annotations

import os
import re
import stat
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact.digest import digest_place
from tensorkiln.base.errors import UserError
from tensorkiln.runtime import Executor, load_module, read_metadata
from tensorkiln.runtime.failures import _CODES
from tensorkiln.runtime.tensor import DLTensor, capsule_pointer
from tensorkiln.script import from_source
from tests.artifact.damage_files import without_digest
from tests.hosts.build import ROOT, run
from tests.hosts.conftest import REFUSALS, program
from tests.link import sample

# enum kiln_host_code, by the names that Python has for them
FILE_CODES = {
    100: "no-file",
    101: "not-a-library",
    102: "library-version",
    103: "wrong-machine",
    104: "cannot-load",
}


@dataclass(frozen=True)
class Call:
    """A call by a function's name. Tensors are `in:float32:2x8`, and then `:null` for an address
    that is null, `:odd` for one that suits no type, `:ones` for bytes that are 1, `:gaps` for
    strides, `:device` for one of a device; numbers are `v:int:3`."""

    code: int
    sentence: str
    function: str
    tensors: str = ""


CALLS = {
    "inputs": Call(
        1,
        "pair: expected 2 inputs (a: float32 [n], b: float32 [n]), received 1",
        "pair",
        "in:float32:2 out:float32:2",
    ),
    "too many": Call(
        1,
        "fixed: expected 1 input (x: float32 [1, 8]), received 2",
        "fixed",
        "in:float32:1x8 in:float32:1x8 out:float32:1x4",
    ),
    "outputs": Call(
        1,
        "split: expected 2 outputs (left: float32 [n, 4], right: float32 [n * 4]), received 1",
        "split",
        "in:float32:2x8 out:float32:2x4",
    ),
    "arguments": Call(1, "add_one: expected 2 arguments, received 1", "add_one", "in:float32:2"),
    "rank": Call(
        2,
        "main: input 'x' must have 2 dimensions, [n, 8], received 1: [8]",
        "main",
        "in:float32:8 out:float32:1x4",
    ),
    "rank 0": Call(
        2,
        "main: input 'x' must have 2 dimensions, [n, 8], received 0: []",
        "main",
        "in:float32: out:float32:1x4",
    ),
    "rank of output": Call(
        2,
        "main: output 'out' must have 2 dimensions, [n, 4], received 1: [2]",
        "main",
        "in:float32:2x8 out:float32:2",
    ),
    "shape": Call(
        3,
        "main: input 'x' must have shape [n, 8], received [5, 7]: dimension 1 is 7, expected 8",
        "main",
        "in:float32:5x7 out:float32:5x4",
    ),
    "symbol": Call(
        3,
        "pair: input 'b' must have shape [n], received [4]: dimension 0 is 4, expected 3",
        "pair",
        "in:float32:3 in:float32:4 out:float32:3",
    ),
    "computed": Call(
        3,
        "split: output 'right' must have shape [n * 4], received [9]: dimension 0 is 9, expected 8",
        "split",
        "in:float32:2x8 out:float32:2x4 out:float32:9",
    ),
    "tensor function": Call(
        3,
        "add_one: argument 'y' must have shape [n], received [2]: dimension 0 is 2, expected 1",
        "add_one",
        "in:float32:1 out:float32:2",
    ),
    "dtype": Call(
        4,
        "main: input 'x' must be float32, received float64",
        "main",
        "in:float64:2x8 out:float32:2x4",
    ),
    "bytes": Call(
        4,
        "main: input 'x' must be float32, received uint8",
        "main",
        "in:uint8:2x8 out:float32:2x4",
    ),
    "dtype of output": Call(
        4,
        "main: output 'out' must be float32, received bool",
        "main",
        "in:float32:2x8 out:bool:2x4",
    ),
    "null input": Call(
        6,
        "main: input 'x' has no data: its address is null",
        "main",
        "in:float32:2x8:null out:float32:2x4",
    ),
    "null output": Call(
        6,
        "main: output 'out' has no data: its address is null",
        "main",
        "in:float32:2x8 out:float32:2x4:null",
    ),
    "device": Call(
        5,
        "main: input 'x' must be in CPU memory (device type 1), received a tensor in cuda:0 "
        "(device type 2); copy it to the host first: x.numpy() in Python",
        "main",
        "in:float32:2x8:device out:float32:2x4",
    ),
    "a number for a tensor": Call(
        7,
        "scale: argument 'x' must be a tensor of shape [n], received a value that is not a tensor",
        "scale",
        "v:int:1 v:float:2 v:int:3",
    ),
    "a tensor for a number": Call(
        7,
        "scale: argument 'factor' must be a number, received a tensor",
        "scale",
        "out:float32:2 out:float32:1 v:int:3",
    ),
    "a fraction for an integer": Call(
        7,
        "scale: argument 'shift' must be an integer, received a number with a fraction",
        "scale",
        "out:float32:2 v:float:2 v:float:0.5",
    ),
    "out of range": Call(
        19,
        "scale: argument 'factor' must be a number in the range of float32, received 1e+300",
        "scale",
        "out:float32:2 v:float:1e300 v:int:3",
    ),
    "too few numbers": Call(
        1, "scale: expected 3 arguments, received 2", "scale", "out:float32:2 v:int:2"
    ),
    "function": Call(
        10,
        "library mlp has no function 'mian'; it has main, fixed, split, pair, add_one, scale",
        "mian",
    ),
}

ACCEPTED = {
    "no rows, and no memory": Call(0, "", "main", "in:float32:0x8:null out:float32:0x4:null"),
    "any address": Call(0, "", "main", "in:float32:3x8:odd out:float32:3x4:odd"),
    "gaps": Call(0, "", "main", "in:float32:3x8:gaps out:float32:3x4:gaps"),
    "numbers": Call(0, "", "scale", "out:float32:2 v:float:0.5 v:bool:1"),
}


def _section(raw: bytes, section_name: bytes) -> tuple[int, int, int]:
    """Address, offset and size of a section."""
    table, count, names = struct.unpack_from("<Q12xHH", raw, 40)
    rows = [struct.unpack_from("<IIQQQQ", raw, table + 64 * i) for i in range(count)]
    for name, _kind, _flags, address, offset, size in rows:
        name_offset = rows[names][4] + name
        if raw[name_offset : name_offset + len(section_name) + 1] == section_name + b"\0":
            return address, offset, size
    raise LookupError(section_name)


def _other_interface(raw: bytes) -> bytes:
    """`kiln_abi_version` returns 99: the constant in its code is another one."""
    _, symbols, size = _section(raw, b".dynsym")
    _, names, _ = _section(raw, b".dynstr")
    text, code, _ = _section(raw, b".text")
    for symbol_offset in range(symbols, symbols + size, 24):
        name, address = struct.unpack_from("<I4xQ", raw, symbol_offset)
        if raw[names + name :].startswith(b"kiln_abi_version\0"):
            start = code + address - text
            assert raw[start : start + 6] == b"\xb8\2\0\0\0\xc3"  # mov eax, 2; ret
            return raw[: start + 1] + b"\x63" + raw[start + 2 :]
    raise LookupError("kiln_abi_version")


def _size_of_metadata(raw: bytes, size: int) -> bytes:
    """Its section says that it is that large."""
    address, offset, _ = _section(raw, b".kiln.meta")
    row = struct.pack("<QQ", address, offset)
    table = struct.unpack_from("<Q", raw, 40)[0]
    size_offset = raw.index(row, table) + len(row)
    return raw[:size_offset] + struct.pack("<Q", size) + raw[size_offset + 8 :]


FILES: dict[str, tuple[int, str, Callable[[bytes], bytes | None]]] = {
    "missing": (100, "no such file: '{path}'", lambda raw: None),
    "text": (
        101,
        "'{path}' is not a Tensorkiln library: not an ELF shared library",
        lambda raw: b"MZ" * 99,
    ),
    "archive": (
        101,
        "'{path}' is not a Tensorkiln library: not an ELF shared library",
        lambda raw: b"!<arch>\n" + raw,
    ),
    "cut off in its header": (
        101,
        "'{path}' is not a Tensorkiln library: not an ELF shared library",
        lambda raw: raw[:63],
    ),
    "cut off behind its header": (
        101,
        "'{path}' is not a Tensorkiln library: its section table is damaged or cut off",
        lambda raw: raw[:64],
    ),
    "cut off by a byte": (
        101,
        "'{path}' is damaged: it has {size} bytes, and was written with {whole}",
        lambda raw: raw[:-1],
    ),
    "cut off in its weights": (
        101,
        "'{path}' is not a Tensorkiln library: its section .kiln.weights is cut off",
        lambda raw: without_digest(raw)[:-1],
    ),
    "more bytes": (
        101,
        "'{path}' is damaged: it has {size} bytes, and was written with {whole}",
        lambda raw: raw + b"more",
    ),
    "other bytes": (
        101,
        "'{path}' is damaged: its bytes are not those that were written",
        lambda raw: raw.replace(b"libc.so.6\0", b"libq.so.6\0"),
    ),
    "big-endian": (
        101,
        "'{path}' is not a Tensorkiln library: not a 64-bit little-endian ELF file",
        lambda raw: raw[:5] + b"\2" + raw[6:],
    ),
    "empty": (
        101,
        "'{path}' is not a Tensorkiln library: not an ELF shared library",
        lambda raw: b"",
    ),
    "32 bits": (
        101,
        "'{path}' is not a Tensorkiln library: not a 64-bit little-endian ELF file",
        lambda raw: raw[:4] + b"\1" + raw[5:],
    ),
    "cut off": (
        101,
        "'{path}' is not a Tensorkiln library: its section table is damaged or cut off",
        lambda raw: raw[: (digest_place(raw) or 0) - 1],
    ),
    "somebody's": (
        101,
        "'{path}' is not a Tensorkiln library: it has no section .kiln.meta",
        lambda raw: Path(sys.executable).resolve().read_bytes(),
    ),
    "no JSON": (
        101,
        "'{path}' is not a Tensorkiln library: its metadata is not JSON",
        lambda raw: raw.replace(b'"format": 2,', b'"format": 1:'),
    ),
    "no functions": (
        101,
        "'{path}' is not a Tensorkiln library: its metadata lists no functions",
        lambda raw: raw.replace(b'"functions":', b'"funktions":'),
    ),
    "newer metadata": (
        102,
        "'{path}' has metadata version 9, this Tensorkiln reads versions 1 to 6",
        lambda raw: raw.replace(b'"format": 2,', b'"format": 9,'),
    ),
    "newer interface": (
        102,
        "'{path}' has library interface 99, this Tensorkiln knows 2",
        lambda raw: _other_interface(raw).replace(b"kiln_open\0", b"kiln_opem\0"),
    ),
    "no such symbol": (
        101,
        "'{path}' is not a Tensorkiln library: it has no kiln_open",
        lambda raw: raw.replace(b"kiln_open\0", b"kiln_opem\0"),
    ),
    "damaged metadata": (
        101,
        "'{path}' is not a Tensorkiln library: its metadata is damaged",
        lambda raw: raw.replace(b'"kind":', b'"kinb":'),
    ),
    "cut off metadata": (
        101,
        "'{path}' is not a Tensorkiln library: its section .kiln.meta is cut off",
        lambda raw: _size_of_metadata(raw, 1 << 40),
    ),
    "loader": (
        104,
        "cannot load '{path}': {path}: ELF file version ident does not match current one",
        lambda raw: raw[:4] + raw[4:6] + b"\7" + raw[7:],
    ),
    "a library that is not there": (
        104,
        "cannot load '{path}': it needs 'libq.so.6', which is not there",
        lambda raw: raw.replace(b"libc.so.6\0", b"libq.so.6\0"),
    ),
    "another machine": (
        103,
        "'{path}' is compiled for riscv64, this machine is x86_64",
        lambda raw: raw[:18] + struct.pack("<H", 243) + raw[20:],
    ),
    "an unknown machine": (
        103,
        "'{path}' is compiled for ELF machine 4660, this machine is x86_64",
        lambda raw: raw[:18] + struct.pack("<H", 4660) + raw[20:],
    ),
}


class Patched:
    """A tensor whose DLPack header is patched, never its data."""

    def __init__(self, array: np.ndarray, **fields: object):
        self.array, self.shape, self.fields = array, array.shape, fields

    def __dlpack__(self, **_: object) -> object:
        capsule = self.array.__dlpack__()
        header = DLTensor.from_address(capsule_pointer(capsule, b"dltensor"))
        for name, value in self.fields.items():
            setattr(header, name, value)
        return capsule


def argument_of(word: str) -> object:
    role, dtype, shape, *fill_words = word.split(":")
    if role == "v":
        return {"int": int, "float": float, "bool": lambda text: text != "0"}[dtype](shape)
    sizes = tuple(map(int, filter(None, shape.split("x"))))
    array = np.zeros(sizes, dtype)
    match fill_words:
        case ["null"]:
            return Patched(array, data=None)
        case ["device"]:
            return Patched(array, device_type=2)
        case ["ones"]:
            return np.ones(array.nbytes, np.uint8).view(dtype).reshape(sizes)
        case ["odd"]:
            return np.zeros(array.nbytes + 1, np.uint8)[1:].view(dtype).reshape(sizes)
        case ["gaps"]:
            return np.zeros((*sizes, 2), dtype)[..., 0]
    return array


def in_python(path: Path, function: str = "", tensors: str = "") -> tuple[str, str]:
    """Code and sentence of the exception."""
    with pytest.raises(UserError) as caught:
        call_in_python(path, function, tensors)
    return caught.value.code, caught.value.message


def call_in_python(path: Path, function: str, tensors: str) -> None:
    run_function = Executor(load_module(path))[function]
    words = tensors.split()
    if function in ("add_one", "scale"):
        run_function(*map(argument_of, words))
    else:
        inputs = [argument_of(word) for word in words if word.startswith("in")]
        outputs = [argument_of(word) for word in words if word.startswith("out")]
        run_function(*inputs, out=outputs)


def elsewhere(host: Path, path: Path, *words: str) -> tuple[int, str]:
    """Code and sentence of a program."""
    process = run(host, path, *words)
    assert process.returncode == 0, process.stdout + process.stderr
    code, sentence = process.stdout.split("\n", 1)
    return int(code), sentence.rstrip("\n")


def name_of(code: int) -> str:
    return FILE_CODES.get(code) or _CODES[code][1]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calls_in_python(library: Path, call: Call) -> None:
    assert in_python(library, call.function, call.tensors) == (name_of(call.code), call.sentence)


@pytest.mark.parametrize("call", ACCEPTED.values(), ids=ACCEPTED)
def test_what_python_takes(library: Path, call: Call) -> None:
    call_in_python(library, call.function, call.tensors)


@pytest.mark.parametrize("language", REFUSALS)
@pytest.mark.parametrize("call", [*CALLS.values(), *ACCEPTED.values()], ids=[*CALLS, *ACCEPTED])
def test_calls_elsewhere(library: Path, programs: Path, language: str, call: Call) -> None:
    if call.code == 5 and language != "C":
        return  # their tensors are of the processor's memory
    host = program(REFUSALS, language, programs)
    answer = elsewhere(host, library, call.function, *call.tensors.split())
    assert answer == (call.code, call.sentence)


LOOKUPS = """
@R.function
def first(x: R.Tensor(("n", 4), "float32"), i: R.Tensor(("k",), "int64")):
    return R.take(x, i, axis=0)

@R.function
def second(x: R.Tensor(("n", 4), "float32"), i: R.Tensor(("k",), "int32")):
    j = R.add(i, last)
    return R.take(x, j, axis=1)

@R.function
def third(x: R.Tensor((7,), "float32"), i: R.Tensor((1,), "int64")):
    j = R.add(i, spread)
    return R.take(x, j, axis=0)
"""
# Indices of programs are 0, or of bytes that are 1; others are computed from them.
OUTSIDE = {
    "an argument": Call(
        29,
        "first: index 72340172838076673 at [0] is outside of a dimension of 2, expected -2 to 1",
        "first",
        "in:float32:2x4 in:int64:3:ones out:float32:3x4",
    ),
    "a negative one": Call(
        29,
        "second: index -5 at [0] is outside of a dimension of 4, expected -4 to 3",
        "second",
        "in:float32:2x4 in:int32:3 out:float32:2x3",
    ),
    "one of several": Call(
        29,
        "third: index 7 at [1, 2] is outside of a dimension of 7, expected -7 to 6",
        "third",
        "in:float32:7 in:int64:1 out:float32:2x3",
    ),
}
INSIDE = {
    "an argument": Call(0, "", "first", "in:float32:2x4 in:int64:3 out:float32:3x4"),
    "gaps": Call(0, "", "first", "in:float32:2x4 in:int64:3:gaps out:float32:3x4"),
    "no indices": Call(0, "", "first", "in:float32:2x4 in:int64:0 out:float32:0x4"),
}


@pytest.fixture(scope="session")
def lookups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that reads where data says."""
    names = {
        "last": np.array(-5, np.int32),
        "spread": np.array([[0, 1, 2], [6, -7, 7]]),
    }
    path = tmp_path_factory.mktemp("lookups") / "lookups.so"
    tk.compile(from_source(LOOKUPS, namespace=names), "llvm").export_library(path)
    return path


@pytest.mark.parametrize("call", OUTSIDE.values(), ids=OUTSIDE)
def test_indices_in_python(lookups: Path, call: Call) -> None:
    assert in_python(lookups, call.function, call.tensors) == (name_of(call.code), call.sentence)


@pytest.mark.parametrize("language", REFUSALS)
def test_indices_elsewhere(lookups: Path, programs: Path, language: str) -> None:
    host = program(REFUSALS, language, programs)
    for call in (*OUTSIDE.values(), *INSIDE.values()):
        answer = elsewhere(host, lookups, call.function, *call.tensors.split())
        assert answer == (call.code, call.sentence)


def damaged(library: Path, name: str, folder: Path) -> tuple[Path, int, str]:
    """A file, and what everybody says of it."""
    code, sentence, change = FILES[name]
    whole = library.read_bytes()
    content = change(whole if " is damaged: " in sentence else without_digest(whole))
    path = folder / "net.so"
    if content is not None:
        assert content not in (whole, without_digest(whole))
        path.write_bytes(content)
    return path, code, sentence.format(path=path, size=len(content or b""), whole=len(whole))


@pytest.mark.parametrize("name", FILES)
def test_files_in_python(library: Path, name: str, tmp_path: Path) -> None:
    path, code, sentence = damaged(library, name, tmp_path)
    assert in_python(path) == (name_of(code), sentence)


@pytest.mark.parametrize("language", REFUSALS)
@pytest.mark.parametrize("name", FILES)
def test_files_elsewhere(
    library: Path, programs: Path, language: str, name: str, tmp_path: Path
) -> None:
    path, code, sentence = damaged(library, name, tmp_path)
    assert elsewhere(program(REFUSALS, language, programs), path) == (code, sentence)


LACKS_PARTS = {
    "@invoke": "'{path}' has no outer functions, so it takes no values",
    "@loader": "'{path}' carries no artifacts for loaders",
}


@pytest.mark.parametrize("language", REFUSALS)
@pytest.mark.parametrize("part", LACKS_PARTS)
def test_what_a_library_has_no_functions_for(
    library: Path, programs: Path, language: str, part: str
) -> None:
    """Python calls any function with anything, and its loaders are for all libraries."""
    answer = elsewhere(program(REFUSALS, language, programs), library, part)
    assert answer == (10, LACKS_PARTS[part].format(path=library))


@pytest.mark.parametrize("language", REFUSALS)
def test_a_path_without_a_folder(
    library: Path, programs: Path, language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the file here, never one on the system's search path, and is named as it was given,
    also in the words of the system's loader, which opens a descriptor."""
    host = program(REFUSALS, language, programs)
    damaged(library, "loader", tmp_path)
    (tmp_path / "well.so").write_bytes(library.read_bytes())
    monkeypatch.chdir(tmp_path)
    code, sentence = elsewhere(host, Path("net.so"))
    words = "cannot load 'net.so': net.so: ELF file version ident does not match current one"
    assert (code, sentence) == (104, words)
    assert in_python(Path("net.so"))[1] == words
    assert elsewhere(host, Path("well.so")) == (0, "")


def test_a_folder_in_python(tmp_path: Path) -> None:
    assert in_python(tmp_path) == ("no-file", f"cannot read '{tmp_path}': Is a directory")


@pytest.mark.parametrize("language", REFUSALS)
def test_a_folder_elsewhere(programs: Path, language: str, tmp_path: Path) -> None:
    answer = elsewhere(program(REFUSALS, language, programs), tmp_path)
    assert answer == (100, f"cannot read '{tmp_path}': Is a directory")


# What would block, or never end.
NOT_PLAIN: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
}


@pytest.mark.parametrize("thing", NOT_PLAIN)
def test_no_plain_file_in_python(tmp_path: Path, thing: str) -> None:
    NOT_PLAIN[thing](tmp_path / "net.so")
    sentence = f"cannot read '{tmp_path / 'net.so'}': it is not a plain file"
    assert in_python(tmp_path / "net.so") == ("no-file", sentence)


@pytest.mark.parametrize("language", REFUSALS)
@pytest.mark.parametrize("thing", NOT_PLAIN)
def test_no_plain_file_elsewhere(programs: Path, language: str, thing: str, tmp_path: Path) -> None:
    NOT_PLAIN[thing](tmp_path / "net.so")
    answer = elsewhere(program(REFUSALS, language, programs), tmp_path / "net.so")
    assert answer == (100, f"cannot read '{tmp_path / 'net.so'}': it is not a plain file")


RENAMED = (
    "'{path}' is not a Tensorkiln library: its metadata is damaged: library mlp has no function "
    "'maim'; it has main, fixed, split, pair, add_one, scale"
)


@pytest.fixture(scope="module")
def renamed(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library whose metadata has another name for `main`."""
    path = tmp_path_factory.mktemp("renamed") / "mlp.so"
    data = without_digest(library.read_bytes())
    path.write_bytes(data.replace(b'"name": "main"', b'"name": "maim"'))
    return path


def test_a_function_that_only_the_code_knows_in_python(renamed: Path) -> None:
    assert in_python(renamed, "main") == ("not-a-library", RENAMED.format(path=renamed))


@pytest.mark.parametrize("language", REFUSALS)
def test_a_function_that_only_the_code_knows_elsewhere(
    renamed: Path, programs: Path, language: str
) -> None:
    answer = elsewhere(program(REFUSALS, language, programs), renamed, "main")
    assert answer == (101, RENAMED.format(path=renamed))


@pytest.fixture(scope="module")
def demanding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library for a processor that nobody has."""
    path = tmp_path_factory.mktemp("cpu") / "mlp.so"
    return sample.build(path, cpu_features=("warp-drive",))


BESIDE = ROOT / "tests" / "golden_artifacts" / "beside-1.so"
WEIGHTS: dict[str, tuple[str, Callable[[bytes], bytes | None]]] = {
    "missing": (
        "library {name} has its weights in {path}, which cannot be opened: "
        "No such file or directory",
        lambda raw: None,
    ),
    # The sentence of a library of a former version, which `BESIDE` is.
    "text": ("{path} is no file of weights that was exported", lambda raw: b"MZ" * 99),
    "others": (
        "the weights in {path} are not those that library {name} was exported with",
        lambda raw: re.sub(rb"[0-9a-f]{64}", b"0" * 64, raw, count=1),
    ),
    "cut off": ("{path} is cut off, or was changed", lambda raw: raw[:-1]),
}


def weights_beside(name: str, folder: Path) -> tuple[Path, str]:
    """A library with such a file beside it, and what everybody says of it."""
    sentence, change = WEIGHTS[name]
    library, weights = folder / "net.so", folder / "net.safetensors"
    library.write_bytes(BESIDE.read_bytes())
    content = change(BESIDE.with_suffix(".safetensors").read_bytes())
    if content is not None:
        weights.write_bytes(content)
    return library, sentence.format(path=weights, name=read_metadata(library)["library"])


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_beside_in_python(name: str, tmp_path: Path) -> None:
    library, sentence = weights_beside(name, tmp_path)
    assert in_python(library) == ("bad-weights", sentence)


@pytest.mark.parametrize("language", REFUSALS)
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_beside_elsewhere(programs: Path, language: str, name: str, tmp_path: Path) -> None:
    library, sentence = weights_beside(name, tmp_path)
    assert elsewhere(program(REFUSALS, language, programs), library) == (18, sentence)


LACKS = (
    "library mlp needs CPU feature 'warp-drive', which its runtime cannot check on this processor"
)


def test_a_missing_cpu_feature_in_python(demanding: Path) -> None:
    assert in_python(demanding) == ("cpu-feature", LACKS)


@pytest.mark.parametrize("language", REFUSALS)
def test_a_missing_cpu_feature_elsewhere(programs: Path, demanding: Path, language: str) -> None:
    assert elsewhere(program(REFUSALS, language, programs), demanding) == (9, LACKS)

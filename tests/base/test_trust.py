"""Nothing that another user could have written becomes code."""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tensorkiln
from tensorkiln.base import cache as cache_module
from tensorkiln.base import trust
from tensorkiln.base.cache import Cache, key_of, untold_refusal
from tensorkiln.base.errors import UserError
from tensorkiln.base.files import atomic_path, folder_beside
from tensorkiln.base.processes import python_command
from tensorkiln.base.trust import distrust, private_temporary

KEY = key_of({"name": "a"})
OTHER = 54321  # a user that nobody is
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")

# What is wrong with a file or folder, and the words for it. `chown` needs root.
FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "writable by all": (lambda p: p.chmod(p.stat().st_mode | 0o002), "can be written to by others"),
    "writable by a group": (lambda p: _give_group(p), "can be written to by others"),
    "of another user": (lambda p: os.chown(p, OTHER, OTHER), f"belongs to user {OTHER}"),
}
FAULT = pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=needs_root if f != "writable by all" else ()) for f in FAULTS],
)


def _give_group(path: Path) -> None:
    os.chown(path, -1, OTHER)
    path.chmod(path.stat().st_mode | 0o020)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder that every user can get to, as pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="kiln-trust-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(autouse=True)
def nothing_told() -> Iterator[None]:
    cache_module._told.clear()
    yield
    cache_module._told.clear()


def _refused(cache: Cache, words: str) -> None:
    """One sentence, whatever is asked of it, and nothing of it is used."""
    with pytest.warns(UserWarning, match=words) as told:
        assert cache.get(KEY) is None
        assert Cache(cache.root).get(KEY) is None
    assert len(told) == 1
    assert str(cache.root) in str(told[0].message)


@FAULT
@pytest.mark.parametrize(
    "part", ["", "objects", f"objects/{KEY[:2]}", f"objects/{KEY[:2]}/{KEY[2:]}", ".."]
)
def test_what_others_could_have_put_into_the_cache_is_not_used(
    place: Path, fault: str, part: str
) -> None:
    spoil, words = FAULTS[fault]
    cache = Cache(place / "home" / "cache")
    assert cache.put(KEY, b"code")
    assert cache.get(KEY) == b"code"
    spoil(cache.root / part)
    _refused(Cache(cache.root), words)
    is_entry = part.endswith(KEY[2:])
    assert Cache(cache.root).put(KEY, b"new") == is_entry  # an entry is replaced, a folder is not
    assert (Cache(cache.root).get(KEY) == b"new") == is_entry
    if not is_entry:
        assert (cache.root / "objects" / KEY[:2] / KEY[2:]).exists(), "not ours to remove"


@pytest.mark.parametrize("part", ["objects", f"objects/{KEY[:2]}", f"objects/{KEY[:2]}/{KEY[2:]}"])
def test_links_inside_the_cache_are_not_followed(place: Path, part: str) -> None:
    cache = Cache(place / "cache")
    assert cache.put(KEY, b"code")
    moved = place / "elsewhere"
    (cache.root / part).rename(moved)
    (cache.root / part).symlink_to(moved)
    _refused(Cache(cache.root), "is a link")


def test_the_cache_itself_may_be_a_link(place: Path) -> None:
    (place / "large").mkdir()
    (place / "cache").symlink_to("large")
    (place / "again").symlink_to(place / "x" / ".." / "cache")
    (place / "x").mkdir()
    assert Cache(place / "cache").put(KEY, b"code")
    assert Cache(place / "again").get(KEY) == b"code"
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    assert "in a circle" in distrust(place / "a" / "c")


@needs_root
def test_a_link_of_another_user_leads_nowhere(place: Path) -> None:
    (place / "real").mkdir()
    (place / "link").symlink_to("real")
    os.lchown(place / "link", OTHER, OTHER)
    assert f"belongs to user {OTHER}" in distrust(place / "link")


@pytest.mark.parametrize(
    ("mode", "owner", "trusted"),
    [
        (0o1777, 0, True),  # as /tmp: others can add, but not replace
        (0o0777, 0, False),
        (0o1777, OTHER, False),  # its owner can replace
        (0o0755, OTHER, False),
        (0o0755, 0, True),
        (0o0775, 0, True),  # root's own group
    ],
)
def test_folders_on_the_way(place: Path, mode: int, owner: int, trusted: bool) -> None:
    if os.geteuid() != 0 and (owner != 0 or mode == 0o0775):
        pytest.skip("only root can be two users")
    shared = place / "shared"
    shared.mkdir()
    (shared / "mine").mkdir(mode=0o700)
    shared.chmod(mode)
    if owner:
        os.chown(shared, owner, owner)
    assert (distrust(shared / "mine") == "") is trusted
    if trusted and mode == 0o1777:
        assert "can be written to by others" in distrust(shared), "what is in it is not ours"


@needs_root
def test_a_user_does_not_run_what_another_left(place: Path) -> None:
    """The attack itself: in a shared folder another user made the cache first."""
    shared = place / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    root = shared / "cache"

    def as_user(user: int, do: Callable[[], bool]) -> bool:
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            warnings.simplefilter("ignore")
            os._exit(0 if do() else 1)
        return os.waitpid(child, 0)[1] == 0

    def leave_open() -> bool:
        os.umask(0)
        done = Cache(root).put(KEY, b"hostile")
        for path in (root, *root.rglob("*")):
            path.chmod(0o777)
        return done

    assert as_user(OTHER, leave_open)
    assert as_user(OTHER + 1, lambda: Cache(root).get(KEY) is None)
    assert as_user(OTHER + 1, lambda: not Cache(root).put(KEY, b"mine"))
    assert as_user(0, lambda: Cache(root).get(KEY) is None)


def test_what_is_made_is_for_this_user_alone(place: Path) -> None:
    before = os.umask(0)
    try:
        cache = Cache(place / "new" / "cache")
        assert cache.put(KEY, b"code")
        assert cache.folder("zig") is not None
        with private_temporary("kiln-x-") as temporary, folder_beside(place / "out.so") as work:
            folders = [place / "new", *(p for p in cache.root.rglob("*") if p.is_dir())]
            for folder in [*folders, cache.root, Path(temporary), work]:
                assert folder.stat().st_mode & 0o777 == 0o700, folder
        (entry,) = [p for p in cache.root.rglob("*") if p.is_file()]
        assert entry.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
    assert cache.get(KEY) == b"code"


@FAULT
@pytest.mark.parametrize("part", ["zig", "zig/o"])
def test_a_cache_of_the_compiler_is_trusted_no_more(place: Path, fault: str, part: str) -> None:
    cache = Cache(place / "cache")
    zig = cache.folder("zig")
    assert zig is not None
    (zig / "o").mkdir()
    assert Cache(cache.root).folder("zig") == zig
    FAULTS[fault][0](cache.root / part)
    with pytest.warns(UserWarning, match=FAULTS[fault][1]):
        assert Cache(cache.root).folder("zig") is None


def test_temporary_folders_where_others_can_swap_them(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = place / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    with pytest.raises(UserError, match="cannot use the temporary folder") as caught:
        private_temporary("kiln-jit-")
    assert caught.value.code == "unsafe-folder"
    assert not list(shared.iterdir())
    shared.chmod(0o1777)
    private_temporary("kiln-jit-").cleanup()


# Temporary folders of code are `private_temporary`; these hold what is never run.
_DATA_ONLY = {
    "base/trust.py": "private_temporary itself",
    "codegen/host/weights.py": "weights, in a file without a name",
    "codegen/llvm/compile.py": "what a person runs again after a failure",
    "passes/failure.py": "what a person runs again after a failure",
    "frontend/torch/via_onnx.py": "a model",
}
_STARTS = {"run", "Popen", "call", "check_call", "check_output", "system", "popen", "execv"}
# Who starts programs, and which.
_PROGRAMS = {
    "codegen/llvm/compile.py": "python_command",
    "schedule/helpers.py": "python_command",
    "inspectors/llvm.py": "python_command",
    "cli/compare.py": "python_command",
    "runtime/timing.py": "python_command",
    "base/tools.py": "the compiler that the caller, $CC or the package ziglang names, and NVIDIA's "
    "assembler and disassembler, of its packages or on PATH, for who asks for them",
}
# Who reads pickles, which can execute anything, and whose.
_PICKLES = {"schedule/helpers.py": "of the process that it started, or that started it"}
# Who loads or executes code, and what.
_LOADS = {
    "runtime/dlopen.py": "the library that a caller names, or that `private_temporary` holds",
    "executable.py": "the process itself",
    "target/host.py": "the process itself, for one call of the system",
    "runtime/device_memory.py": "drivers of the system, for tensors on devices",
    "base/folders.py": "the process itself",
    "script/definition_text.py": "the process itself, for its C library's buffer of standard input",
    "codegen/llvm/jit.py": "the process itself, and libgcc of the system",
    "codegen/llvm/one_piece.py": "the process itself",
    "__init__.py": "modules of this package, by a table",
    "kernels/family.py": "modules of this package and of installed ones, by a table",
    "kernels/folders.py": "modules of this package, in the folders of its families",
    "ir/fields.py": "functions written from the fields of this package's classes",
    "cli/__init__.py": "an empty text",
    "cli/entry.py": "modules of this package, by a table",
}


@functools.cache
def _trees() -> dict[str, ast.Module]:
    """Every file of the package by its name there."""
    package = Path(tensorkiln.__file__).parent
    files = {p.relative_to(package).as_posix(): p for p in sorted(package.rglob("*.py"))}
    return {name: ast.parse(p.read_text(encoding="utf-8")) for name, p in files.items()}


def _calls(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Called names with the module that they are looked up in, if any."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                owner = node.func.value
                yield owner.id if isinstance(owner, ast.Name) else "", node.func.attr
            elif isinstance(node.func, ast.Name):
                yield "", node.func.id


def test_every_place_that_runs_something_is_known() -> None:
    """A new one is a row above, with why what it runs can be nobody else's."""
    found: dict[str, set[str]] = {
        "data": set(),
        "programs": set(),
        "loads": set(),
        "pickles": set(),
    }
    for name, tree in _trees().items():
        for owner, call in _calls(tree):
            if owner == "tempfile":
                found["data"].add(name)
            if owner in ("subprocess", "os") and call in _STARTS:
                found["programs"].add(name)
            loads = call in ("CDLL", "PyDLL", "dlopen", "import_module", "exec_module", "run_path")
            if loads or (owner == "" and call in ("exec", "eval", "__import__")):
                found["loads"].add(name)
            if call in ("loads", "load", "Unpickler") and owner in ("pickle", "marshal"):
                found["pickles"].add(name)
    assert found == {
        "data": set(_DATA_ONLY),
        "programs": set(_PROGRAMS),
        "loads": set(_LOADS),
        "pickles": set(_PICKLES),
    }


def test_new_processes_import_nothing_from_the_current_folder(tmp_path: Path) -> None:
    """Compile workers found `json` where kiln was started, before they looked into Python's own."""
    for name in ("json", "struct", "llvmlite", "tensorkiln"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hostile')\n")
    done = subprocess.run(
        python_command("tensorkiln.codegen.llvm.worker"),
        cwd=tmp_path,
        input=b"",
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    package = Path(tensorkiln.__file__).parent
    for name, what in _PROGRAMS.items():
        if what == "python_command":
            text = (package / name).read_text()
            assert "python_command(" in text and "sys.executable" not in text


def test_the_command_line_says_it_once(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorkiln.cli import main

    cache = Cache(place / "cache")
    cache.put(KEY, b"x")
    cache.root.chmod(0o777)
    monkeypatch.setenv("KILN_CACHE_DIR", str(cache.root))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["targets", "llvm"]) == 0
        assert Cache(cache.root).get(KEY) is None
    errors = capsys.readouterr().err
    assert errors.count("kiln: warning: the cache") == 1
    assert untold_refusal() == ""


def test_a_compile_goes_on_without_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorkiln.runtime import load_module
    from tests.link import sample

    cache = Cache(place / "cache")
    cache.put(KEY, b"x")
    cache.root.chmod(0o777)
    monkeypatch.setenv("KILN_CACHE_DIR", str(cache.root))
    monkeypatch.setenv("CC", "gcc")
    with pytest.warns(UserWarning, match="the cache .* is not used"):
        library = sample.build(place / "mlp.so")
    assert len(list(cache.root.rglob("*"))) == 3, "nothing was written there"
    assert load_module(library) is not None


# -- state of the process --------------------------------------------------------------------------


def test_the_umask_is_never_touched(place: Path) -> None:
    """A thread makes files all the while: each as the umask says, whatever links beside it."""
    from tests.link import sample

    before = os.umask(0o027)
    stop, modes = threading.Event(), set[int]()

    def make() -> None:
        count = 0
        while not stop.is_set():
            count += 1
            file = place / f"{count}"
            os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o666))
            modes.add(file.stat().st_mode & 0o777)
            file.unlink()

    thread = threading.Thread(target=make)
    try:
        thread.start()
        for _ in range(3):
            library = sample.build(place / "mlp.so")
            with atomic_path(place / "text") as temporary:
                temporary.write_text("x")
        assert library.stat().st_mode & 0o777 == 0o750
        assert (place / "text").stat().st_mode & 0o777 == 0o640
    finally:
        stop.set()
        thread.join()
        os.umask(before)
    assert modes == {0o640}


# Calls that change what all threads of a process share, and where they are none the less.
_SHARED = {
    ("os", "umask"),
    ("os", "chdir"),
    ("os", "fchdir"),
    ("os", "putenv"),
    ("os", "setuid"),
    ("locale", "setlocale"),
    ("sys", "setrecursionlimit"),
    ("sys", "set_int_max_str_digits"),
    ("signal", "signal"),
    ("warnings", "simplefilter"),
    ("warnings", "filterwarnings"),
    ("warnings", "catch_warnings"),
    ("logging", "disable"),
    ("gc", "disable"),
    ("gc", "enable"),
    ("contextlib", "redirect_stdout"),
    ("contextlib", "redirect_stderr"),
    ("contextlib", "chdir"),
    ("threading", "stack_size"),
    ("resource", "setrlimit"),
    ("random", "seed"),
    ("np", "seterr"),
    ("socket", "setdefaulttimeout"),
    ("os", "dup2"),
}
_ALLOWED = {
    ("base/interrupts.py", "signal.signal"),  # the main thread's, who else gets none
    ("cli/screen.py", "os.dup2"),  # the command's own standard streams
    ("frontend/torch/quiet.py", "warnings.catch_warnings"),  # no thread has filters of its own
    ("frontend/torch/quiet.py", "warnings.simplefilter"),
    ("cli/screen.py", "sys"),  # the command's own standard streams
    ("frontend/torch/quiet.py", "sys"),  # passes on what other threads write
    ("scale/local.py", "signal.signal"),  # in a process of its own, before it has work
}


def test_nothing_else_changes_what_threads_share() -> None:
    found = set()
    for name, tree in _trees().items():
        found |= {(name, f"{o}.{c}") for o, c in _calls(tree) if (o, c) in _SHARED}
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else ()
            written = {
                ast.unparse(part)
                for t in targets
                for part in ast.walk(t)
                if isinstance(part, ast.Attribute)
            }
            assert "os.environ" not in written, name
            if any(one.startswith("sys.") for one in written):
                found.add((name, "sys"))
    assert found == _ALLOWED


def test_a_namespace_that_does_not_know_root(tmp_path: Path) -> None:
    """In a sandbox `/` belongs to the user that stands for those it does not know."""
    script = (
        "import os, json; from tensorkiln.base import trust; "
        "reason = trust.distrust(trust.Path('/')); "
        "print(json.dumps([os.stat('/').st_uid, trust._trusted(), reason]))"
    )
    command = ["unshare", "--user", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    if done.returncode != 0:
        pytest.skip(f"no user namespace can be made here: {done.stderr.strip()[:80]}")
    owner, trusted, reason = json.loads(done.stdout)
    assert owner in trusted and reason == ""
    assert owner not in trust._trusted() or owner == 0


def test_acl_makes_the_group_others(place: Path) -> None:
    """With an access list, the bits of the group are those of whom it names too."""
    shared = place / "shared"
    shared.mkdir()
    shared.chmod(0o770)
    if distrust(shared):
        pytest.skip("this user has no group of his own")
    entry = np.array(
        [(1, 7, -1), (2, 7, OTHER), (4, 7, -1), (16, 7, -1), (32, 0, -1)],
        dtype=[("tag", "<u2"), ("perm", "<u2"), ("id", "<i4")],
    )
    try:
        os.setxattr(shared, trust._ACL, (2).to_bytes(4, "little") + entry.tobytes())
    except OSError as error:
        pytest.skip(f"no access lists here: {error.strerror}")
    assert "can be written to by others" in distrust(shared)


def test_a_group_of_others_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose primary group it is are members too, which the group does not list."""
    import grp
    import pwd

    def user(name: str, number: int, group: int) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", number, group, "", "/", "/bin/sh"))

    one, other = user("one", 1000, 1000), user("other", 1001, 1000)
    group = grp.struct_group(("one", "x", 1000, []))
    monkeypatch.setattr(pwd, "getpwuid", lambda number: one)
    monkeypatch.setattr(grp, "getgrgid", lambda number: group)
    for users, trusted in (([one], (1000,)), ([one, other], ()), ([], (1000,))):
        monkeypatch.setattr(pwd, "getpwall", lambda users=users: users)
        assert trust._own_groups.__wrapped__(1000) == trusted

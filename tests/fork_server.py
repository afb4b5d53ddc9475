"""Processes of `kiln` and `python` that begin where all imports are done.

A page of the documentation starts a dozen of them, and each would import for half a second of CPU
time what the last one did. `fork_server()` has the commands `kiln` and `python` in a folder
for PATH. They hand their arguments, folder, environment and streams to a server, whose
child goes on with them; they end with its status. What is told by a fresh process alone, such as
streams that are closed, how Python is configured or what is imported, needs one.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import marshal
import os
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Only what is compiled in, which a bare interpreter imports in a few milliseconds.
_CLIENT = """\
import _socket, marshal, os, struct, sys
command, place, *argv = sys.argv[1:]
if command == "python" and argv[0].startswith("-"):
    os.execv(sys.executable, [sys.executable, *argv])
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
server.connect(place)
body = marshal.dumps((command, argv, os.getcwd(), dict(os.environ)))
streams = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("3i", 0, 1, 2))]
server.sendmsg([struct.pack("<Q", len(body))], streams)
server.sendall(body)
os._exit(server.recv(1)[0])
"""
_IMPORTED = (
    "tensorkiln.cli.entry",
    "tensorkiln.checks",
    "tensorkiln.frontend.onnx",
    "tensorkiln.inspectors",
    "tensorkiln.pipeline",
    "tensorkiln.report",
    "tensorkiln.runtime",
    "tensorkiln.verification",
)


@contextlib.contextmanager
def fork_server() -> Iterator[Path]:
    """The folder with the commands `kiln` and `python`, while the server runs."""
    with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as listener:
        folder = Path(name)  # short: the path of a socket has at most 107 characters
        (folder / "client.py").write_text(_CLIENT)
        for command in ("kiln", "python"):
            line = (
                f'exec "{sys.executable}" -I -S {folder}/client.py {command} {folder}/socket "$@"'
            )
            (folder / command).write_text(f"#!/bin/sh\n{line}\n")
            (folder / command).chmod(0o755)
        listener.bind(str(folder / "socket"))
        listener.listen()
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.fork_server", str(listener.fileno())],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            pass_fds=[listener.fileno()],
        )
        try:
            yield folder
        finally:
            server.terminate()
            server.wait()


def _serve(listener: socket.socket) -> None:
    """Fork for each client a child that goes on as it; this returns in none of them."""
    while True:
        client, _ = listener.accept()
        with contextlib.suppress(ChildProcessError):  # there is none
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork() == 0:
            break
        client.close()
    listener.close()
    head, streams, *_ = socket.recv_fds(client, 8, 3)
    body = client.recv(int.from_bytes(head, "little"), socket.MSG_WAITALL)
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        client.send(bytes([code if code >= 0 else 128 - code]))
        os._exit(0)
    client.close()
    for stream, fd in enumerate(streams):
        os.dup2(fd, stream)
        os.close(fd)
    # Those of this process say whether its own streams were files, which can be sought in.
    sys.stdin, sys.stdout = (
        os.fdopen(fd, mode, closefd=False) for fd, mode in ((0, "r"), (1, "w"))
    )
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    command, sys.argv[1:], folder, environment = marshal.loads(body)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if command == "python":
        sys.argv.pop(0)
    _go_on(command)


def _go_on(command: str) -> None:
    """Run `kiln` or the script that sys.argv begins with; raise SystemExit at its end."""
    if command == "kiln":
        from tensorkiln.cli import main

        sys.exit(main())
    script = Path(sys.argv[0])
    sys.path[0] = str(script.parent.resolve())
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    module.__file__ = str(script)
    exec(compile(script.read_bytes(), str(script), "exec"), module.__dict__)
    sys.exit()


if __name__ == "__main__":
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))

"""The Dockerfiles of docs/tutorial/docker.md, line by line, where there is no Docker: a stage is a
folder and an environment with our wheels, and everything but the images is as written."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from examples.make_mlp import make_mlp
from tests import processors
from tests.release.conftest import ROOT, Make, Release
from tests.release.environments import COMPILER, Environment

PAGE = (ROOT / "docs" / "tutorial" / "docker.md").read_text(encoding="utf-8")
FILES = {
    text.split()[1]: text
    for kind, text in re.findall(r"```(\w+)\n(.*?)```", PAGE, re.S)
    if kind in ("dockerfile", "c") or text.startswith("# run.py")
}


@dataclass
class Stage:
    """What a stage has: its folder, which is its WORKDIR, and the packages that were installed."""

    folder: Path
    workdir: str = "/"
    packages: set[str] = field(default_factory=set)
    environment: Environment | None = None


class Docker:
    """Does what a Dockerfile of the page says; any line that it does not know is an error."""

    def __init__(self, folder: Path, release: Release, make: Make):
        self.context, self.folder = folder / "context", folder
        self.release, self.make = release, make
        self.stages: dict[str, Stage] = {}

    def build(self, text: str) -> str:
        """Run all lines; what the CMD of the last stage prints."""
        stage = Stage(self.folder)
        for line in text.splitlines()[1:]:
            word, _, arguments = line.partition(" ")
            if word == "FROM":
                assert re.fullmatch(r"(python:3\.\d+|debian:stable)-slim( AS \w+)?", arguments)
                name = arguments.rpartition(" AS ")[2]
                stage = self.stages[name] = Stage(self.folder / f"stage{len(self.stages)}")
                stage.folder.mkdir()
            elif word == "WORKDIR":
                stage.workdir = arguments
            elif word == "COPY":
                self._copy(stage, shlex.split(arguments))
            elif word == "RUN" and arguments.startswith("pip install --no-cache-dir "):
                stage.environment = self._environment(arguments.rpartition(" ")[2])
            elif word == "RUN":
                self._run(stage, ["sh", "-euc", arguments])
            elif word == "CMD":
                return self._run(stage, json.loads(arguments))
            else:
                assert not line, line
        raise AssertionError("no CMD")

    def _copy(self, stage: Stage, words: list[str]) -> None:
        source = self.context
        if words[0].startswith("--from="):
            source_stage = self.stages[words.pop(0).removeprefix("--from=")]
            words[0] = str(Path(words[0]).relative_to(source_stage.workdir))
            source = source_stage.folder
        *names, place = words
        assert place == "." and names
        for name in names:
            shutil.copy(source / name, stage.folder / name)

    def _environment(self, package: str) -> Environment:
        if package == "tensorkiln-runtime":
            return self.make([self.release.runtime_wheel])
        assert package == "tensorkiln"
        wheels = [self.release.runtime_wheel, self.release.wheel]
        return self.make(wheels, ("numpy", *COMPILER))

    def _run(self, stage: Stage, command: list[str]) -> str:
        programs = [str(stage.environment.programs)] if stage.environment else []
        path = ":".join([*programs, "/usr/bin", "/bin"])
        program = shutil.which(command[0], path=path) or str(stage.folder / command[0])
        process = subprocess.run(
            [program, *command[1:]],
            cwd=stage.folder,
            env={"PATH": path, "HOME": str(self.folder), "KILN_PROGRESS": "off"},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert process.returncode == 0, f"{command}\n{process.stdout}\n{process.stderr}"
        return process.stdout


@pytest.mark.in_turn()
@pytest.mark.parametrize("file", ["Dockerfile", "Dockerfile.c"])
def test_the_lines_of_a_dockerfile(
    file: str, release: Release, environment: Make, tmp_path: Path
) -> None:
    docker = Docker(tmp_path, release, environment)
    docker.context.mkdir()
    model = make_mlp()
    (docker.context / "mlp.onnx").write_bytes(model.SerializeToString())
    for name, text in FILES.items():
        (docker.context / name).write_text(text)
    processors.require(tk.Target({"kind": "llvm", "mcpu": "x86-64-v3"}))
    output = docker.build(FILES[file])
    best = tk.compile(model)(np.full((1, 784), 0.5, np.float32)).argmax()
    assert output == f"{best}\n"

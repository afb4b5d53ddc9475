"""Archives of versions 5 to 7, written by hand from the format's description."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

MAIN = [
    {"device": 1, "workspace_size_bytes": 1312, "constants_size_bytes": 640, "io_size_bytes": 80}
]
NAMED = [
    {
        **MAIN[0],
        "inputs": {"x": {"dtype": "float32", "size": 40}},
        "outputs": {"output": {"dtype": "float32", "size": 40}},
    }
]
OPERATORS = [
    {
        "function_name": "tvmgen_default_fused_nn_conv2d",
        "workspace": [{"device": 1, "workspace_size_bytes": 432}],
    }
]
RUNTIME = {
    "short_name": "tvm_standalone_crt",
    "url": "./runtime",
    "url_type": "mlf_path",
    "version_spec": "0.11.0",
}


def _model(main: list[dict[str, Any]], target: object, executor: str = "aot") -> dict[str, Any]:
    return {
        "model_name": "default",
        "export_datetime": "2022-07-01 12:30:00Z",
        "memory": {"functions": {"main": main, "operator_functions": OPERATORS}},
        "target": target,
        "executors": [executor],
        "style": "full-model",
    }


def _graph(target: object) -> dict[str, Any]:
    model = _model(MAIN, target, "graph")
    model["memory"]["sids"] = [
        {"storage_id": 0, "size_bytes": 40, "input_binding": "x"},
        {"storage_id": 1, "size_bytes": 432},
    ]
    return model


def _operator(version: int, target: object) -> dict[str, Any]:
    buffers = [
        {"size_bytes": 40, "shape": [1, 10], "dtype": "float32", "input_binding": "A"},
        {"size_bytes": 40, "shape": [1, 10], "dtype": "float32", "input_binding": ""},
    ]
    return {
        "version": version,
        "model_name": "add",
        "export_datetime": "2022-07-01 12:30:00Z",
        "memory": {"tvmgen_add": buffers},
        "target": target,
        "executors": [],
        "style": "operator",
    }


TARGETS = ["c -keys=cpu -link-params=0 -model=host"]
# By name: metadata.json, and the other files.
ARCHIVES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "5": ({"version": 5, **_graph({"1": TARGETS[0]})}, ("executor-config/graph/graph.json",)),
    "5 operator": (_operator(5, {"1": TARGETS[0]}), ("src/tir-1.txt",)),
    "6": ({"version": 6, **_model(MAIN, TARGETS)}, ()),
    "6 with a runtime": (
        {"version": 6, **_model(NAMED, TARGETS), "external_dependencies": [RUNTIME]},
        ("runtime/include/crt.h",),
    ),
    "7": ({"version": 7, "modules": {"default": _model(NAMED, TARGETS)}}, ()),
    "7 of two models": (
        {
            "version": 7,
            "modules": {
                "default": {**_model(NAMED, TARGETS), "external_dependencies": [RUNTIME]},
                "other": {**_graph(TARGETS), "model_name": "other"},
            },
        },
        (),
    ),
    "7 operator": (_operator(7, TARGETS), ("src/tir-1.txt",)),
}
SOURCE = "./codegen/host/src/default_lib0.c"


def write(path: Path, metadata: object, further_members: tuple[str, ...] = ()) -> Path:
    """An archive as those versions laid it out: members begin with `./`, folders are members."""
    with tarfile.open(path, "w") as archive:
        folder = tarfile.TarInfo("./codegen")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        files = {"./metadata.json": json.dumps(metadata, indent=2), SOURCE: "int default_lib0;\n"}
        for name, text in {**files, **{f"./{o}": "text\n" for o in further_members}}.items():
            data = text.encode()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(data), 1656678600
            archive.addfile(entry, io.BytesIO(data))
    return path

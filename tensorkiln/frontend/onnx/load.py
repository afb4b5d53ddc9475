"""Parse a file, bytes or a protobuf object into `proto.Model`; UserError if it is not a model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.files import names_beside
from tensorkiln.base.origin import ModelSource, sha256_of
from tensorkiln.frontend.onnx.proto import MODEL, OnnxModel
from tensorkiln.frontend.onnx.tensors import ExternalFiles, map_path
from tensorkiln.frontend.onnx.wire import WireError, decode


@dataclass(frozen=True, slots=True, eq=False)
class ParsedModel:
    """A parsed model, its name in error messages (`where`), and the external files it may read."""

    model: OnnxModel
    where: str
    files: ExternalFiles
    file_name: str = ""  # without its suffix; empty for a model in memory
    data: bytes | memoryview = b""  # the whole file

    def digest(self) -> str:
        """The SHA-256 of the whole file."""
        return sha256_of(self.data)

    def source(self, freeze: Mapping[str, int] | None, digest: str) -> ModelSource:
        """The hash of the model, and those of the files of weights that were read until now."""
        sizes = tuple((name, int(size)) for name, size in (freeze or {}).items())
        return ModelSource("onnx", digest, self.files.hashes(), sizes)


def load(model: Any, roots: Sequence[Path] = ()) -> ParsedModel:
    """Parse a model given as a path, the bytes of a file, or an `onnx.ModelProto`.

    `roots` are folders besides the model's own from which external data may be read. Raises
    UserError with code `missing-file` if the file cannot be read, else `bad-model`.
    """
    if isinstance(model, (bytes, bytearray, memoryview)):
        return _source(memoryview(model).cast("B"), "model bytes", None, roots)
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        source = _source(_read(path), str(path), path.absolute().parent, roots)
        return replace(source, file_name=path.stem)
    if hasattr(model, "SerializeToString"):
        # Protobuf cannot serialise more than 2 GB; the class of its error depends on its version.
        try:
            data = model.SerializeToString()
        except Exception as error:
            raise UserError(
                f"the model object cannot be serialised: {error}",
                code="bad-model",
                hint="save it with external data and pass the path",
            ) from error
        return _source(memoryview(data), "model object", None, roots)
    raise UserError(
        f"expected a path, bytes or an onnx.ModelProto, got {type(model).__name__}",
        code="bad-model",
    )


def _read(path: Path) -> memoryview:
    place = str(path)
    if path.is_dir():
        raise UserError("it is a folder, expected an .onnx file", code="bad-model", where=place)
    try:
        return map_path(path)
    except FileNotFoundError:
        hint = nearest(path.name, names_beside(path))
        raise UserError("no such file", code="missing-file", where=place, hint=hint) from None
    except ValueError:  # a zero byte, or half of a surrogate pair
        raise UserError("not a valid path", code="missing-file", where=place) from None
    except OSError as error:
        raise UserError(
            f"cannot be read: {error.strerror}", code="missing-file", where=place
        ) from error


def _source(
    data: memoryview, place: str, folder: Path | None, roots: Sequence[Path]
) -> ParsedModel:
    if not len(data):
        raise UserError("the file is empty", code="bad-model", where=place)
    hint = _looks_like(bytes(data[:64]))
    try:
        model = decode(MODEL, data)
    except WireError as error:
        raise UserError(
            f"not an ONNX model, or cut short: {error}", code="bad-model", where=place, hint=hint
        ) from error
    if model.graph is None:
        raise UserError(
            "not an ONNX model: it holds no graph", code="bad-model", where=place, hint=hint
        )
    return ParsedModel(model, place, ExternalFiles(folder, roots), data=data)


def _looks_like(head: bytes) -> str:
    """A hint at what the file is, for known first bytes; empty for others."""
    signs = {
        b"version https://git-lfs": "it is a Git LFS pointer; `git lfs pull` fetches the model",
        b"<": "it looks like a web page; the download went wrong",
        b"PK\x03\x04": "it is a zip file (a PyTorch checkpoint?); export the model to ONNX",
        b"{": "it looks like JSON",
        b"\x08TFL3": "it looks like a TFLite model",
    }
    for sign, text in signs.items():
        if head.lstrip().startswith(sign):
            return text
    return "it looks like a TFLite model" if head[4:8] == b"TFL3" else ""

"""The job of a farm's worker: build one row of the manifest, from a model to files in the output.

It does what `kiln compile` does. The key of a row is a hash of everything that its bytes depend on:
model, target, options, and the compiler itself (`compiler_identity`: the sources of the package,
versions of its dependencies, the linker, plugins). So a row may be built twice, on any machine, and
its result can be cached for other farms (`results.py`). Files are written atomically.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath

from tensorkiln.base.cache import user_cache
from tensorkiln.base.entry_points import entry_points_of, package_of
from tensorkiln.base.errors import UserError
from tensorkiln.base.files import resolve_inside
from tensorkiln.base.origin import ModelSource
from tensorkiln.base.progress import Progress
from tensorkiln.base.sources import package_digest
from tensorkiln.base.trust import private_temporary
from tensorkiln.base.version import VERSION
from tensorkiln.frontend import hashes_of, import_model
from tensorkiln.frontend.onnx.summary import file_names
from tensorkiln.link.toolchain import choose_toolchain
from tensorkiln.pipeline import compile
from tensorkiln.scale.manifest import ManifestRow
from tensorkiln.scale.options import Options
from tensorkiln.scale.results import BuiltFile, Results
from tensorkiln.scale.storage import download, is_url, storage_of
from tensorkiln.target import Target

_RECORDS = ".records"  # a name that no output can have
MOST_INLINE = 1 << 16  # bytes of the largest model that is sent along with its jobs
_LIBRARIES = ("llvmlite", "numpy", "ml_dtypes")
_PLUGINS = ("tensorkiln.externals", "tensorkiln.kernel_families", "tensorkiln.onnx_importers")


@functools.cache
def compiler_identity() -> dict[str, str]:
    """What the bytes of a compile depend on besides model, target and options: the sources of this
    package, the versions of the packages that it computes, generates code and links with, and the
    installed plugins."""
    versions = {"tensorkiln": VERSION, "sources": package_digest()}
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    with suppress(UserError):  # archives can be built without a linker
        versions["linker"] = choose_toolchain("x86_64-linux-gnu").identity
    for group in _PLUGINS:
        for point in entry_points_of(group):
            of = point.dist.version if point.dist else "?"
            versions[f"{group}: {point.name}"] = f"{package_of(point)} {of}"
    return versions


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model by the hashes of its files, and where a worker may find it: at the path `local`, if
    the worker runs on this machine or shares the folder; in this object, if the model is small; in
    the shared cache; or at its URL. `path` is what the manifest says."""

    path: str
    local: str
    source: ModelSource
    data: bytes | None = None

    @staticmethod
    def at(path: str, local: Path) -> ModelFile:
        """The model of a path or URL, whose files are at the path `local` at the moment. UserError
        as `hashes_of`."""
        source = hashes_of(local)
        small = not source.weights and local.stat().st_size <= MOST_INLINE
        return ModelFile(path, str(local), source, local.read_bytes() if small else None)

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """Names, the model's own first, and hashes of all files of the model."""
        return ((PurePosixPath(self.path).name, self.source.sha256), *self.source.weights)


@dataclass(frozen=True, slots=True)
class Work:
    """Everything that a worker needs to build a row."""

    key: str
    names: tuple[str, ...]
    model: ModelFile
    target: str  # as JSON
    options: Options
    compiler: Mapping[str, str]
    output: str
    cache: str | None
    jobs: int


def work_of(row: ManifestRow, model: ModelFile, output: str, cache: str | None, jobs: int) -> Work:
    """The work of a row. Its key is the hash of everything that the row's bytes depend on."""
    compiler = compiler_identity()
    source = model.source
    decides = {
        "model": [source.kind, source.sha256, sorted(source.weights)],
        "target": row.target.to_json(),
        "options": row.options.to_json(),
        "names": [PurePosixPath(name).name for name in row.names],  # a library names its weights
        "compiler": compiler,
    }
    key = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
    return Work(key, row.names, model, str(row.target), row.options, compiler, output, cache, jobs)


@dataclass(frozen=True, slots=True)
class Built:
    """A worker's answer for one row."""

    files: tuple[BuiltFile, ...]
    cached: bool
    notes: tuple[str, ...] = ()


def build(work: Work) -> Built:
    """Build the files of a row, or take them from a cache, and write them to the output. Raises the
    errors of `compile` and of the exports, and UserError where this worker has another version of
    the compiler (code `other-compiler`), cannot get the model, or finds that the model has changed
    since."""
    _require_compiler(work.compiler)
    results = results_of(work.cache)
    results.look()
    output = storage_of(work.output)
    with private_temporary("kiln-farm-") as temporary:
        folder = Path(temporary)
        files = _found(work, results, folder)
        cached, notes = files is not None, tuple[str, ...]()
        if files is None:
            notes = _made(work, results, folder)
            paths = {name: _path(folder, name) for name in work.names}
            files = tuple(BuiltFile.of(name, path) for name, path in paths.items())
            results.keep(work.key, files, paths)
        for file in files[1:] + files[:1]:  # the library last: it needs what is beside it
            output.put(file.name, _path(folder, file.name))
    return Built(files, cached, (*notes, *results.notes))


def results_of(cache: str | None) -> Results:
    """The cache of results at a place, with this user's local cache in front of it."""
    return Results(storage_of(cache) if cache else None, user_cache())


def _path(folder: Path, name: str) -> Path:
    return folder / PurePosixPath(name).name


def _found(work: Work, results: Results, folder: Path) -> tuple[BuiltFile, ...] | None:
    """The files of a cached result, copied to a folder and named after this row: the same result
    may have been made for a row of another name. None if it is not cached."""
    cached_files = results.find(work.key)
    if cached_files is None or len(cached_files) != len(work.names):
        return None
    files = tuple(
        BuiltFile(name, f.sha256, f.bytes) for name, f in zip(work.names, cached_files, strict=True)
    )
    return files if all(results.fetch(f, _path(folder, f.name)) for f in files) else None


def _made(work: Work, results: Results, folder: Path) -> tuple[str, ...]:
    """Compile and export the row, as `kiln compile` does; return the notes of the compile."""
    options, progress = work.options, Progress()
    with _at_hand(work.model, results) as model:
        module = import_model(model, freeze=options.freeze, shapes=options.shapes)
        _require_same(work.model, module.source)
        records = folder / _RECORDS
        records.write_text(options.records, encoding="utf-8")
        executable = compile(
            module,
            Target(work.target),
            name=options.name,
            externals=options.externals,
            progress=progress,
            max_workspace=options.max_workspace,
            allow_licenses=options.allow_licenses,
            deny_licenses=options.deny_licenses,
            debug=options.debug,
            jobs=work.jobs,
            records=records if options.records else None,
        )
        output = _path(folder, work.names[0])
        if options.format == "mlf":
            executable.export_model_library_format(output)
        else:
            executable.export_library(output, weights=options.weights)
    return tuple(progress.notes)


def _require_compiler(expected: Mapping[str, str]) -> None:
    identity = compiler_identity()
    differs = [k for k in sorted({*identity, *expected}) if identity.get(k) != expected.get(k)]
    if differs:
        name = differs[0]
        raise UserError(
            f"this worker has another compiler: {name} is {identity.get(name)!r}, expected "
            f"{expected.get(name)!r}",
            code="other-compiler",
            hint="install the same packages there, and set CC to the same",
        )


def _require_same(model: ModelFile, source: ModelSource | None) -> None:
    assert source is not None
    weights = dict(model.source.weights)
    if source.sha256 != model.source.sha256 or any(weights.get(n) != h for n, h in source.weights):
        raise UserError(
            "the model has changed since the farm began", code="changed", where=model.path
        )


@contextmanager
def _at_hand(model: ModelFile, results: Results) -> Iterator[Path]:
    """The path of a model's file, with its files of weights beside it."""
    local = Path(model.local)
    if local.is_file() and (model.data is None or local.read_bytes() == model.data):
        yield local
        return
    with private_temporary("kiln-model-") as folder:
        yield _fetched(model, results, Path(folder))


def _fetched(model: ModelFile, results: Results, folder: Path) -> Path:
    """The path of a model in a folder, after its files were copied there. UserError (code
    `missing-file`) if neither a cache nor a URL provides them."""
    model_name = model.files[0][0]
    for name, sha256 in model.files:
        to = resolve_inside(folder, name)
        to.parent.mkdir(parents=True, exist_ok=True)
        if name == model_name and model.data is not None:
            to.write_bytes(model.data)
        elif not results.fetch(BuiltFile(name, sha256, 0), to) and not _downloaded(model, name, to):
            raise UserError(
                f"{name!r} is not on this machine, and no cache has it",
                code="missing-file",
                where=model.path,
                hint="keep models where all machines find them, or give them a cache: --cache URL",
            )
    return folder / model_name


def _downloaded(model: ModelFile, name: str, to: Path) -> bool:
    if not is_url(model.path):
        return False
    parent = model.path.rpartition("/")[0]
    return download(f"{parent}/{name}", to)


def download_model(url: str, folder: Path) -> Path:
    """The path of a model in a folder, after it and its files of weights were downloaded there.
    UserError (code `missing-file`) if one of them does not exist."""
    parent, _, model_name = url.rpartition("/")
    names = [model_name]
    for name in names:  # the list grows once the model has been read
        to = resolve_inside(folder, name)
        to.parent.mkdir(parents=True, exist_ok=True)
        if not download(f"{parent}/{name}", to):
            raise UserError("no such file", code="missing-file", where=f"{parent}/{name}")
        if name == model_name and to.suffix.lower() == ".onnx":
            names += file_names(to)
    return folder / model_name

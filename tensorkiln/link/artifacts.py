"""`link_artifacts`: a set of artifacts into one library, step by step.

collect  native artifacts: C sources, objects, weights, and the link plan
pack     all other groups into a container (docs/formats/container.md), as one more object
save     into the work folder: sources under names of their own, objects as `kernel_0000.o`, ...
compile  the C sources, and check which object defines and which needs each symbol
link     with the C runtime; the weights are appended to the linker's output
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tensorkiln.artifact import Artifact, ArtifactSet, Content, InMemoryArtifact, LoaderGroup
from tensorkiln.artifact.artifact import FileContent, content_size
from tensorkiln.artifact.dependency import checked_libraries
from tensorkiln.artifact.metadata import ConstantInfo, constants_from
from tensorkiln.artifact.read_binary import binary_of
from tensorkiln.artifact.sections import ARTIFACTS, ARTIFACTS_HEAD
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.base.record import OMITTED, JsonKind, JsonRecord, word, words
from tensorkiln.base.schema import Reader
from tensorkiln.link.data_section import DataSection
from tensorkiln.link.isolate import ADDON
from tensorkiln.link.libraries import naming_dependencies
from tensorkiln.link.object_format import format_of, library_arch
from tensorkiln.link.shared import Fcompile, link_shared

LINK_PLAN = "link.json"
WEIGHTS = "weights.bin"
# Loaders whose artifacts are not packed into a library's container: they are linked (into a file or
# in memory), or only there to be read.
NOT_EMBEDDED = ("native", "llvmjit", "header", "text")
LOADER_EXPORTS = (
    "kiln_call_import",
    "kiln_has_loader",
    "kiln_module",
    "kiln_register_loader",
    "kiln_set_last_error",
    "kiln_set_module",
)
_SYMBOL = "kiln_container_data"
_VERSION = 1
_BAD = "bad-artifact"
# Legal values of a link plan. It is untrusted input, and its values become file names and options
# of tools.
# Stems that a C source may not have: its object would overwrite an intermediate file of the link.
_TAKEN = re.compile(r"kernel_\d+|runtime|merged|code|whole|weights|stub")


def is_embedded(group: LoaderGroup) -> bool:
    """Whether the group goes into the library's container, for its loader to load at run time."""
    return group.loader not in NOT_EMBEDDED


_EXPORTS = words(r"[A-Za-z_$][A-Za-z0-9_$]{0,999}", "a name of C")
_Prefix = Annotated[str, word(r"([A-Za-z_][A-Za-z0-9_]{0,999})?", "the beginning of a name of C")]


def _libraries(reader: Reader, key: str) -> tuple[str, ...]:
    try:
        return checked_libraries(reader.texts(key), key)
    except UserError as error:
        raise reader.wrong(error.message, key, error.hint) from None


@dataclass(frozen=True, slots=True)
class LinkPlan(JsonRecord):
    """What a link needs to know besides the files that are linked: artifact `host/link.json`."""

    name: Annotated[str, word(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}", "a name for a library")]
    triple: Annotated[
        str, word(r"[A-Za-z0-9_.]{1,40}(-[A-Za-z0-9_.]{1,40}){1,5}", "a target triple")
    ]
    exports: Annotated[tuple[str, ...], _EXPORTS] = ()
    libraries: Annotated[tuple[str, ...], JsonKind(_libraries)] = ()
    prefix: _Prefix = ""  # of the C entries; in a static library also of internal symbols
    system_lib_prefix: _Prefix = ""
    # Weights begin at a page, not at a huge one.
    compact: bool = field(default=False, metadata=OMITTED)

    def to_bytes(self) -> bytes:
        """The content of `link.json`."""
        plan = {"version": _VERSION, **self.to_json(), "prefix": self.prefix or self.name}
        return (json.dumps(plan, indent=1) + "\n").encode()

    @classmethod
    def of(cls, artifacts: ArtifactSet) -> LinkPlan:
        """Read the plan among the artifacts. UserError (code `bad-artifact`) unless there is
        exactly one, of this version, and all its values are legal."""
        plans = [a for a in artifacts if a.file_name == LINK_PLAN and a.codegen_id == "host"]
        if len(plans) != 1 or not isinstance(plans[0], Artifact):
            raise UserError(
                f"expected one artifact {LINK_PLAN!r}, as of one compile; received {len(plans)}",
                code="bad-artifact",
            )
        plan = Reader.of_text(plans[0].view, plans[0].name, _BAD)
        version = plan.get("version", int)
        if version != _VERSION:
            raise plan.wrong(f"version {version}, expected {_VERSION}", "version")
        return cls.read(plan)


def link_artifacts(
    artifacts: ArtifactSet,
    output: str | Path,
    *,
    fcompile: Fcompile | str | None = None,
    workspace_dir: str | Path | None = None,
    addons: Sequence[str | Path | bytes] = (),
    exports: Sequence[str] = (),
    in_memory: bool = False,
    beside: bool = False,
) -> Path:
    """Link the artifacts of a whole compile into the shared library `output` and return its path.

    With `beside`, weights go into a separate file next to it (artifact/weights_file.py). With
    `in_memory`, artifacts that have no form as bytes are allowed: the library lists their groups,
    and the process that loads it supplies the modules. Otherwise they are a UserError (code
    `in-memory-artifact`). Damaged or missing artifacts are a UserError (code `bad-artifact`), and
    `link_shared` raises further errors.
    """
    plan = LinkPlan.of(artifacts)
    parts = parts_of(artifacts, plan, addons, in_memory=in_memory)
    with naming_dependencies(artifacts):
        return link_shared(
            [data for _, data in parts.objects],
            parts.sources,
            parts.weights,
            output,
            triple=plan.triple,
            exports=[*plan.exports, *exports, *(LOADER_EXPORTS if parts.carries else ())],
            libraries=plan.libraries,
            fcompile=fcompile,
            workspace_dir=workspace_dir,
            owners=[owner for owner, _ in parts.objects],
            authors=parts.authors,
            beside=_constants(artifacts) if beside else None,
            compact=plan.compact,
        )


def _constants(artifacts: ArtifactSet) -> tuple[ConstantInfo, ...]:
    """The table of constants in the weights, from `host/weights.json`; empty without that file."""
    for a in artifacts.plain:
        if a.codegen_id == "host" and a.file_name == "weights.json":
            return constants_from(a.view, a.name)
    return ()


@dataclass(frozen=True, slots=True)
class LinkInputs:
    """The inputs of a link. `objects` are (owner, bytes) pairs; `sources` maps file names to C
    text, and `authors` the same file names to the artifacts that the text is from; `carries` says
    whether a container for loaders is among the objects."""

    objects: tuple[tuple[str, memoryview], ...]
    sources: Mapping[str, str]
    authors: Mapping[str, str]
    weights: Content | None
    carries: bool

    @property
    def has_weights(self) -> bool:
        """Whether there is at least one byte of weights."""
        return self.weights is not None and content_size(self.weights) > 0


def parts_of(
    artifacts: ArtifactSet,
    plan: LinkPlan,
    addons: Sequence[str | Path | bytes],
    *,
    in_memory: bool = False,
) -> LinkInputs:
    """Collect the native artifacts, and pack the groups of other loaders into a container object.

    UserError for artifacts of target llvmjit, for native ones that a linker cannot take, for
    artifacts without bytes (unless `in_memory`), and for addons that are not objects.
    UnsupportedError for artifacts that only a browser can load.
    """
    artifacts.require_loaders()
    in_process = [a.name for a in artifacts if a.loader == "llvmjit"]
    if in_process:
        raise UserError(
            f"artifact {in_process[0]} is of target llvmjit: it runs in this process, without a "
            "linker",
            code="in-memory-artifact",
            hint="compile for target llvm to export; save() keeps the artifacts",
        )
    browser = [a.name for a in artifacts if a.loader == "webgpu"]
    if browser:
        raise UnsupportedError(
            f"no library can run {browser[0]}: its host, in a browser, is not there yet",
            where="target",
            hint="a name ending in .tar, or artifacts.save(folder), has the WGSL of all kernels",
        )
    native = [a for a in (artifacts if in_memory else artifacts.plain) if a.loader == "native"]
    sources, objects, weights = _collected(native)
    named = [(a.name, a.view) for a in objects]
    named += addon_objects(addons, plan.triple)
    carries = any(map(is_embedded, artifacts.groups()))
    if carries:
        named.append(
            ("the container", memoryview(b"".join(container_object(artifacts, plan.triple))))
        )
    authors = _authors(sources)
    texts = {source_name(a): a.text() for a in sources}
    return LinkInputs(tuple(named), texts, authors, weights, carries)


def addon_objects(
    addons: Sequence[str | Path | bytes], triple: str
) -> list[tuple[str, memoryview]]:
    """Owners and bytes of the object files that the caller adds to a link. UserError for one that
    is not a relocatable object of the triple's architecture."""
    return [_addon(i, addon, triple) for i, addon in enumerate(addons)]


def _addon(number: int, addon: str | Path | bytes, triple: str) -> tuple[str, memoryview]:
    """The owner, `addon <path or number>`, and the bytes of one added object."""
    if isinstance(addon, str | Path):
        name, data = f"{ADDON}{addon}", FileContent(addon).view
    else:
        name, data = f"{ADDON}{number}", memoryview(addon)
    binary = binary_of(data, name)
    if not binary.relocatable or binary.machine != library_arch(triple):
        noun = "an object file" if binary.relocatable else "a library or a program"
        raise UserError(
            f"{name} is {noun} for {binary.machine}; an addon is an object file for "
            f"{library_arch(triple)}",
            code="bad-addon",
        )
    return name, data


def _collected(
    native: Sequence[Artifact | InMemoryArtifact],
) -> tuple[list[Artifact], list[Artifact], Content | None]:
    """C sources, objects and weights; UserError for any other file but the link plan."""
    sources, objects, weights = list[Artifact](), list[Artifact](), None
    for a in native:
        assert isinstance(a, Artifact)
        suffix = Path(a.file_name).suffix
        if suffix == ".c":
            sources.append(a)
        elif suffix == ".o":
            objects.append(a)
        elif a.file_name == WEIGHTS:
            weights = a.content
        elif a.file_name != LINK_PLAN:
            raise UserError(
                f"{a.name} is of loader 'native', and neither C source nor object",
                code="bad-artifact",
                hint="a name ending in .c or .o, or another loader",
            )
    return sources, objects, weights


def _authors(sources: Sequence[Artifact]) -> dict[str, str]:
    """Map the file name that each C source is compiled under to the source's artifact. UserError
    for a name that the compiler would take for an option, such as `-x.c`, for one that would
    overwrite another file of the link, and for one that two sources have."""
    author_of_file: dict[str, str] = {}
    for a in sources:
        name = source_name(a)
        if "/" in name or name.startswith(("-", "@")) or _TAKEN.fullmatch(Path(name).stem):
            raise UserError(
                f"{a.name} cannot be compiled under that name", code=_BAD, hint="another file name"
            )
        former = author_of_file.setdefault(name, a.name)
        if former != a.name:
            raise UserError(
                f"{former} and {a.name} are compiled under one name, {name!r}",
                code="name-clash",
                hint="another file name for one of them",
            )
    return author_of_file


def source_name(a: Artifact) -> str:
    """The file name under which a C source is compiled: `entry.c` for `host/entry.c`, but
    `mine_driver.c` for `mine/driver.c`, so that code generators do not clash."""
    is_common = a.codegen_id == "host" and not a.target_key
    return a.file_name if is_common else a.name.replace("/", "_")


def container_object(artifacts: ArtifactSet, triple: str) -> Iterator[bytes | memoryview]:
    """Yield the bytes of an object file with section `.kiln.artifacts`: a head of ARTIFACTS_HEAD
    bytes that begins with the container's size, then the container."""
    body = b"".join(artifacts.to_chunks(leave_out=NOT_EMBEDDED, in_memory=True))
    content = [len(body).to_bytes(ARTIFACTS_HEAD, "little"), body]
    size = ARTIFACTS_HEAD + len(body)
    section = DataSection(ARTIFACTS, "constant", 64, size, content)
    arch = library_arch(triple)
    return format_of(triple).data_object(arch, [section], _SYMBOL, 0, size)

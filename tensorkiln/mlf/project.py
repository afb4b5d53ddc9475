"""Projects for build systems, around an archive in Model Library Format."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tensorkiln.artifact.artifact import content_view
from tensorkiln.artifact.mlf.load import ModelLibrary, open_model_library
from tensorkiln.artifact.mlf.metadata import METADATA, Model
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import UnsupportedError, UserError, nearest, require
from tensorkiln.base.folders import atomic_dir, write_list
from tensorkiln.codegen.c_text.names import c_name
from tensorkiln.mlf.layout import RUNTIME
from tensorkiln.mlf.program_c import header_name, is_sized, program_c

_TEMPLATES = Path(__file__).parent / "templates"
_MODEL = "model"  # the folder of a project that has the archive
_PLACEHOLDER = re.compile(r"@([A-Z_]+)@")
# Paths of an archive that become words of build files: nothing that one of them would interpret.
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_+./-]*")
_LIBRARY = re.compile(r"[A-Za-z0-9_+./=,:-]+")


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of project. `files` maps paths in it to template files; `program` is the path of the
    program; `sources_only` says that its build system takes no objects."""

    files: Mapping[str, str]
    program: str
    values: Callable[[str, Mapping[str, Model]], dict[str, str]]
    main: str = "main"
    sources_only: bool = False


def new_project(archive: str | Path, folder: str | Path, template: str = "cmake") -> Path:
    """Write a project that builds the models of an archive, and a program that runs each of their
    functions once; return the folder.

    Raises UserError (`unknown-template`, those of `open_model_library` and of writing a folder),
    UnsupportedError for symbolic sizes, and for objects where the build system takes none.
    """
    require(template, str, "template")
    if template not in TEMPLATES:
        raise UserError(
            f"no template {template!r}; there are {', '.join(TEMPLATES)}",
            code="unknown-template",
            hint=nearest(template, TEMPLATES),
        )
    library = open_model_library(archive)
    models = library.models()
    kind = TEMPLATES[template]
    _check_names(models, library.path)
    with_objects = [m.model_name for m in models.values() if m.objects]
    if kind.sources_only and with_objects:
        raise UnsupportedError(
            f"{', '.join(with_objects)}: kernels are objects, and {template} takes sources only",
            where=library.path,
            hint="compile for target c",
        )
    name = c_name(Path(folder).name)
    files = project_files(kind, name, models)
    with atomic_dir(folder) as temporary:
        for path, text in files.items():
            _write(temporary / path, text.encode())
        _write_archive(library, temporary, kind)
        write_list(temporary)
    return Path(folder)


def project_files(
    kind: Template, name: str, models: Mapping[str, Model], model_dir: str = _MODEL
) -> dict[str, str]:
    """The text files of a project around an archive that lies in `model_dir`; without a program
    where sizes are symbolic and `model_dir` is the archive's own."""
    values = {
        "PROJECT": name,
        "MODEL_DIR": model_dir,
        "MODELS": ", ".join(models),
        "TARGETS": " ".join(m.prefix for m in models.values()),
        "HEADERS": ",".join(map(header_name, models.values())),
        **kind.values(model_dir, models),
    }
    files = {
        path: _filled((_TEMPLATES / source).read_text(encoding="utf-8"), values)
        for path, source in kind.files.items()
    }
    if is_sized(models) or model_dir == _MODEL:
        files[kind.program] = program_c(models, kind.main)
    return files


def archive_templates(models: Mapping[str, Model]) -> dict[str, str]:
    """The files of an archive's own `templates/`: the project for CMake, built where it lies."""
    return project_files(TEMPLATES["cmake"], "run_models", models, "..")


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda m: values[m[1]], text)


def _write(path: Path, data: bytes | memoryview) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _write_archive(library: ModelLibrary, folder: Path, kind: Template) -> None:
    """Write the archive's files into the project. If the project's build system compiles whatever
    is in a folder, write only what is to be compiled."""
    models = library.models()
    if not kind.sources_only:
        for name in library.files:
            _write(folder / _MODEL / name, content_view(library.content(name)))
        return
    paths = [p for m in models.values() for p in (m.header, *m.sources)]
    paths += [name for name in library.files if name.startswith(f"{RUNTIME}/")]
    for path in paths:
        data = content_view(library.content(path))
        _write(folder / "src" / PurePosixPath(path).name, data)
    _write(folder / "extras" / METADATA, content_view(library.content(METADATA)))


def _check_names(models: Mapping[str, Model], place: str) -> None:
    """Refuse paths and arguments that a build file would split into several words or interpret."""
    for m in models.values():
        sources = [b.path for b in m.bundled.values()]
        for path in (m.header, *m.sources, *m.objects, *sources):
            if not _PLAIN.fullmatch(path):
                message = f"{path!r:.300} is not a name for build files"
                raise UserError(message, code="bad-metadata", where=place)
        for argument in m.libraries:
            if not _LIBRARY.fullmatch(argument):
                message = f"library {argument!r:.300} is not a word for build files"
                raise UserError(message, code="bad-metadata", where=place)


def _needed(models: Mapping[str, Model]) -> list[ExternalDependency]:
    """The dependencies of all models, without duplicates."""
    return list(dict.fromkeys(d for m in models.values() for d in m.external_dependencies))


def _sources_of(models: Mapping[str, Model]) -> dict[str, str]:
    """The paths in the archive of dependencies' sources, by the dependency's name."""
    return {name: b.path for m in models.values() for name, b in m.bundled.items()}


# -- cmake ----------------------------------------------------------------------------------------


def _cmake(model_dir: str, models: Mapping[str, Model]) -> dict[str, str]:
    sources = _sources_of(models)
    needs = [_cmake_dependency(d, sources.get(d.short_name)) for d in _needed(models)]
    return {
        "LIBRARIES": "\n".join([*needs, *map(_cmake_library, models.values())]),
        "STACK": str(_stack(models)),
    }


def _cmake_library(m: Model) -> str:
    """CMake text for a static library of a model, with its dependencies."""
    files = "".join(f'\n    "${{MODEL_DIR}}/{path}"' for path in (*m.sources, *m.objects))
    objects = "".join(f'\n    "${{MODEL_DIR}}/{path}"' for path in m.objects)
    include = PurePosixPath(m.header).parent
    lines = [f"\n# Model {m.model_name}."]
    lines.append(f"add_library({m.prefix} STATIC{files})")
    if objects:
        lines.append(f"set_source_files_properties({objects}")
        lines.append("    PROPERTIES EXTERNAL_OBJECT TRUE GENERATED FALSE)")
    lines.append(f"set_target_properties({m.prefix} PROPERTIES LINKER_LANGUAGE C C_STANDARD 99)")
    lines.append(
        f'target_include_directories({m.prefix} PUBLIC "${{MODEL_DIR}}/{include}"\n'
        f'    PRIVATE "${{MODEL_DIR}}/{RUNTIME}")'
    )
    for d in m.external_dependencies:
        lines.append(
            f"target_include_directories({m.prefix} PRIVATE ${{{_variable(d)}_INCLUDE}})\n"
            f"target_link_libraries({m.prefix} PUBLIC ${{{_variable(d)}_LIBRARY}})"
        )
    if m.libraries:
        lines.append(f"target_link_libraries({m.prefix} PUBLIC {' '.join(m.libraries)})")
    return "\n".join(lines)


def _variable(d: ExternalDependency) -> str:
    return re.sub(r"\W", "_", d.short_name, flags=re.ASCII).upper()


def _cmake_text(text: str) -> str:
    """Text quoted as an argument of CMake."""
    return re.sub(r'([\\"$])', r"\\\1", text)


# Where a dependency without a CMakeLists.txt has its C: files of its folder, and all below these.
_SOURCE_FOLDERS = ("src", "Source")


def _cmake_dependency(d: ExternalDependency, source: str | None) -> str:
    """CMake text that finds a dependency in a folder or on the system, and otherwise stops with the
    place to get it from. If the archive has the dependency's `source`, that is the folder. The
    library is built from the folder: by its CMakeLists.txt, or else from its C files."""
    default_folder = f"${{MODEL_DIR}}/{source}" if source is not None else ""
    name = _variable(d)
    version = f" {d.version_spec}" if d.version_spec else ""
    title = _cmake_text(f"{d.short_name}{version}")
    origin = _cmake_text(f"{d.url_type} {d.url}")
    target, folder = name.lower(), f"${{{name}_DIR}}"
    below = " ".join(f'"{folder}/{part}/*.c"' for part in _SOURCE_FOLDERS)
    return f"""set({name}_DIR "{default_folder}" CACHE PATH "{title}, {origin}")
option({name}_SYSTEM "the compiler and the linker find {title} by themselves" OFF)
if(NOT {name}_SYSTEM AND NOT IS_DIRECTORY "{folder}")
    message(FATAL_ERROR "the model needs {title}: fetch {origin} and name its folder, \
-D{name}_DIR=...; or say that the system has it, -D{name}_SYSTEM=ON")
endif()
if({name}_DIR)
    set({name}_INCLUDE "{folder}" "{folder}/Include" "{folder}/include")
endif()
if({name}_SYSTEM)
elseif(EXISTS "{folder}/CMakeLists.txt")
    if(NOT DEFINED {name}_LIBRARY OR {name}_LIBRARY MATCHES "^[A-Za-z_][^/]*$")
        add_subdirectory("{folder}" external/{target} EXCLUDE_FROM_ALL)
    endif()
    foreach({name}_TARGET "{_cmake_text(d.short_name)}" {target})
        if(NOT DEFINED {name}_LIBRARY AND TARGET "${{{name}_TARGET}}")
            set({name}_LIBRARY "${{{name}_TARGET}}")
        endif()
    endforeach()
    if(NOT DEFINED {name}_LIBRARY)
        message(FATAL_ERROR "which target of its CMakeLists.txt is {title}: -D{name}_LIBRARY=...; \
or a file or flag to link")
    endif()
elseif(NOT DEFINED {name}_LIBRARY)
    file(GLOB {name}_FILES "{folder}/*.c")
    file(GLOB_RECURSE {name}_BELOW {below})
    if({name}_FILES OR {name}_BELOW)
        add_library({target} STATIC ${{{name}_FILES}} ${{{name}_BELOW}})
        target_include_directories({target} PUBLIC ${{{name}_INCLUDE}})
        set({name}_LIBRARY {target})
    else()
        message(WARNING "{folder} has nothing to build: if {title} is more than headers, \
-D{name}_LIBRARY=... names what to link")
    endif()
endif()"""


def _stack(models: Mapping[str, Model]) -> int:
    """Bytes of stack for the program: the kernels' local arrays, and 4 KiB for everything else."""
    sizes = [f.stack_buffers_bytes or 0 for m in models.values() for f in m.functions.values()]
    return 4096 + max(sizes, default=0)


# -- platformio and arduino -----------------------------------------------------------------------


def _line(text: str) -> str:
    """Text from elsewhere, made safe as part of one line of a settings file."""
    return "".join(c if c.isprintable() else " " for c in text)


def _platformio(model_dir: str, models: Mapping[str, Model]) -> dict[str, str]:
    includes = {str(PurePosixPath(m.header).parent) for m in models.values()} | {RUNTIME}
    flags = [f"    -I{model_dir}/{path}" for path in sorted(includes)]
    flags += [f"    {model_dir}/{path}" for m in models.values() for path in m.objects]
    flags += [f"    {argument}" for m in models.values() for argument in m.libraries]
    sources = [f"    +<../{model_dir}/{path}>" for m in models.values() for path in m.sources]
    needs = []
    source_of_name = _sources_of(models)
    for d in _needed(models):
        if d.short_name not in source_of_name:
            needs.append(f"; The model needs {_line(str(d))}: name it in lib_deps.")
            continue
        path = f"{model_dir}/{source_of_name[d.short_name]}"
        needs.append(f"; The model needs {_line(str(d))}, which is in {path}.")
        flags += [f"    -I{path}{part}" for part in ("", "/Include", "/include")]
        sources += [f"    +<../{path}/{part}*.c>" for part in ("", "src/**/", "Source/**/")]
    return {
        "FLAGS": "\n".join(flags),
        "SOURCES": "\n".join(sources),
        "DEPENDENCIES": "".join(f"\n{line}" for line in needs),
    }


def _arduino(model_dir: str, models: Mapping[str, Model]) -> dict[str, str]:
    needs = ", ".join(_line(str(d)) for d in _needed(models))
    return {
        "FIRST_HEADER": header_name(next(iter(models.values()))),
        "DEPENDENCIES": f" It needs {needs}: put its sources below src." if needs else "",
    }


_PLATFORM_H = "common/platform.h"
TEMPLATES = {
    "cmake": Template(
        {
            "CMakeLists.txt": "cmake/CMakeLists.txt",
            "platform.c": "cmake/platform.c",
            "platform.h": _PLATFORM_H,
        },
        "main.c",
        _cmake,
    ),
    "zephyr": Template(
        {
            "CMakeLists.txt": "zephyr/CMakeLists.txt",
            "prj.conf": "zephyr/prj.conf",
            "src/platform.c": "zephyr/platform.c",
            "src/platform.h": _PLATFORM_H,
        },
        "src/main.c",
        _cmake,
    ),
    "arduino": Template(
        {
            "library.properties": "arduino/library.properties",
            "src/platform.cpp": "arduino/platform.cpp",
            "src/platform.h": _PLATFORM_H,
            "src/program.h": "arduino/program.h",
            "examples/run/run.ino": "arduino/run.ino",
        },
        "src/program.c",
        _arduino,
        main="program_main",
        sources_only=True,
    ),
    "platformio": Template(
        {
            "platformio.ini": "platformio/platformio.ini",
            "src/platform.c": "cmake/platform.c",
            "src/platform.h": _PLATFORM_H,
        },
        "src/main.c",
        _platformio,
    ),
}

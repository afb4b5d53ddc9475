"""From the code of kernels to an Executable: entry file, header, weights, metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tensorkiln.artifact import Artifact, ArtifactSet, TextContent
from tensorkiln.artifact.dependency import merge_dependencies
from tensorkiln.artifact.metadata import KernelInfo, added_json, artifact_infos, constants_text
from tensorkiln.base.debug import SOURCES, say
from tensorkiln.base.errors import UserError
from tensorkiln.base.version import VERSION
from tensorkiln.codegen.call_plan import (
    graph_host_function,
    sizes_read,
    tensor_host_function,
)
from tensorkiln.codegen.host_c import entry_c, header_h
from tensorkiln.codegen.host_function import HostFunction, c_name
from tensorkiln.codegen.weights import WeightArena, WeightsContent
from tensorkiln.executable import Executable
from tensorkiln.external import External
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.planned import planned_graph
from tensorkiln.ir.text.printer import print_module
from tensorkiln.link.shared import Fcompile
from tensorkiln.target import Target

if TYPE_CHECKING:
    from tensorkiln.codegen.outer_c import OuterCode


def assemble(
    mod: IRModule,
    target: Target,
    cpu: Target,
    externals: Sequence[External],
    code: Sequence[Artifact],
    texts: Sequence[Artifact],
    linker: Fcompile | str | None,
) -> Executable:
    """Code of the kernels, entry file, header and weights become one Executable. `texts` are files
    for people, which nothing else is made of."""
    arena = WeightArena()
    functions: list[HostFunction] = [
        graph_host_function(f, mod, arena) for f in mod.graphs if not f.is_private
    ]
    functions += [
        tensor_host_function(f, f.name, sizes_read(f)) for f in mod.prim_funcs if f.public
    ]
    outer = _outer_code(mod, arena)
    if not functions and outer is None:
        raise UserError(
            "the module has no public function",
            code="nothing-to-compile",
            where="compile",
            hint="a function without private=True is public",
        )
    name = c_name(mod.name)
    artifacts = list(code)
    if arena.size:
        artifacts.append(Artifact("host", "native", "weights.bin", WeightsContent(arena)))
    infos = _kernel_infos(mod)
    used = [e for e in externals if any(f.external == e.name for f in mod.externals)]
    needs = merge_dependencies((f"external {e.name!r}", d) for e in used for d in e.dependencies)
    metadata = added_json(
        VERSION, target.to_json(), infos, artifact_infos(artifacts), needs, arena.constants
    )
    entry = entry_c(
        functions,
        library_name=name,
        weights_size=arena.size,
        metadata_json=metadata,
        cpu_features=cpu.required_features,
        prefix=name,
        outer=outer,
    )
    say(SOURCES, f"entry.c\n{entry}")
    outers = outer.names if outer else ()
    header = header_h(functions, library_name=name, prefix=name, outers=outers)
    if arena.size:
        table = constants_text(arena.constants)
        artifacts.append(Artifact("host", "text", "weights.json", table.encode()))
    artifacts += [
        Artifact("host", "native", "entry.c", entry.encode()),
        Artifact("host", "header", f"{name}.h", header.encode()),
        Artifact("ir", "text", "module.py", TextContent(lambda: print_module(mod))),
        *texts,
    ]
    libraries = tuple(dict.fromkeys(x for e in used for x in e.libraries))
    made = ArtifactSet(tuple(artifacts))
    return Executable(made, target, tuple(functions), name, mod, infos, libraries, linker, outer)


def _outer_code(mod: IRModule, arena: WeightArena) -> OuterCode | None:
    if not mod.outers:
        return None
    from tensorkiln.codegen.outer_c import outer_code

    return outer_code(mod, arena)


def _kernel_infos(mod: IRModule) -> tuple[KernelInfo, ...]:
    """What each kernel computes: the model's nodes, and the class of its schedule."""
    spans: dict[str, list[str]] = {}
    for f in mod.graphs:
        for call in planned_graph(f, mod).calls:
            spans.setdefault(call.name, []).append(call.span)
    classes = {k.name: k.op_class for k in mod.prim_funcs}
    classes |= {f.name: f"external:{f.external}" for f in mod.externals}
    return tuple(
        KernelInfo(name, tuple(filter(None, spans.get(name, ()))), kernel_class)
        for name, kernel_class in classes.items()
    )

"""kiln targets: what can be compiled for, or what one target means.

Without an argument: kinds with their options, processors, this machine. With one: its canonical
form and what follows from it.
"""

from __future__ import annotations

import argparse
import json

from tensorkiln.cli.tables import columns, size_text
from tensorkiln.target import Target
from tensorkiln.target.isa import ISAS
from tensorkiln.target.kinds import KINDS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln targets`."""
    parser.add_argument("target", nargs="?", help="native, llvm, or JSON text")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the list, or explain one."""
    if args.target is None:
        print(json.dumps(_listing(), indent=1) if args.json else _listing_text())
        return 0
    target = Target(args.target)
    print(json.dumps(_facts(target), indent=1) if args.json else _facts_text(target))
    return 0


def _listing() -> dict[str, object]:
    return {
        "kinds": {
            kind.name: {option.name: option.doc for option in kind.options}
            for kind in KINDS.values()
        },
        "processors": {isa.arch: list(isa.cpus) for isa in ISAS.values()},
        "features": {isa.arch: list(isa.implied) for isa in ISAS.values()},
    }


def _listing_text() -> str:
    parts = []
    for kind in KINDS.values():
        rows = [(option.name, option.doc) for option in kind.options]
        parts.append(f"{kind.name}: {kind.doc}\n{columns(rows)}")
    for isa in ISAS.values():
        parts.append(f"{isa.arch} processors\n{_wrapped(isa.cpus)}")
    parts.append("kiln targets native   explains this machine")
    return "\n".join(parts)


def _facts(target: Target) -> dict[str, object]:
    return {
        "target": target.to_json(),
        "baseline": target.is_baseline,
        "vector_bytes": target.vector_bytes,
        "vector_registers": target.num_vector_registers,
        "required_features": list(target.required_features),
    }


def _facts_text(target: Target) -> str:
    rows = [
        ("target", str(target)),
        ("machine", f"{target.mtriple}, {target.mcpu}"),
        ("vectors", f"{target.num_vector_registers} of {target.vector_bytes} bytes"),
        ("caches", f"{size_text(target.l1d_bytes)} level 1, {size_text(target.l2_bytes)} level 2"),
    ]
    needs = target.required_features
    if not needs:
        rows.append(("needs", "nothing beyond the architecture's baseline"))
        return columns(rows)
    return f"{columns(rows)}\n  needs\n{_wrapped(needs)}"


def _wrapped(names: object) -> str:
    import textwrap

    words = " ".join(map(str, names)) if isinstance(names, dict | tuple) else str(names)
    return textwrap.fill(
        words, 96, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
    )

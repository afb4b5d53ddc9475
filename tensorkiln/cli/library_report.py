"""The report of `kiln inspect` on a compiled library: inputs, outputs, target, processor features,
sizes, memory, compiler version."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence

from tensorkiln.artifact.components import Component
from tensorkiln.artifact.metadata import FunctionInfo, Metadata, PoolInfo
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.origin import Origin
from tensorkiln.base.schema import Dim
from tensorkiln.base.text import size_text
from tensorkiln.cli.tables import columns, dims_text
from tensorkiln.inspectors.library import LibraryReport
from tensorkiln.target import runnable_level

SHOWN = 10  # kernels listed without --all
_TAGS = {"tag": "tag", "base_tag": "made from tag"}  # field of the target -> its label


def report_text(
    report: LibraryReport, everything: bool = False, components: Sequence[Component] = ()
) -> str:
    """The report as text, with all kernels if `everything`. `components` are what it embeds and
    needs."""
    meta = report.metadata
    target = meta.target
    facts = [
        ("library", f"{report.path} ({meta.library})"),
        ("compiler", f"tensorkiln {meta.compiler_version}"),
        *model_facts(meta.origin),
        ("target", target_text(target)),
        *((label, str(target[k])) for k, label in _TAGS.items() if target.get(k)),
        *(("device", text) for text in _devices(target)),
        *_denormals(target),
        *_processors(meta),
        ("needs CPU", _wrapped(meta.cpu_features) or "the architecture's baseline"),
        ("needs", f"{report.system}: {' '.join(report.needed) or 'no library'}"),
        *(("dependency", dependency_text(d)) for d in meta.dependencies),
        ("file", f"{size_text(report.file_bytes)}, {_digest_text(report.digest)}"),
        ("weights", size_text(report.weights_bytes)),
        ("kernels", f"{_code(report.kernel_code_bytes)} in {len(report.kernels)}"),
        ("other code", size_text(report.runtime_code_bytes)),
        ("exports", f"{len(report.exports)} symbols"),
    ]
    parts = [columns(facts), *(_function_text(f, target) for f in meta.functions)]
    if components:
        rows = [(c.how, f"{c.name} {c.version}".rstrip(), c.license, c.why) for c in components]
        parts.append("software\n" + columns(rows))
    if report.kernels:
        parts.append(_kernels_text(report, everything))
    return "\n".join(parts)


def _digest_text(digest: str) -> str:
    return "without a digest" if digest == "none" else f"its digest is {digest}"


def model_facts(origin: Origin) -> list[tuple[str, str]]:
    """What a library was made from, and with which options."""
    facts = []
    if origin.model is not None:
        facts.append(("model", f"{origin.model.kind}, SHA-256 {origin.model.sha256}"))
        facts += [("weights file", f"{n}, SHA-256 {digest}") for n, digest in origin.model.weights]
    if origin.options:
        listed = (f"{k}={json.dumps(v)}" for k, v in origin.options.items())
        facts.append(("options", ", ".join(listed)))
    return facts


def target_text(target: Mapping[str, object]) -> str:
    """Kind, machine and processor of a target, followed by those of its host, if it has one."""
    texts = (target[k] for k in ("kind", "mtriple", "mcpu") if k in target)
    text = " ".join(",".join(map(str, t)) if isinstance(t, list) else str(t) for t in texts)
    host = target.get("host")
    return f"{text}, host {target_text(host)}" if isinstance(host, Mapping) else text


def _processors(meta: Metadata) -> list[tuple[str, str]]:
    """The processors that a library has kernels for, if they are several, and which of these run
    here."""
    if not meta.levels:
        return []
    arch = str(meta.target.get("mtriple", "")).partition("-")[0]
    number = runnable_level([level.cpu_features for level in meta.levels], arch)
    names = (f"{x.mcpu}{' (here)' if i == number else ''}" for i, x in enumerate(meta.levels))
    return [("kernels for", ", ".join(names) + ("" if number is not None else "; none runs here"))]


def _denormals(target: Mapping[str, object]) -> list[tuple[str, str]]:
    """What runs do with numbers below the smallest normal one, if it is not usual."""
    host = target.get("host")
    denormals = (host if isinstance(host, Mapping) else target).get("denormals")
    return [("denormals", "count as 0 in runs")] if denormals == "flush" else []


def _devices(target: Mapping[str, object]) -> list[str]:
    """The devices of a composite: the key, if its target has one, kind, machine and processor, and
    the operators that it computes if these are not all that it can."""
    devices = target.get("devices")
    rows = [d for d in devices if isinstance(d, Mapping)] if isinstance(devices, list) else []
    texts = []
    for d in rows:
        key, operators = d.get("target_key"), d.get("operators")
        names = ", ".join(map(str, operators)) if isinstance(operators, list) else ""
        label = f"{key}: {target_text(d)}" if key else target_text(d)
        texts.append(f"{label}, for {names}" if names else label)
    return texts


def dependency_text(d: ExternalDependency) -> str:
    """`onednn v3.4, Apache-2.0, git https://... (libdnnl.so.3)`."""
    name = f"{d.short_name} {d.version_spec}".rstrip()
    files = f" ({', '.join(d.libraries)})" if d.libraries else ""
    suffix = " (to build)" if d.build_time else ""
    return f"{name}, {d.license}, {d.url_type} {d.url}{files}{suffix}"


def _wrapped(words: Sequence[str]) -> str:
    """Words in lines of 80 columns, indented like the second column of the report."""
    return textwrap.fill(" ".join(words), 80, break_on_hyphens=False).replace("\n", "\n" + " " * 14)


def _function_text(function: FunctionInfo, target: Mapping[str, object]) -> str:
    rows = [("in", t.name, t.dtype, dims_text(t.shape)) for t in function.inputs]
    rows += [("out", t.name, t.dtype, dims_text(t.shape)) for t in function.outputs]
    rows += [("pool", *_pool_row(pool, target)) for pool in function.pools]
    memory = _space(function.workspace_bytes)
    needs = "".join(f"\n  requires {condition}" for condition in function.requires)
    calls = f"({function.kernel_calls} kernel calls, workspace {memory})"
    return f"{function.kind} function {function.name} {calls}\n{columns(rows)}{needs}"


def _space(size: Dim) -> str:
    return size_text(size) if isinstance(size, int) else f"{size} bytes"


def _pool_row(pool: PoolInfo, target: Mapping[str, object]) -> tuple[str, str, str]:
    """Name, size and capacity of a pool; the capacity is empty if the target does not state it."""
    pools = target.get("memory")
    pool_rows = [p for p in pools if isinstance(p, Mapping)] if isinstance(pools, list) else []
    size = next((p.get("size") for p in pool_rows if p.get("name") == pool.name), None)
    return pool.name, _space(pool.bytes), f"of {size_text(size)}" if isinstance(size, int) else ""


def _code(size: int) -> str:
    """The size of kernels; `-` where the library's own code has none, as of those of devices."""
    return size_text(size) if size else "-"


def _kernels_text(report: LibraryReport, everything: bool) -> str:
    """Kernels with the nodes they compute, in the order of their first calls."""
    nodes = {kernel.symbol: kernel for kernel in report.metadata.kernels}
    rows = [
        (
            k.symbol,
            nodes[k.symbol].kernel_class or "-",
            _code(k.code_bytes),
            ", ".join(nodes[k.symbol].nodes)[:80],
        )
        for k in report.kernels
    ]
    return "kernels\n" + some(rows, everything)


def some(rows: Sequence[tuple[str, ...]], everything: bool) -> str:
    """The first SHOWN rows as columns, and how many more there are; or all of them."""
    head_rows = rows if everything else rows[:SHOWN]
    tail = (
        f"\n  ... and {len(rows) - len(head_rows)} more (--all)"
        if len(rows) > len(head_rows)
        else ""
    )
    return columns(head_rows) + tail

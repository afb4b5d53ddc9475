"""What was measured, kept in bench/results.jsonl: one record a line, newer ones replace older.

Records of several runs and machines stand side by side; each says its own.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STORE = ROOT / "bench" / "results.jsonl"
KEY = ("kind", "model", "threads", "machine", "precision", "target")
Record = dict[str, Any]


def cpu_name() -> str:
    """The processor's name and vector extensions, where the system tells them."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    facts = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    flags = facts.get("flags", "").split()
    widest = [
        f for f in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile") if f in flags
    ]
    name = facts.get("model name", platform.processor() or platform.machine())
    family = f"family {facts['cpu family']} model {facts['model']}" if "model" in facts else ""
    return ", ".join(filter(None, [name, family, " ".join(widest[-2:])]))


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


@cache
def run_id() -> str:
    """When this process began to measure, and the commit it measures."""
    commit = _git("rev-parse", "--short", "HEAD") or "no commit"
    commit += " changed" if _git("status", "--porcelain", "--", "tensorkiln") else ""
    return f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} {commit}"


@cache
def machine() -> str:
    """Processor, number of CPUs, system."""
    return f"{cpu_name()}; {os.cpu_count()} CPUs; {platform.system()}"


def load(path: Path = STORE) -> list[Record]:
    """All records, oldest first."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def add(
    kind: str,
    model: str,
    threads: int,
    data: Mapping[str, Any],
    path: Path = STORE,
    machine_name: str = "",
    precision: str = "float32",
    target: str = "",
) -> Record:
    """Keep one record, in place of an older one of the same kind, model, threads, precision, target
    (empty: this processor) and machine: `machine_name`, by default this one."""
    record = {
        "kind": kind,
        "model": model,
        "threads": threads,
        "machine": machine_name or machine(),
        "run": run_id(),
        **({} if precision == "float32" else {"precision": precision}),
        **({"target": target} if target else {}),
        **data,
    }
    former_records = [r for r in load(path) if any(r.get(k) != record.get(k) for k in KEY)]
    lines = [
        json.dumps(r, separators=(",", ":"), sort_keys=True) for r in (*former_records, record)
    ]
    partial = path.with_suffix(".part")
    partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
    partial.replace(path)
    return record

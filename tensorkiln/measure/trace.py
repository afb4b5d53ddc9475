"""Times of kernels as a trace in Chrome's format, which Perfetto reads too.

Each kernel was timed alone, on operands in the cache: the trace shows which kernels take the time,
in the order in which a run calls them, and not what a run would show of waiting and cold caches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorkiln.executable import Executable
from tensorkiln.measure.kernels import KernelTime


def trace_of(executable: Executable, times: Sequence[KernelTime]) -> dict[str, object]:
    """The trace of one run of each graph function: an event per call of a kernel, with its class,
    the model's nodes, bytes, operations, and what these are per second.

    Kernels that could not be timed alone, as those of devices, have no event; `otherData` names
    them. The format is the "JSON Object Format" of the Trace Event Format; times are microseconds.
    """
    by_name = {t.name: t for t in times}
    nodes = {k.symbol: k.nodes for k in executable.kernels}
    graphs = [f for f in executable.functions if f.info.kind == "graph"]
    events: list[dict[str, object]] = []
    unknown: dict[str, None] = {}
    for thread, f in enumerate(graphs):
        named = {"name": "thread_name", "ph": "M", "pid": 0, "tid": thread}
        events.append({**named, "args": {"name": f.info.name}})
        start = 0.0
        for call in f.calls:
            time = by_name.get(call.symbol)
            if time is None or math.isnan(time.micros):
                unknown[call.symbol] = None
                continue
            events.append(
                {
                    "name": call.symbol,
                    "cat": time.op_class,
                    "ph": "X",
                    "pid": 0,
                    "tid": thread,
                    "ts": round(start, 3),
                    "dur": round(time.micros, 3),
                    "args": _about(time, nodes.get(call.symbol, ())),
                }
            )
            start += time.micros
    about = {
        "model": executable.name,
        "target": str(executable.target),
        "measured": "each kernel alone, its operands in the cache",
        "not measured": ", ".join(unknown) or "nothing",
    }
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _about(time: KernelTime, nodes: Sequence[str]) -> dict[str, object]:
    rate = 1e-3 / time.micros if time.micros else 0.0  # giga per second of what a call does
    return {
        "class": time.op_class,
        "nodes": list(nodes),
        "bytes": int(time.moved),
        "operations": int(time.flops),
        "GB/s": round(time.moved * rate, 2),
        "GFLOP/s": round(time.flops * rate, 2),
    }

"""Kernel classes against the limits of a machine, from rooflines: those that take a part of a
model's time that counts, reach too little of their limit, and why (bench/roofline.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bench.report import precision
from bench.roofline import restored
from bench.store import Record

COUNTS, ENOUGH = 0.02, 0.75  # of the time, of the limit

# Why a class stays below: by target, else model, else its name and precision, else its name.
REASONS: dict[str, str] = {
    "of mlp": "a network of 6 microseconds, in which the calls of kernels count; their part was "
    "not measured apart",
    "* x86-64-v2": "no fused multiply-add: a product is a multiplication, an addition, half a copy "
    "and three eighths of a load; where terms are no pairs, a quarter of a broadcast too, whose "
    "shuffle shares pipes with both",
    "attention_fused": "the softmax between its products is an exponential, a maximum and a sum an "
    "element; a head's products have 64 terms; under a causal mask all rows of a tile take the "
    "keys that its last row sees",
    "conv2d_depthwise": "9 or 25 products for an element: loads bind, and the weights of 5x5 "
    "filters do not fit the registers",
    "conv2d_depthwise int8": "bytes are widened and multiplied one by one: four terms of a "
    "channel, which the peak's instruction takes, do not lie side by side",
    "conv2d_direct": "short sums (16 to 48 terms) with SiLU or a layout behind them: an "
    "exponential and a division an element",
    "conv2d_direct int8": "short sums (4 to 8 dot products), each converted to a byte by as many "
    "instructions",
    "layer_norm_rows": "passes over each row several times, which are counted as one",
    "linear_packed bfloat16": "one row: 0.4 MB of weights from the second-level cache in 5 us",
    "loops": "some microseconds, of which starting is a part, or normalisations in front of "
    "convolutions that write partial channel blocks",
    "loops bfloat16": "rounds to 16 bits and back, 6 instructions for 16 elements",
    "loops int8": "rounds, saturates and narrows 16 elements at a time, a byte each",
    "pool_blocked": "reads each element up to nine times from the cache; counted as one",
    "softmax_rows": "an exponential of 15 instructions an element, and three passes over a row",
}

HEAD = f"""Classes of kernels that take more than {COUNTS:.0%} of a model's time (one thread), and
the part of their limit that they reach. Work is by definition: a softmax is 4 operations an
element, GELU one, a layer norm 7, and what is moved counts once.
"""


@dataclass(frozen=True, slots=True)
class ClassTime:
    """All kernels of one class in a model: their part of its time, and of their limit."""

    model: str
    precision: str
    target: str
    name: str
    share: float
    reached: float

    @property
    def reason(self) -> str:
        """Why it stays below its limit; empty if nobody has said so."""
        names = f"* {self.target}", f"of {self.model}", f"{self.name} {self.precision}", self.name
        return next((REASONS[name] for name in names if name in REASONS), "")


def class_times(records: Iterable[Record]) -> Iterator[ClassTime]:
    """Of records of rooflines: every class that takes a part that counts, largest first."""
    for r in records:
        roofline = restored(r)
        by_name: dict[str, list[float]] = {}
        for row in roofline.rows:
            sums = by_name.setdefault(row.op_class, [0.0, 0.0])
            sums[0] += row.micros
            sums[1] += row.limit
        for name, (micros, limit) in sorted(by_name.items(), key=lambda item: -item[1][0]):
            share = micros / roofline.micros
            if share > COUNTS:
                context = r["model"], precision(r), r.get("target", "")
                yield ClassTime(*context, name, share, limit / micros)


def lines(records: Iterable[Record]) -> list[str]:
    """Markdown: those below, each with its reason, and how many reach enough."""
    classes = list(class_times(records))
    below = [c for c in classes if c.reached < ENOUGH]
    table = [
        f"{len(classes) - len(below)} of {len(classes)} reach {ENOUGH:.0%} or more. The others:\n",
        "| class | model | precision | target | of the time | of the limit | reason |",
        "|---|---|---|---|--:|--:|---|",
    ]
    for c in sorted(below, key=lambda c: (c.name, c.precision, c.target, -c.share)):
        table.append(
            f"| {c.name} | {c.model} | {c.precision} | {c.target or 'native'} | {c.share:.1%} "
            f"| {c.reached:.0%} | {c.reason} |"
        )
    return [HEAD, *table, ""]

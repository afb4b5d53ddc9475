"""`python -m tests.safety.child FOLDER SEED FIRST COUNT [KINDS]`: cases of Python callers, a line
for each before it is run; findings are lines that begin with `!`."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import sys
import warnings
from pathlib import Path
from random import Random

from tests.safety import cases, surroundings

SECONDS = 10  # of work, for one case
_ROOM = 1 << 30  # bytes that a case may take beyond what is there when it begins


def _say(text: str) -> None:
    os.write(1, text.encode(errors="backslashreplace"))


def main(folder: str, *numbers: str) -> None:
    """Run them."""
    seed, first, count = map(int, numbers[:3])
    only = numbers[3].split(",") if len(numbers) > 3 else None
    faulthandler.enable()
    warnings.simplefilter("ignore")
    place = cases.Place.at(Path(folder), lambda words: _say(f": {words}\n"))
    kinds = {**cases.KINDS, **surroundings.KINDS}
    names = [name for name in kinds if only is None or name in only]
    resident_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (resident_bytes + _ROOM, resource.RLIM_INFINITY))
    for k in range(first, first + count):
        rng = Random(f"{seed} {k}")
        name = rng.choices(names, [kinds[n][0] for n in names])[0]
        _say(f"@ {k} {name} \n")
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)  # ends a process that loops
        wrong = kinds[name][1](place, rng)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if wrong:
            _say(f"! {wrong}\n")
    _say("= done\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

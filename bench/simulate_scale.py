"""`python -m bench.simulate_scale`: what 10,000 compiles and a billion rows take on many machines.

Prints the tables of docs/scale.md; `--write` puts them there. The figures that the simulation
(bench/scale/simulator.py) starts from are those of bench/scale/measured.json; the same figures give
the same tables. A table stands between `<!-- table: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.scale.measured import Measured, load
from bench.scale.tables import TABLES
from tensorkiln.base.files import atomic_write

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scale.md"
_PLACE = re.compile(r"(<!-- table: (?P<name>[a-z ]+) -->\n).*?(<!-- end -->)", re.S)


def rendered(page: str, measured: Measured) -> str:
    """The page with its tables made anew. Raises KeyError for a table that there is not."""
    return _PLACE.sub(lambda m: f"{m[1]}{TABLES[m['name']](measured)}\n{m[3]}", page)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser("python -m bench.simulate_scale", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/scale.md")
    parser.add_argument("--table", choices=TABLES, action="append", help="only this one")
    args = parser.parse_args(argv)
    measured = load()
    if args.write:
        page = PAGE.read_text(encoding="utf-8")
        atomic_write(PAGE, rendered(page, measured).encode())
        return 0
    for name in args.table or TABLES:
        print(f"{name}\n\n{TABLES[name](measured)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

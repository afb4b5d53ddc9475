"""Tests of Tensorkiln; a package so that the model zoo is importable as `tests.zoo`.

Each core has a process that runs tests, so NumPy and torch take one thread: several spin while one
of them waits for a core, and took up to nine times as long for what results are compared with."""

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

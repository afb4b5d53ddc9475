"""Tests of Tensorkiln; a package so that the model zoo is importable as `tests.zoo`."""

"""Passes over tensor programs: one per file, file name = function name."""

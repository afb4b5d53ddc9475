"""Passes over tensor programs, one function per file; `pipeline.tir_passes` gives their order."""

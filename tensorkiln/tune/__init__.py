"""Measure kernels and whole models; there is no search for schedules yet.

`measure` compares latencies of whole calls, `kernels` times each kernel alone, `calls` times kernel
calls within a run, and `inner_loops` counts instructions without running anything.
"""

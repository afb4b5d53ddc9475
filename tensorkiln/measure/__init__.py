"""Measure whole models and kernels: `latency` compares whole calls, `kernels` times each kernel
alone, `calls` times kernel calls within a run, `inner_loops` counts instructions without running.
"""

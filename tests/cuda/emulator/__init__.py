"""Kernels for GPUs of NVIDIA on this machine's CPU: their LLVM IR compiled for it (build.py), with
a fiber for each thread (emulator.c), which finds races, missing barriers, and what lies out of
bounds."""

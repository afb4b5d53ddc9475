"""Tensor programs as text of C-like languages: C99, OpenCL C and WGSL.

All three share one printer. Each file prints a few classes of nodes, a function per class, listed
in a table at the end of the file (`writer.py`). What differs between languages is a `Dialect`
(`dialect.py`): how types, literals and vectors are spelled, and what the language leaves open. A
language is a Dialect, tables that replace some functions, and a function that prints the head of a
kernel: `c99.py`, `opencl.py`, `wgsl.py`.

Programs are simplified for a language before they are printed (`codegen/expand/`): WGSL has no
vectors in memory, so they become lanes. Operations that a language lacks or leaves undefined are
functions that stand in the text only if they are called (`expansions.py`, `narrow.py`). A
subexpression that occurs twice becomes a constant (`sharing.py`).
"""

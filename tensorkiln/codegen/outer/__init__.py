"""Outer functions as C: functions that are more than one list of kernel calls.

A function is *outer* if it has branches, loops, closures, recursion, calls of functions, strings,
nested tuples, or sizes that depend on data (`Function.is_outer`). Its straight-line parts have
become graph functions of their own (`transform/relax/outline_dataflow.py`), with planned memory.
What is left are host steps, which become one C function: a frame of owned values, one `KILN_TRY`
per step, and a single exit that releases every value and reports the step that failed. A while loop
is a loop of C; recursion is recursion in C, checked against the stack of the thread.

Values have the memory layouts of tvm-ffi objects (`crt/outer.h`), so hosts that use tvm-ffi can
take them, although the library does not need it. Extents may be 0 here, but not in the graph
functions that are called.
"""

"""From fused groups to loops: which family schedules a group, and what schedules are made of.

A schedule is a *program*, the plain loops that define the result (`program.py` of a family), and a
function that applies primitives to it (`schedule.py`, for devices whose threads run in blocks
`gpu.py`). Programs stay short because code generators
do what is mechanical: unroll, keep buffers of scope `register` in SSA values once all indices are
constant, start a reduction from its first term, and share loads (`codegen/expand/`). Steps that
schedules share are `register_tile.py` (tiles of results in registers), `partial_sums.py` (sums in
several independent vectors) and `tile_sums.py` (tiles of AMX).

`schedule_group` with `check=True` proves every step correct; `trace_of` gives the steps as text.
tests/measure/test_inner_loops.py asserts that main loops spill no registers.
"""

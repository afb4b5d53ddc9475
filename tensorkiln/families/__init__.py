"""Kernel families, a folder each: what it computes, when it fits, and its schedules.

    row.py, gpu_row.py    `ROWS` of the table (`kernels/family.py`): for processors, and for devices
                          whose threads run in blocks
    knobs.py, costs.py    what measurements may choose, and estimates
    decomposition.py      other operators in place of a call that no kernel fits
    program.py            the plain loops that define the result
    schedule.py, gpu.py   `schedule(group, target, check)`, which applies primitives to them
    case.py               example graphs for tests: `CASES`, and `GPU_CASES` of such devices

`kernels/folders.py` finds rows and cases; nothing else lists them.
"""

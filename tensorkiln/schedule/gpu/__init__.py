"""What schedules for devices share whose threads run in blocks (CUDA, OpenCL, WebGPU): `gpu.py` of
the families.

They work on row-major tensors and ask a target for its limits, never for its name.

Buffers keep all dimensions of their tensors (`Group.unviewed`), and symbolic loops are block
indices along axes of their own, so that no product or quotient of symbols enters a proof. The sums
of a thread are a buffer whose first index is the thread's; `split_device` drops that index
(`transform/device/privatize.py`), and each thread keeps its part in registers. Schedules write no
barriers: `transform/tir/insert_barriers.py` derives them. Partial sums are added in a tree that
depends on the number of threads alone, so equal shapes give equal bits.
"""

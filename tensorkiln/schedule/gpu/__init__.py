"""Schedules for devices whose threads run in blocks (CUDA, OpenCL, WebGPU).

They work on row-major tensors and ask a target for its limits, never for its name. Their families
are rows of `kernels/gpu.py`:

    loops.py            any group: a thread per element or vector
    rows.py, reduce.py  a block of threads per row of softmax or layer norm, per sum of many terms
    contract.py         sums of products (linear, matmul, convolution), in tiles of shared memory
    tensor_cores.py     the same on tensor cores; wgmma.py: by warpgroups of sm_90a
    windows.py          pooling, and convolutions too narrow for tiles
    attention.py        attention in one pass over the keys; attention_tensor_cores.py
    scalar.py           operators whose programs are scalar: trees, sorting, scattering

Buffers keep all dimensions of their tensors (`Group.unviewed`), and symbolic loops are block
indices along axes of their own, so that no product or quotient of symbols enters a proof. The sums
of a thread are a buffer whose first index is the thread's; `split_device` drops that index
(`transform/device/privatize.py`), and each thread keeps its part in registers. Schedules write no
barriers: `transform/tir/insert_barriers.py` derives them. Partial sums are added in a tree that
depends on the number of threads alone, so equal shapes give equal bits.
"""

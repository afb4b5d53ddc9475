"""Passes, IRModule -> IRModule. A pass has the name of its file: `lower_blocks` is a function in
`lower_blocks.py`, `FuseOps` (a pass with options) a class in `fuse_ops.py`."""

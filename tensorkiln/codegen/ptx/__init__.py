"""Device functions for GPUs of NVIDIA: tensor programs -> LLVM IR -> PTX."""

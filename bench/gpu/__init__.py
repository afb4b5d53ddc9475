"""Models and kernels on one GPU of NVIDIA beside cuBLAS and torch.compile; `make gpu`."""

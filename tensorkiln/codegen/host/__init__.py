"""C of a library beside its kernels: the entry file, the header, call plans, weights."""

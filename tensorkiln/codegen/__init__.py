"""From tensor programs and call plans to artifacts: LLVM kernels, the host entry in C."""

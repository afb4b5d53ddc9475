"""TIR to LLVM IR to objects."""

"""Reading and rewriting the tree of a tensor program: what primitives are made of."""

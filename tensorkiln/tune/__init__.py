"""`tk.tune`: measured choices for the kernels of a module, where the untuned ones are not best."""

"""Passes: from IRModule to IRModule, one per file, file name = function name."""

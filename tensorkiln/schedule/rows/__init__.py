"""Softmax and layer norm, row by row."""

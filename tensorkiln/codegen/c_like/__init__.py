"""Tensor programs as text of C-like languages; so far C99."""

"""Patterns of graphs, rules that rewrite what matches, and helpers on graphs."""

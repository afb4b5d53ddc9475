"""Walks through decision trees: many at a time."""

"""The tools that measure: what they count, keep and print. Nothing here asserts a time."""

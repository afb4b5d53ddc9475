"""Finding out what is fast. So far it measures; search and records come later.

`measure` holds the loop by which everything here that prints a latency takes it.
"""

"""Latency against other inference engines, and compile time. `python -m bench --help`."""

"""Replay: what a change of the compiler does to the bytes of what it compiles."""

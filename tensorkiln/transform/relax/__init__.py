"""Passes over graphs. One file, one function, one name: `canonicalize.canonicalize(mod)`.

`pattern` holds the pattern language, `rewrite` the engine that applies tables of rules.
"""

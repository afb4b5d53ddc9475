"""Passes over graph functions. A pass has the name of its file: `canonicalize.canonicalize(mod)`.

`pipeline.relax_passes` gives their order. `pattern` holds the pattern language, `rewrite` the
engine that applies tables of rules, `graph` the traversals that passes share. Other files without
a pass (`canonical_movement`, `requantize`, `storages`, ...) belong to the pass that imports them.
"""

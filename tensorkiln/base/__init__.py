"""The lowest layer: errors, spans, knobs, files and the cache. Imports no other folder of ours."""

"""Ground floor: errors, spans, knobs, files and the cache. Imports nothing of ours."""

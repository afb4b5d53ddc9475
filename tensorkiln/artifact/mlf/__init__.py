"""Model Library Format: what an archive says of itself, and reading it (docs/formats/mlf.md)."""

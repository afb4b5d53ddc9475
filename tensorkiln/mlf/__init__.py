"""Writing archives in Model Library Format, and projects from them (docs/formats/mlf.md)."""

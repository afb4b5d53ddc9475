"""Layout changes, transposes and slices."""

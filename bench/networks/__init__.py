"""Networks that benchmarks compare engines by, as their papers describe them, random weights."""

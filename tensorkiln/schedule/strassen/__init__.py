"""Products by one level of Strassen's algorithm."""

"""The Python form of both languages: what prints, what parses."""

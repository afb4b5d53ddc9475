"""Libraries made of the artifacts of a compile: written to files, or loaded here."""

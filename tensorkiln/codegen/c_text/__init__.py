"""C's text: names, types, literals, sizes and functions, for everything that writes C."""

"""The first elements in order, and elements put to computed places."""

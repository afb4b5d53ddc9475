"""Modules as Python text: names of variables, the printers of both languages, colour."""

"""Printing modules as Python text: variable names, printers of both IR levels, colours."""

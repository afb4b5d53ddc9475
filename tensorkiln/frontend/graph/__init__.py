"""What importers of models work with, whatever the format: the context that emits operators, values
and symbolic dimensions of a graph, and operators that are composed of ours."""

"""From objects and C sources to a library: tool chains, weights as an object, the link itself."""

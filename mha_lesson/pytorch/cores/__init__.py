"""One idea a file: ways through the middle of the layer, from q, k, v to the context."""

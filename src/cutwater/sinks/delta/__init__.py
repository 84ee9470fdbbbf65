"""Delta tables as sinks."""

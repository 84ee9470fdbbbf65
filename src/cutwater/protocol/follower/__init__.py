"""Following a pipeline's published epochs from outside: what is delivered, in which order, and where to continue."""

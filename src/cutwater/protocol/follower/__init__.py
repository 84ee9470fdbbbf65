"""Following a pipeline's published epochs from outside: what is given, in which order, and where to go on later."""

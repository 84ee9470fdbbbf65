"""From stage functions to a graph: the graph itself, built plans, and the parts of several members."""

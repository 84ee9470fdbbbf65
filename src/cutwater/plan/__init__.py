"""From stage functions to a graph: definitions, plans, and assembling the parts of several members."""

"""A running member: the shell, effect handlers, requests from outside, observers, status."""

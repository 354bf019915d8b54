"""Clients of other systems: what sources and targets of the same system share."""

"""Drift: whether a client's data changed, and whether that is worth a refresh; for clients and the simulator alike."""

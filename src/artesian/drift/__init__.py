"""Drift: whether a client's data changed, and whether that is worth a refresh. For the client and the simulator alike."""

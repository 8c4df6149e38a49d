"""A federation from a client's side: refresh when you want to."""

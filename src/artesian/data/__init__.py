"""Data sets as arrays: images, digits, people."""

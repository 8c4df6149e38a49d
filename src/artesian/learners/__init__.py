"""Bodies of data and the ability to learn from them."""

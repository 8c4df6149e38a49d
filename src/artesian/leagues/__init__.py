"""A league: methods x worlds x seeds, run side by side and put on one page."""

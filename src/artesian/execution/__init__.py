"""Where expensive work runs."""

"""Finished runs side by side: tables for a terminal, and a page with curves."""

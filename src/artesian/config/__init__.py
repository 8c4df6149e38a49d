"""Experiments and federations from TOML files and presets."""

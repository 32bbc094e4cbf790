"""Layers with their state as a folder."""

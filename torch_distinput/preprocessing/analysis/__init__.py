"""Adapting over files, with the state of each file kept."""

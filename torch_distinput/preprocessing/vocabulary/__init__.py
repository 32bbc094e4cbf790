"""Tokens in order, and where each of them is found: in memory, or mapped from a file."""

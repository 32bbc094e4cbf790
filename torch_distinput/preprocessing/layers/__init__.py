"""The layers, and what they have in common."""

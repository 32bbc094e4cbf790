"""Watches the loaders of a script on all its ranks, and says what they have delivered."""

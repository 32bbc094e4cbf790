"""Runs the fast tests with each Python and torch that can be had; see ``__main__``."""

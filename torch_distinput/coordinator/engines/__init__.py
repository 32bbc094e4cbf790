"""Starts processes with an object in each, and reaches these objects; finds out who died."""

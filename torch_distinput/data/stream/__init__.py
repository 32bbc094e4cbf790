"""Rows that arrive one after another: chunks, what of which shard is read, and what was bad."""

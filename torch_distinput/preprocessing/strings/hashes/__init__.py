"""Hashes of strings and integers, each written once as int64 tensor code: eager and exported."""

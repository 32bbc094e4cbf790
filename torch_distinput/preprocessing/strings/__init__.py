"""Strings as packed bytes: text, hashes and vocabularies."""

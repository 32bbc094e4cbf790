"""Sequences of uneven length: how long they are, and what is made of that."""

"""Columns of a batch as layers take them: host values, and the tensors made of them."""

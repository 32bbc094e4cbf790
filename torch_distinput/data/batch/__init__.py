"""A batch as a tree of leaves that have rows: building, slicing, describing and comparing it."""

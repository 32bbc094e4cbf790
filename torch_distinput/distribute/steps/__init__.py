"""A step as its user sees it: a value, its loss, the same step read again."""

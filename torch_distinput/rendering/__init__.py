"""Values as HTML and SVG: pages that open offline, and what notebooks show.

The standard library alone; it is imported where something is to be seen, and by nothing before.
"""

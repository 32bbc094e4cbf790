"""Shows what an input does: of a loader one has, before a run, and after it.

It stands at the edge: nothing else imports it, so that what is not asked for costs nothing.
"""

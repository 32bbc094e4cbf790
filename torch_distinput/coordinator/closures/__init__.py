"""The coordinator's side: the queue of closures, their results, and who runs which."""

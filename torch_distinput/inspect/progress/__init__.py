"""A bar beside the loop: where the epoch stands, and how much of its time waits for input."""

"""From what the user gave us to one of three sources."""

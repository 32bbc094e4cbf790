"""Where an epoch stands: positions, what was delivered, when it ends, and states."""

"""Loader processes: torch's DataLoader, and the shared memory that carries their results."""

"""How many steps may all workers play, where lengths are not known: votes ahead of use."""

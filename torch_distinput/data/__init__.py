"""Bytes to this worker's batches, in host memory. No process group enters here."""

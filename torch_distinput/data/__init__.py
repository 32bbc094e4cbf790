"""Bytes to this worker's batches, in host memory. It never sees a process group."""

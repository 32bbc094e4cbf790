"""Several sources as one."""

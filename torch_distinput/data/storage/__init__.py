"""File systems, networks and compression: the only folder that knows fsspec."""

"""What runs in a worker process: its datasets and iterators, its closures, the values they left."""

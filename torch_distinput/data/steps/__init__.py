"""This worker's steps: global batches cut, padded, fetched or played."""

"""Finding the state of layers in one pass over data that all workers share."""

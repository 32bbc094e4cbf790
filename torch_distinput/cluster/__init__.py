"""All ranks together: the home of torch.distributed. It never sees an example."""

"""Which example goes where: cluster, shards, batches and the order of an epoch, as integers."""

"""Parameter servers with a coordinator, after ``tf.distribute.ParameterServerStrategy``.

One process, the coordinator, hands functions to worker processes; parameters live in server
processes. A room at the edge: the workers' input comes from the public names, as a script's does.

    coordinator process          worker processes               server processes
    ClusterCoordinator  -------> fn(iterator, parameters) ----> parameters, optimizer
    closures, retries            datasets, iterators, values    placed by bytes and by rows
"""

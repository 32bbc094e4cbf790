"""Where the time of steps went: kept while they are played, summed up and judged when asked for."""

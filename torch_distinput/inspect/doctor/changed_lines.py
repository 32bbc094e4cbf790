"""The lines that change with torch_distinput, with the numbers of the loader at hand."""

from __future__ import annotations

from torch_distinput.inspect.doctor.loader_facts import LoaderFacts

_STRATEGY = "strategy = tdi.MultiWorkerMirroredStrategy()\n"


def write_distribution(facts: LoaderFacts, num_ranks: int) -> str:
    """Return how the same data is distributed: the global batch size, no sampler, no set_epoch."""
    per_rank = facts.batch_size or 1
    is_global = facts.division is not None and facts.division.split_batches
    size = per_rank if is_global else per_rank * num_ranks
    if facts.is_stream:
        return (
            f"{_STRATEGY}train = strategy.distribute_dataset(stream, global_batch_size={size})\n"
            "for batch in train:  # the same number of steps on all ranks"
        )
    arguments = [f"batch_size={size}"]
    arguments += ["shuffle=True"] * (facts.order == "shuffled")
    arguments += [f"num_workers={facts.loader_processes}"] * bool(facts.loader_processes)
    return (
        f"{_STRATEGY}loader = DataLoader(dataset, {', '.join(arguments)})\n"
        "train = strategy.distribute_dataset(loader, seed=0)  # batch_size is global; no sampler"
    )


def write_drawing() -> str:
    """Return how random numbers follow the example, not the process that happens to read it."""
    return (
        "rng = np.random.default_rng((seed, epoch, index))  # in __getitem__: by the example\n"
        "files = tdi.FileDataset(pattern, reader).map(transform)  # transform(row, rng): the same"
    )


def write_packing() -> str:
    """Return how many small objects become few large ones, which processes share."""
    return "texts = tdi.PackedStrings.from_list(texts)  # two tensors in place of a list of objects"

"""The lines that change with torch_distinput, with the numbers of the loader at hand."""

from __future__ import annotations

from torch_distinput.inspect.doctor.loader_facts import LoaderFacts

_STRATEGY = "strategy = tdi.MultiWorkerMirroredStrategy()\n"
_PREPARED = "train = tdi_accelerate.prepare(train, accelerator)  # Trainer: DistributedInputMixin"
_BY_ACCELERATE = {"BatchSamplerShard", "IterableDatasetShard"}


def write_distribution(facts: LoaderFacts, num_ranks: int) -> str:
    """Return how the same data is distributed: the global batch size, no division, no set_epoch."""
    per_rank = facts.batch_size or 1
    is_global = facts.division is not None and facts.division.split_batches
    size = per_rank if is_global else per_rank * num_ranks
    kept = [f"collate_fn={facts.collate_fn}"] * (facts.collate_fn is not None)
    kept += ["drop_last=True"] * (facts.drop_last and facts.batch_size is not None)
    is_prepared = facts.division is not None and facts.division.divider in _BY_ACCELERATE
    prepared = f"{_PREPARED}\n" if is_prepared else ""
    if facts.is_stream:
        arguments = ", ".join(["stream", f"global_batch_size={size}", *kept])
        return (
            f"{_STRATEGY}train = strategy.distribute_dataset({arguments})\n{prepared}"
            "for batch in train:  # the same number of steps on all ranks"
        )
    if facts.batch_size is None:
        batching, said = ["batch_sampler=batch_sampler"], "its batches are global: nothing by rank"
    else:
        batching = [f"batch_size={size}", *[facts.order_argument] * bool(facts.order_argument)]
        is_own = facts.order_argument == "sampler=sampler"
        said = f"batch_size is global; {'the sampler, too' if is_own else 'no sampler'}"
    arguments = ", ".join(["dataset", *batching, *kept, *[facts.kept] * bool(facts.kept)])
    return (
        f"{_STRATEGY}loader = DataLoader({arguments})\n"
        f"train = strategy.distribute_dataset(loader, seed=0)  # {said}\n{prepared}"
    ).rstrip()


def write_drawing() -> str:
    """Return how random numbers follow the example, not the process that happens to read it."""
    return (
        "rng = np.random.default_rng((seed, epoch, index))  # in __getitem__: by the example\n"
        "files = tdi.FileDataset(pattern, reader).map(transform)  # transform(row, rng): the same"
    )


def write_packing() -> str:
    """Return how many small objects become few large ones, which processes share."""
    return "texts = tdi.PackedStrings.from_list(texts)  # two tensors in place of a list of objects"

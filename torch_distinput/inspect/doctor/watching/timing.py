"""How long ranks wait for their loaders, and where the time goes, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch_distinput.inspect.doctor.watching.records import LoaderRecord
from torch_distinput.rendering.units import show_bytes


def list_times(ranks: Sequence[int], loaders: Sequence[LoaderRecord]) -> Iterator[str]:
    """Yield what a step takes, on the rank that waits longest for its loader and on the others."""
    shares = {}
    for rank, loader in zip(ranks, loaders, strict=True):
        waited = sum(epoch.wait_seconds for epoch in loader.epochs)
        stepped = sum(epoch.step_seconds for epoch in loader.epochs)
        steps = sum(max(0, epoch.batches - 1) for epoch in loader.epochs)
        if steps and waited + stepped > 0:
            shares[rank] = (waited / (waited + stepped), waited / steps, stepped / steps)
    if not shares:
        return
    most = max(shares, key=lambda rank: shares[rank][0])
    share, waited, stepped = shares[most]
    where = f"Rank {most}" if len(ranks) > 1 else "The script"
    others = [value[0] for rank, value in shares.items() if rank != most]
    beside = f"; other ranks at most {max(others):.0%}" if others else ""
    yield (
        f"{where} waits {_show(waited)} for a batch and takes {_show(stepped)} for the step with "
        f"it: {share:.0%} of its time is spent waiting{beside}."
    )
    yield from _list_stages(loaders[list(ranks).index(most)])


def _list_stages(loader: LoaderRecord) -> Iterator[str]:
    first = max(epoch.first_seconds for epoch in loader.epochs)
    yield f"The first batch of an epoch takes up to {_show(first)}."
    if loader.fetch_seconds is not None and loader.collate_seconds is not None:
        place = "a loader process" if loader.facts.loader_processes else "the training process"
        yield (
            f"In {place}, a batch takes {_show(loader.fetch_seconds)} to read and "
            f"{_show(loader.collate_seconds)} to collate."
        )
    if loader.private_bytes is not None:
        yield (
            f"The largest loader process has {show_bytes(loader.private_bytes)} to itself, not "
            "shared with others."
        )


def _show(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.0f} us"

"""The arguments of a DataLoader that stay as they are, as code."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, default_collate, default_convert

_PREFETCH_FACTOR = 2
"""Torch's own."""


def name_collate_fn(loader: DataLoader[Any]) -> str | None:
    """Return the name of a function of the user's that makes batches."""
    is_default = loader.collate_fn in (default_collate, default_convert)
    return None if is_default else _name(loader.collate_fn, "collate_fn")


def write_kept(loader: DataLoader[Any]) -> str:
    """Return what was passed beside dataset, order, batches and ``collate_fn``.

    Not the generator: ``seed=`` decides what it would draw.
    """
    written = []
    if loader.num_workers:
        context: Any = loader.multiprocessing_context
        written = [f"num_workers={loader.num_workers}"]
        if context is not None:
            written += [f"multiprocessing_context={context.get_start_method()!r}"]
        if loader.prefetch_factor != _PREFETCH_FACTOR:
            written += [f"prefetch_factor={loader.prefetch_factor}"]
    if loader.worker_init_fn is not None:
        written += [f"worker_init_fn={_name(loader.worker_init_fn, 'worker_init_fn')}"]
    for name in ("timeout", "pin_memory", "persistent_workers"):
        value = getattr(loader, name)
        written += [f"{name}={value}"] * bool(value)
    return ", ".join(written)


def _name(fn: Any, argument: str) -> str:
    """What the script calls it, perhaps."""
    name = getattr(fn, "__name__", argument)
    return name if name.isidentifier() else argument

"""``tdi.explain``: what a DataLoader does on so many ranks, without running it."""

from __future__ import annotations

import os
from typing import Any, Literal

from torch_distinput.data.sources.dataloader import has_own_iter
from torch_distinput.inspect.doctor.explanation import Explanation
from torch_distinput.inspect.doctor.loader_facts import LoaderFacts, look_at, unwrapped
from torch_distinput.inspect.doctor.stream_parts import compare_parts
from torch_distinput.inspect.doctor.verdicts import (
    find_by_arithmetic,
    list_loader_facts,
    list_unseen,
    with_trainer,
)
from torch_distinput.options import check_count

_TRAINERS = ("accelerate", "lightning")


def explain(
    loader: Any,
    *,
    num_workers: int | None = None,
    trainer: Literal["accelerate", "lightning"] | None = None,
    read_examples: int = 0,
) -> Explanation:
    """Say what a DataLoader does on so many ranks: what it repeats, drops, reads several times.

    It works by arithmetic from the loader's dataset, sampler and batch sampler: it iterates
    nothing, draws no random number and changes nothing. What only running can show is listed as
    not seen; ``torch-distinput doctor script.py`` sees it.

    Args:
        loader: a ``DataLoader``, or one that Accelerate or Fabric has prepared.
        num_workers: the ranks of the data-parallel group, as everywhere in this package; not the
            loader processes, which the DataLoader itself calls ``num_workers``. None: what the
            loader was divided for, else torchrun's WORLD_SIZE, else one.
        trainer: who will divide a loader that nobody has divided yet: ``"accelerate"`` (and
            Transformers' Trainer) or ``"lightning"``. None: it is iterated as it is, or by
            Accelerate's defaults if Accelerate has prepared it on one process.
        read_examples: of a stream, how many examples a deep copy of the dataset may yield in
            each of two pretended loader processes, to see whether their parts differ. Random
            states are put back.

    Raises:
        TypeError: if it is no DataLoader, or a stream to be read cannot be copied.
        ValueError: for counts that are none, or another trainer.
    """
    facts = look_at(loader)
    if trainer is not None and trainer not in _TRAINERS:
        msg = (
            f"Expected trainer to be one of {_TRAINERS} or None, got {trainer!r}. Leave it out for "
            "a training loop of your own."
        )
        raise ValueError(msg)
    num_ranks = _ranks_of(facts) if num_workers is None else num_workers
    check_count("num_workers", num_ranks, minimum=1)
    check_count("read_examples", read_examples, minimum=0)
    facts = with_trainer(facts, trainer or _trainer_of(loader), num_ranks)
    findings, unseen = (
        list(find_by_arithmetic(facts, num_ranks)),
        list(list_unseen(facts, num_ranks)),
    )
    if has_own_iter(unwrapped(loader)):
        findings, unseen = [], ["What the loader's own __iter__ does with its batches.", *unseen]
    elif read_examples and facts.is_stream and not facts.is_ours:
        findings += compare_parts(loader, facts, num_ranks, read_examples)
    return Explanation(
        title=f"{facts}, on {num_ranks} rank{'s' * (num_ranks > 1)}",
        findings=tuple(findings),
        facts=tuple(list_loader_facts(facts, num_ranks)),
        unseen=tuple(unseen),
    )


def _trainer_of(loader: Any) -> Literal["accelerate"] | None:
    """Accelerate divides what it prepares, but on one process it leaves no trace of how."""
    is_prepared = type(loader).__module__.partition(".")[0] == "accelerate"
    is_alone = os.environ.get("WORLD_SIZE", "1") == "1"
    return "accelerate" if is_prepared and is_alone else None


def _ranks_of(facts: LoaderFacts) -> int:
    """For how many ranks a loader seems to be meant."""
    if facts.division is not None and facts.division.num_ranks is not None:
        return facts.division.num_ranks
    return int(os.environ.get("WORLD_SIZE", "1"))

"""The verdicts that arithmetic can give of a loader on so many ranks, and what stays unseen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from torch_distinput.inspect.doctor import changed_lines
from torch_distinput.inspect.doctor.explanation import Finding
from torch_distinput.inspect.doctor.loader_facts import Division, LoaderFacts
from torch_distinput.inspect.doctor.shares import (
    EpochShares,
    share_batches,
    share_padded,
    share_split,
    share_whole,
)
from torch_distinput.rendering.units import show_bytes, show_count

LARGE_BYTES = 256 << 20
"""Copies of Python objects below this, on one rank, are not worth a word."""


def count_shares(facts: LoaderFacts, num_ranks: int) -> EpochShares | None:
    """What an epoch comes to on so many ranks; None where arithmetic cannot tell."""
    number, size, division = facts.num_examples, facts.batch_size, facts.division
    if number is None or not size or facts.is_ours or facts.order == "drawn with replacement":
        return None
    if division is None:
        if facts.is_stream or (facts.may_be_part and num_ranks > 1):
            return None
        return share_whole(number, num_ranks, size, drop_last=facts.drop_last)
    if division.divider == "DistributedSampler":
        return share_padded(
            *(number, num_ranks, size),
            sampler_drops=division.drop_last,
            loader_drops=facts.drop_last,
        )
    if division.divider == "BatchSamplerShard":
        share = share_split if division.split_batches else share_batches
        return share(
            *(number, num_ranks, size),
            drop_last=division.drop_last,
            even_batches=division.even_batches,
        )
    return None


def find_by_arithmetic(facts: LoaderFacts, num_ranks: int) -> Iterator[Finding]:
    """Yield what is certain from the loader's attributes."""
    if facts.is_ours:
        return
    shares = count_shares(facts, num_ranks)
    if shares is not None and num_ranks > 1:
        yield from _find_in_shares(facts, num_ranks, shares)
    yield from _find_shared_generators(facts)
    yield from _find_copies(facts)


def _find_in_shares(facts: LoaderFacts, num_ranks: int, shares: EpochShares) -> Iterator[Finding]:
    if facts.division is None:
        yield not_divided(facts, num_ranks, shares)
        return
    kept = replace(facts, drop_last=facts.drop_last and not shares.dropped)
    code = changed_lines.write_distribution(kept, num_ranks)
    by, examples = _name_of(facts.division), show_count(facts.num_examples or 0, "example")
    if shares.repeated:
        text = (
            f"an epoch of {examples} delivers {shares.delivered:,}. "
            f"{shares.repeated:,} {'comes' if shares.repeated == 1 else 'come'} again, because "
            f"{by} fills up until {num_ranks} ranks have the same number. {_who_counts_again(by)}"
        )
        yield Finding(kind="repeated", number=shares.repeated, text=text, code=code)
    if shares.dropped:
        text = (
            f"{shares.dropped:,} of {examples} an epoch "
            f"{'reaches' if shares.dropped == 1 else 'reach'} no rank, because drop_last leaves "
            f"out what does not fill {_full(facts, num_ranks)}."
        )
        yield Finding(kind="dropped", number=shares.dropped, text=text, code=code)
    if shares.fewest_steps < shares.most_steps:
        text = (
            f"some ranks have {show_count(shares.fewest_steps, 'step')}, others "
            f"{shares.most_steps:,}: a collective of the last step waits for ranks that have ended."
        )
        number = shares.most_steps - shares.fewest_steps
        yield Finding(kind="ranks end at different steps", number=number, text=text, code=code)


def not_divided(facts: LoaderFacts, num_ranks: int, shares: EpochShares | None) -> Finding:
    """Return the finding that each rank reads everything; in numbers, where ranks agree in them."""
    count, total = "all of them", ""
    if shares is not None:
        count, total = f"{facts.num_examples:,}", f": {shares.delivered:,} an epoch in all"
    text = (
        f"nothing divides the examples. Each of {num_ranks} ranks that build this loader reads "
        f"{count}, as if it were alone{total}."
    )
    code = changed_lines.write_distribution(facts, num_ranks)
    return Finding(kind="not divided", number=num_ranks, text=text, code=code)


def _who_counts_again(divider: str) -> str:
    if divider == "DistributedSampler":
        return "Training and metrics count these twice."
    return "Training counts these twice, and so do metrics without gather_for_metrics."


def _name_of(division: Division) -> str:
    if division.divider == "BatchSamplerShard":
        return "Accelerate (even_batches=True)"
    return division.divider


def _full(facts: LoaderFacts, num_ranks: int) -> str:
    assert facts.division is not None
    if facts.division.divider == "BatchSamplerShard":
        return "a batch on every rank"
    if facts.division.drop_last and facts.drop_last:
        return f"{num_ranks} ranks evenly, and then a batch of each"
    if facts.division.drop_last:
        return f"{num_ranks} ranks evenly"
    return f"a batch on each of {num_ranks} ranks"


def _find_shared_generators(facts: LoaderFacts) -> Iterator[Finding]:
    names, processes = facts.contents.generators, facts.loader_processes
    if not names or processes < 2 or facts.has_init_fn:
        return
    text = (
        f"{facts.dataset}.{names[0]} is a random generator of the dataset's own, from which "
        f"fetching an example draws. Each of {processes} loader processes begins with a copy of "
        "it, so they draw the same numbers"
        + ("." if facts.persistent else ", and the same again in every epoch.")
    )
    yield Finding(
        kind="shared random numbers",
        number=processes,
        text=text,
        code=changed_lines.write_drawing(),
    )


def _find_copies(facts: LoaderFacts) -> Iterator[Finding]:
    held, processes = facts.contents, facts.loader_processes
    is_forked = facts.start_method == "fork"
    each = held.object_bytes if is_forked else held.object_bytes + held.array_bytes
    if each * processes < LARGE_BYTES:
        return
    if is_forked:
        why = (
            "comes to hold a copy of the objects: reading one writes its reference count, and a "
            "forked page that is written to is copied."
        )
    else:
        why = f"is started by {facts.start_method}, and is sent a pickle of both."
    text = (
        f"{facts.dataset} holds {held.num_objects:,} Python objects in large lists and dicts, "
        f"about {show_bytes(held.object_bytes)}, and {show_bytes(held.array_bytes)} of NumPy's "
        f"arrays. Each of {processes} loader processes {why} A rank needs "
        f"{show_bytes(each * processes)} more."
    )
    code = changed_lines.write_packing()
    yield Finding(kind="memory copied", number=each * processes, text=text, code=code)


def list_loader_facts(facts: LoaderFacts, num_ranks: int) -> Iterator[str]:
    """Yield what was counted."""
    if facts.is_ours:
        yield f"{facts.dataset} of torch_distinput divides itself: each example once, all in step."
        return
    shares = count_shares(facts, num_ranks)
    if shares is not None:
        steps = show_count(shares.most_steps, "step")
        if shares.fewest_steps < shares.most_steps:
            steps = f"{shares.fewest_steps:,} to {steps}"
        ranks = "on one rank" if num_ranks == 1 else f"on each of {num_ranks} ranks"
        yield f"An epoch has {steps} {ranks}: {show_count(shares.delivered, 'example')} delivered."
        if shares.dropped and (num_ranks == 1 or facts.division is None):
            whose = "" if num_ranks == 1 else ", the same on each rank"
            yield f"drop_last leaves out {show_count(shares.dropped, 'example')} an epoch{whose}."
    is_drawn = facts.order == "drawn with replacement" and facts.division is None
    if is_drawn and num_ranks > 1 and facts.num_examples is not None:
        examples = show_count(facts.num_examples, "example")
        yield f"Each rank draws {examples} with replacement: its own, if it is seeded by rank."
    if facts.division is not None and facts.division.num_ranks not in (None, num_ranks):
        yield (
            f"The loader is divided among {show_count(facts.division.num_ranks, 'rank')}; the "
            f"numbers here are for {show_count(num_ranks, 'rank')} that divide it by the same rule."
        )
    yield from _list_memory(facts, num_ranks)
    if torch.accelerator.is_available():
        yield _describe_pinning(facts)


def _describe_pinning(facts: LoaderFacts) -> str:
    if facts.pins:
        return "Batches are pinned."
    return "Batches are not pinned (pin_memory=False): a copy to the device makes the step wait."


def _list_memory(facts: LoaderFacts, num_ranks: int) -> Iterator[str]:
    held = facts.contents
    if held.tensor_bytes + held.array_bytes + held.object_bytes >= 1 << 20:
        yield (
            f"On each rank the dataset holds {show_bytes(held.tensor_bytes)} in tensors, "
            f"{show_bytes(held.array_bytes)} in NumPy's arrays and about "
            f"{show_bytes(held.object_bytes)} in Python objects."
        )
    if facts.loader_processes:
        by = f", started by {facts.start_method}" if facts.start_method else ""
        yield (
            f"{show_count(num_ranks * facts.loader_processes, 'loader process')} in all "
            f"(DataLoader(num_workers={facts.loader_processes}) on each rank{by})."
        )


def list_unseen(facts: LoaderFacts, num_ranks: int) -> Iterator[str]:
    """Yield what only running can show."""
    if facts.is_ours:
        return
    division = facts.division
    if (
        division is not None
        and division.divider == "DistributedSampler"
        and facts.order == "shuffled"
    ):
        yield (
            "Whether the script calls sampler.set_epoch(epoch) before each epoch. Without it every "
            "epoch has the same order; `torch-distinput doctor` sees it."
        )
    if division is not None and division.divider == "unknown":
        yield (
            "What a sampler, batch sampler or loader of its own class does on each rank; "
            "`torch-distinput doctor` counts what arrives."
        )
    if facts.is_stream and max(num_ranks, facts.loader_processes) > 1:
        by = [f"{facts.loader_processes} loader processes"] * (facts.loader_processes > 1)
        by = [f"{num_ranks} ranks"] * (num_ranks > 1) + by
        ends = ", and whether ranks end at the same step" * (num_ranks > 1)
        yield (
            f"Whether {facts.dataset} yields another part on each of {' and '.join(by)}{ends}; "
            "`torch-distinput doctor` compares what arrives, and explain(read_examples=100) "
            "what two loader processes would read."
        )
    if facts.may_be_part and division is None and num_ranks > 1:
        yield "Whether the subset is this rank's part of the data, or the same on all ranks."


def with_trainer(facts: LoaderFacts, trainer: str | None, num_ranks: int) -> LoaderFacts:
    """Return the facts of what a trainer makes of a loader that nobody has divided."""
    if trainer is None or facts.division is not None or facts.is_stream or facts.is_ours:
        return facts
    if trainer == "accelerate":
        division = Division(
            divider="BatchSamplerShard", num_ranks=num_ranks, drop_last=facts.drop_last,
            even_batches=True,
        )  # fmt: skip
    else:
        division = Division(divider="DistributedSampler", num_ranks=num_ranks)
    return replace(facts, division=division)

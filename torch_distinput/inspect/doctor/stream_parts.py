"""Whether a stream yields other examples in other loader processes: two are pretended."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils.data._utils import worker

from torch_distinput.inspect.doctor import changed_lines
from torch_distinput.inspect.doctor.explanation import Finding
from torch_distinput.inspect.doctor.loader_facts import LoaderFacts, unwrapped
from torch_distinput.inspect.doctor.row_digests import digest_example
from torch_distinput.rendering.units import show_count

_FEWEST = 4
"""Examples that must be there, and differ, before two processes can be said to yield the same."""


def compare_parts(
    loader: Any, facts: LoaderFacts, num_ranks: int, num_examples: int
) -> Iterator[Finding]:
    """Yield a finding where another loader process would yield the same examples.

    Another rank cannot be pretended: a stream may have asked for its rank when it was made.

    Raises:
        TypeError: for a dataset that cannot be copied.
    """
    dataset, processes = unwrapped(loader).dataset, facts.loader_processes
    if processes < 2 or facts.has_init_fn:
        return
    read = [
        _read(_copied(dataset), process, processes, num_examples) for process in (0, processes - 1)
    ]
    if are_the_same(*read):
        yield read_several_times(facts, num_ranks, processes, len(read[0]))


def _copied(dataset: Any) -> Any:
    # A stream may hold np.random.rand, say: global generators stay what they are, and are seeded.
    methods: list[Any] = [np.random.rand, random.random]
    shared = [*(method.__self__ for method in methods), torch.default_generator]
    try:
        return copy.deepcopy(dataset, {id(generator): generator for generator in shared})
    except (pickle.PicklingError, copy.Error, TypeError, AttributeError) as error:
        msg = (
            f"Expected a dataset that can be copied, of which explain(read_examples=) reads a "
            f"copy; {type(dataset).__name__} cannot: {error}. Run `torch-distinput doctor` on the "
            "script instead, which watches what the loader delivers."
        )
        raise TypeError(msg) from error


def are_the_same(one: list[str], other: list[str]) -> bool:
    """Whether most of the shorter one is in the other, of examples that differ among themselves."""
    fewer = min(len(set(one)), len(set(other)))
    differ = fewer >= _FEWEST and fewer >= 0.9 * min(len(one), len(other))
    return differ and len(set(one) & set(other)) >= 0.5 * fewer


def are_distinct(rows: list[str]) -> bool:
    """Whether examples differ among themselves, so that :func:`are_the_same` can tell."""
    return are_the_same(rows, rows)


def read_several_times(facts: LoaderFacts, num_ranks: int, times: int, compared: int) -> Finding:
    """Return the finding that every example comes so often."""
    places = show_count(max(1, facts.loader_processes), "loader process")
    if num_ranks > 1:
        places = f"{num_ranks} ranks x {places}"
    text = (
        f"{facts.dataset} is read {times} times: it does not divide itself among {places}. "
        f"{compared:,} examples were compared, and they are the same."
    )
    return Finding(
        kind="stream read several times",
        number=times,
        text=text,
        code=changed_lines.write_distribution(facts, num_ranks),
    )


def _read(dataset: Any, process: int, num_processes: int, num_examples: int) -> list[str]:
    """Read as that loader process would: ``get_worker_info()`` answers as it does there."""
    info = worker.WorkerInfo(id=process, num_workers=num_processes, seed=process, dataset=dataset)
    with mock.patch.object(worker, "_worker_info", info), _seeded(process):
        return [digest_example(example) for example in islice(iter(dataset), num_examples)]


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global generators, as a loader process does, and put their states back."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed devices, too
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])

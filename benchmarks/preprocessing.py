"""Preprocessing layers: the time of adapt() per value, and of a lookup per string.

    python benchmarks/preprocessing.py [--quick] [--json] [--rounds 5]

All cases use one core and batches of 8,192 rows. *Normalization* adapts to 64 columns of normal
numbers; its floor is NumPy's sum and sum of squares in float64. *Discretization* adapts to the same
numbers; its floor is a sort of all of them. The *rank error* is the largest distance of one of its
99 boundaries from its place among them, in millionths of their number. *Counting* is of 100,000
tokens, some much more frequent than others (Zipf), until the counts of all batches are one; its
floor is `Counter.update`. *Four layers* adapt to dicts of four columns in one pass, until
they can be used; the floor only sums, sorts and counts.

*Lookup* is of 100,000 tokens of 8 to 16 bytes and 1 % other strings. For host strings, some much
more frequent than others or *all as often*, the floor is a list comprehension over `dict.get`;
pyarrow makes its table in each call. The strings are made again for each turn, each batch right
before its lookup and off the clock: none is the vocabulary's own object, or has been hashed before.
Strings *of a table* are the same in all turns, as those of a table in memory are in all epochs.
Packed strings are all equally frequent; their floor is `torch.searchsorted`, with the hashes given.
A *file* has 3,000,000 tokens; *memory* is what a spawned process holds alone after it has received
a layer and looked up a batch.
"""

from __future__ import annotations

import argparse
import os
import pickle
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import OURS, Figure, command_line, figure, installed, private_mb, run
from tokens import (
    ROWS,
    SIZES,
    Clocked,
    Size,
    Vocabulary,
    compared,
    one_by_one,
    uniform,
    whole,
    with_others,
    zipf,
)

from torch_distinput import preprocessing as pp
from torch_distinput.preprocessing.strings.hashes.token_hash import token_hash

COLUMNS, NUM_BINS = 64, 100
NORMALIZATION_TARGET_NS, DISCRETIZATION_TARGET_NS, COUNTING_TARGET_NS = 16.7, 20.0, 125.0
HOST_TARGET_NS, PACKED_TARGET_NS = 80.0, 150.0
RANK_TARGET_PPM, MEMORY_TARGET_MB = 100.0, 40.0


# ------------------------------------------------------------------------------ numbers


def adapt(layer: Callable[[], Any], batches: Iterable[Any]) -> Any:
    """A new layer, adapted."""
    made = layer()
    made.adapt(iter(batches))
    return made


def sums(batches: Iterable[np.ndarray]) -> None:
    """The floor of mean and variance."""
    total, squares = np.zeros(COLUMNS), np.zeros(COLUMNS)
    for batch in batches:
        values = batch.astype(np.float64)
        total += values.sum(0)
        squares += np.square(values, out=values).sum(0)


def joined(batches: Iterable[np.ndarray]) -> np.ndarray:
    """All numbers in one row."""
    return np.concatenate([batch.reshape(-1) for batch in batches])


def standard_scaler(batches: list[np.ndarray]) -> Clocked:
    """scikit-learn's, which goes from batch to batch too."""
    from sklearn.preprocessing import StandardScaler

    return one_by_one(lambda: StandardScaler().partial_fit, lambda: batches)


def bins_discretizer(batches: list[np.ndarray]) -> Clocked:
    """scikit-learn's, which has all numbers at once."""
    from sklearn.preprocessing import KBinsDiscretizer

    made = partial(KBinsDiscretizer, NUM_BINS, encode="ordinal", strategy="quantile")
    return whole(
        lambda values: made(subsample=None, quantile_method="linear").fit(values),
        lambda: joined(batches)[:, None],
    )


def rank_error(ordered: np.ndarray, boundaries: np.ndarray) -> float:
    """The farthest that a boundary is from its quantile, in millionths of all numbers."""
    wanted = np.arange(1, len(boundaries) + 1) / (len(boundaries) + 1)
    first = np.searchsorted(ordered, boundaries, "left") / len(ordered)
    last = np.searchsorted(ordered, boundaries, "right") / len(ordered)
    return float(1e6 * np.maximum(first - wanted, wanted - last).max(initial=0))


def of_numbers(size: Size, rounds: int) -> list[Figure]:
    """Mean and variance, and quantiles."""
    generator = np.random.default_rng(0)
    batches = [
        generator.standard_normal((ROWS, COLUMNS), np.float32) for _ in range(size.batches)
    ]
    binned = partial(pp.Discretization, num_bins=NUM_BINS)
    rows: list[tuple[str, Any, Any, Any, float]] = [
        (
            "Normalization", sums, pp.Normalization, {"StandardScaler": standard_scaler},
            NORMALIZATION_TARGET_NS,
        ),
        (
            "Discretization", lambda these: np.sort(joined(these)), binned,
            {"KBinsDiscretizer": bins_discretizer}, DISCRETIZATION_TARGET_NS,
        ),
    ]  # fmt: skip
    figures: list[Figure] = []
    for name, floor, layer, peer, target in rows:
        cases = {
            OURS: whole(partial(adapt, layer), lambda: batches),
            **installed(peer, batches),
        }
        figures += compared(
            f"adapt {name}", whole(floor, lambda: batches), cases, rounds,
            count=size.batches * ROWS * COLUMNS, per="value", target=target,
        )  # fmt: skip
    boundaries = adapt(binned, batches).bin_boundaries.numpy()
    error = rank_error(np.sort(joined(batches)), boundaries)
    return [*figures, figure("rank error", OURS, "ppm", [error], target=RANK_TARGET_PPM)]


# ------------------------------------------------------------------------------ vocabularies


def our_count() -> Callable[[Any], object]:
    """What adapt() does ."""
    layer = pp.StringLookup()
    return partial(layer.count, layer.analyzer.new_state())


def value_counts(batches: Callable[[], Iterable[Any]]) -> Clocked:
    """The peer of pyarrow: all batches at the end."""
    import pyarrow as pa
    import pyarrow.compute as pc

    chunks: list[Any] = []

    def begin() -> Callable[[Any], object]:
        chunks.clear()
        return lambda batch: chunks.append(pa.array(batch))

    return one_by_one(begin, batches, lambda _: pc.value_counts(pa.chunked_array(chunks)))


def four_layers() -> pp.Features:
    """One of each kind."""
    return pp.Features(
        amount=pp.Normalization(),
        age=pp.Discretization(num_bins=NUM_BINS),
        city=pp.StringLookup(),
        code=pp.IntegerLookup(),
    )


def by_hand(batches: Iterable[Mapping[str, Any]]) -> None:
    """Sums, sorted numbers and counts."""
    ages, cities, codes = [], Counter[str](), Counter[int]()
    for batch in batches:
        values = batch["amount"].astype(np.float64)
        values.sum(), np.square(values).sum()
        ages.append(batch["age"])
        cities.update(batch["city"])
        codes.update(batch["code"].tolist())
    np.sort(np.concatenate(ages))


def of_counts(size: Size, rounds: int) -> list[Figure]:
    """A vocabulary, and all layers together."""
    vocabulary, places = Vocabulary(size.tokens), zipf(size)
    numbers = np.random.default_rng(3).standard_normal((size.batches, 2, ROWS)).astype(np.float32)

    def dicts() -> list[dict[str, Any]]:
        return [
            {"amount": amount, "age": age, "city": cities, "code": codes}
            for (amount, age), cities, codes in zip(
                numbers, vocabulary.batches(places), np.split(places, size.batches), strict=True
            )
        ]

    strings = partial(vocabulary.batches, places)
    cases = {
        OURS: one_by_one(our_count, strings, lambda work: len(work.args[0])),
        **installed({"pyarrow value_counts": value_counts}, strings),
    }
    together = {OURS: whole(partial(adapt, four_layers), dicts)}
    return [
        *compared(
            "counting tokens", one_by_one(lambda: Counter[str]().update, strings), cases, rounds,
            count=len(places), per="token", target=COUNTING_TARGET_NS,
        ),
        *compared(
            "adapt four layers", whole(by_hand, dicts), together, rounds,
            count=len(places), per="row", target=None,
        ),
    ]  # fmt: skip


# ------------------------------------------------------------------------------ lookup


def index_in(tokens: list[str], batches: Callable[[], Iterable[Any]]) -> Clocked:
    """The peer of pyarrow."""
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pa.array(tokens)
    return one_by_one(lambda: lambda batch: pc.index_in(pa.array(batch), known), batches)


def of_host(size: Size, rounds: int) -> list[Figure]:
    """Strings as a pipeline has them."""
    vocabulary = Vocabulary(size.tokens)
    layer = pp.StringLookup(vocabulary=vocabulary.tokens)
    codes = {token: place for place, token in enumerate(vocabulary.tokens)}
    peers = {"pyarrow index_in": partial(index_in, vocabulary.tokens)}
    figures = []
    often, evenly = with_others(zipf(size)), with_others(uniform(size, size.tokens))
    table = list(vocabulary.batches(often))
    workloads: dict[str, Callable[[], Iterable[Any]]] = {
        "": partial(vocabulary.batches, often),
        ", all as often": partial(vocabulary.batches, evenly),
        ", of a table": lambda: table,
    }
    for name, strings in workloads.items():
        figures += compared(
            f"lookup, host strings{name}",
            one_by_one(lambda: lambda batch: [codes.get(token, -1) for token in batch], strings),
            {OURS: one_by_one(lambda: layer, strings), **installed(peers, strings)},
            rounds, count=len(often), per="token", target=HOST_TARGET_NS,
        )  # fmt: skip
    return figures


def of_batches(
    workload: str, layer: pp.StringLookup, strings: list[list[str]], rounds: int
) -> list[Figure]:
    """Packed before the clock runs."""
    batches = [pp.pack_strings(batch, 16) for batch in strings]
    hashes = [token_hash(*batch.rows(), 0) for batch in batches]  # with the seed of the layer
    keys = layer.need("keys")
    return compared(
        workload,
        one_by_one(lambda: partial(torch.searchsorted, keys), lambda: hashes),
        {OURS: one_by_one(lambda: layer, lambda: batches)},
        rounds, count=len(batches) * ROWS, per="token", target=PACKED_TARGET_NS,
    )  # fmt: skip


def held_mb(layers: list[bytes], batch: list[str]) -> float:
    """What the last of the layers adds to this process, when the others have been used."""
    for pickled in layers:
        before = private_mb()
        layer = pickle.loads(pickled)  # noqa: S301 - our own
        layer(pp.pack_strings(batch))
        passed = private_mb() - before
    return passed


def memory(layers: list[pp.StringLookup], batch: list[str], rounds: int) -> Figure:
    """Each round in a new process."""
    pickled, values = list(map(pickle.dumps, layers)), []
    for _ in range(min(rounds, 3)):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            values.append(process.submit(held_mb, pickled, batch).result())
    return figure("memory of a file's tokens", OURS, "MB", values, target=MEMORY_TARGET_MB)


def of_packed(size: Size, rounds: int) -> list[Figure]:
    """Strings as a model has them, with a vocabulary in memory and one in a file."""
    figures, layers = [], []
    with tempfile.TemporaryDirectory() as folder:
        # Where layers keep what they make of a file, those of spawned processes too.
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        for count, name in ((size.tokens, ""), (size.tokens_of_file, ", in a file")):
            vocabulary, file = Vocabulary(count), Path(folder, f"{count}.txt")
            file.write_text("\n".join(vocabulary.tokens))
            layers.append(pp.StringLookup(vocabulary=str(file) if name else vocabulary.tokens))
            strings = list(vocabulary.batches(with_others(uniform(size, count))))
            figures += of_batches(f"lookup, packed strings{name}", layers[-1], strings, rounds)
        return [*figures, memory(layers, strings[0], rounds)]


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """All of them."""
    size = SIZES[arguments.size]
    parts = (of_numbers, of_counts, of_host, of_packed)
    return [one for part in parts for one in part(size, arguments.rounds)]


if __name__ == "__main__":
    run(measure, command_line(__doc__).parse_args())

"""Packing: how long a plan takes, what is wasted and cut, and how long a token takes.

    python benchmarks/packing.py [--quick] [--json] [--rounds 5]

The documents are source files and docstrings of Python's standard library, four bytes a token, in
rows of 2,048 tokens; each round has another order. *Planned*: from the lengths of 200,000 such
documents to rows. *Waste*: padding, and tokens that never come, for each million tokens. *Cut*: of
each million documents that would fit into a row, those that are not whole in one. *A token*: the
time of an epoch in batches of 8 rows, for each token; ours reads a nested tensor, or a table of
Hugging Face as the peers do. torchtitan's dataset gives rows one by one, cuts documents where a row
is full, and leaves out what fills no row. grain packs documents that are cut into rows beforehand,
and reads a list of arrays. ``DataCollatorWithFlattening`` makes one row of any
length of 8 documents, so it is measured by its time alone.
"""

from __future__ import annotations

import argparse
import ast
import logging
import sysconfig
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import OURS, Figure, command_line, figure, installed, run, seconds

import torch_distinput as tdi
from torch_distinput.plan.assignment.document_packing import pack_documents

LENGTH, ROWS, WINDOW = 2048, 8, 1000
NUM_FILES = {"full": 400, "quick": 100, "tiny": 3}
NUM_PLANNED = {"full": 200_000, "quick": 50_000, "tiny": 1000}
MILLION = FIRST = 1_000_000
PLAN_TARGET_US, CUT_TARGET_PPM = 0.3, 0.0
WASTE_TARGET_PPM, TOKEN_TARGET_NS = 568.0, 302.0  # of the best peer: torchtitan, transformers
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)

Document = np.ndarray[Any, np.dtype[np.int64]]
Epoch = Callable[[], Iterator[Document]]
"""Plays the rows of an epoch, ``(rows, length)``; padding is 0."""


def read_documents(num_files: int) -> list[Document]:
    """Sources and docstrings as tokens above 0; the first tells the number of the document."""
    folder = Path(sysconfig.get_path("stdlib"))
    texts = []
    for file in sorted([*folder.glob("*.py"), *folder.glob("*/*.py")])[:num_files]:
        source = file.read_text(errors="replace")
        nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED))
        texts += [source, *(ast.get_docstring(node) or "" for node in nodes)]
    documents = []
    for number, text in enumerate(text.encode() for text in texts if text):
        words = np.frombuffer(text[: len(text) // 4 * 4], dtype=np.uint32) % 50_000
        documents.append(np.append(FIRST + number, words + 1).astype(np.int64))
    return documents


def as_nested(documents: list[Document]) -> dict[str, torch.Tensor]:
    """A column."""
    offsets = np.cumsum([0, *map(len, documents)])
    values = torch.from_numpy(np.concatenate(documents))
    return {"input_ids": torch.nested.nested_tensor_from_jagged(values, torch.from_numpy(offsets))}


def as_table(documents: list[Document]) -> Any:
    """A dataset of Hugging Face."""
    from datasets import Dataset

    return Dataset.from_dict({"input_ids": documents})


# ------------------------------------------------------------------------------ who packs


def ours(source: Any, how: str) -> Epoch:
    """By the public way."""
    packing = tdi.pack(source, length=LENGTH, how=how, window=WINDOW)
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(packing, global_batch_size=ROWS)

    def play() -> Iterator[Document]:
        for batch in dataset:
            yield batch["input_ids"].numpy()

    return play


def torchtitan(documents: list[Document]) -> Epoch:
    """Its dataset, whose tokenizer has nothing to do here."""
    from torchtitan.hf_datasets import DatasetConfig, text_datasets

    table = as_table(documents)
    text_datasets.DATASETS["documents"] = DatasetConfig(
        path="", loader=lambda _: table, sample_processor=lambda sample: sample["input_ids"]
    )

    class Tokens:
        """Of documents that are tokens already."""

        @staticmethod
        def encode(tokens: list[int], *, add_bos: bool, add_eos: bool) -> list[int]:
            del add_bos
            return [*tokens, 0] if add_eos else tokens

    def play() -> Iterator[Document]:
        dataset = text_datasets.HuggingFaceTextDataset(
            "documents", "documents", Tokens(), seq_len=LENGTH
        )
        for inputs, _ in dataset:
            yield inputs["input"].numpy()[None]

    return play


def grain_best_fit(documents: list[Document]) -> Epoch:
    """As many rows are filled at a time as one of our windows makes; out of a list of arrays.

    It refuses longer documents, so they are cut beforehand, as ours are: into whole rows and a
    rest.
    """
    import grain

    pieces = [each[first : first + LENGTH] for each in documents for first in starts_in(each)]
    num_rows = WINDOW * sum(map(len, documents)) // (LENGTH * len(documents))
    read = grain.MapDataset.source([{"input_ids": piece} for piece in pieces]).to_iter_dataset()
    packed = grain.experimental.BestFitPackIterDataset(
        read, length_struct={"input_ids": LENGTH}, num_packing_bins=max(1, num_rows)
    )
    return partial(grain_rows, packed)


def grain_concatenate(documents: list[Document]) -> Epoch:
    """Cut where a row is full."""
    import grain

    read = grain.MapDataset.source([{"input_ids": each} for each in documents]).to_iter_dataset()
    return partial(
        grain_rows,
        grain.experimental.ConcatThenSplitIterDataset(read, length_struct={"input_ids": LENGTH}),
    )


def starts_in(document: Document) -> range:
    """Where a document is cut, if it is longer than a row."""
    return range(0, len(document), LENGTH)


def grain_rows(packed: Any) -> Iterator[Document]:
    """In batches."""
    for batch in packed.batch(ROWS):
        yield batch["input_ids"]


def transformers(documents: list[Document]) -> Epoch:
    """Batches that are one row of any length."""
    from transformers import DataCollatorWithFlattening

    table = as_table(documents)
    collate = DataCollatorWithFlattening()

    def play() -> Iterator[Document]:
        for first in range(0, len(documents), ROWS):
            chosen = table[first : first + ROWS]["input_ids"]
            yield collate([{"input_ids": ids} for ids in chosen])["input_ids"].numpy()

    return play


# ------------------------------------------------------------------------------ what is measured


def measure_plans(documents: list[Document], arguments: argparse.Namespace) -> list[Figure]:
    """Microseconds for each document."""
    lengths = np.resize(np.array(list(map(len, documents))), NUM_PLANNED[arguments.size])
    figures = []
    for how in HOWS:
        spent = []
        for seed in range(arguments.rounds):
            shuffled = np.random.default_rng(seed).permutation(lengths)
            began = time.perf_counter()
            pack_documents(shuffled, LENGTH, how=how, window=WINDOW)
            spent.append(1e6 * (time.perf_counter() - began) / len(lengths))
        case, target = f"{OURS}, {how}", PLAN_TARGET_US
        figures.append(figure("packing: a document planned", case, "us", spent, target=target))
    return figures


def measure_rows(documents: list[Document], rounds: int) -> list[Figure]:
    """Waste, and documents that are cut."""
    judged: dict[str, list[tuple[float, float]]] = {}
    for seed in range(rounds):
        order = np.random.default_rng(seed).permutation(len(documents)).tolist()
        shuffled = [documents[number] for number in order]
        for case, epoch in make_epochs(shuffled).items():
            if case in MAKES_ROWS:
                judged.setdefault(case, []).append(judge(epoch, documents))
        judged.setdefault("padded to the longest of 8", []).append(pad(shuffled))
    rows: tuple[tuple[str, tuple[float | None, ...]], ...] = (
        ("packing: waste", (WASTE_TARGET_PPM, WASTE_TARGET_PPM)),
        ("packing: documents cut", (CUT_TARGET_PPM, None)),
    )
    return [
        figure(workload, case, "ppm", [one[number] for one in found],
               target=dict(zip(OUR_CASES, targets, strict=True)).get(case))
        for number, (workload, targets) in enumerate(rows)
        for case, found in judged.items()
    ]  # fmt: skip


def judge(epoch: Epoch, documents: list[Document]) -> tuple[float, float]:
    """What is wasted, and cut."""
    lengths = np.array(list(map(len, documents)))
    delivered = padding = 0
    whole = 0
    for rows in epoch():
        filled = int(np.count_nonzero(rows))
        delivered += filled
        padding += rows.size - filled
        for row in rows:
            begins = np.flatnonzero(row >= FIRST)
            ends = np.append(begins, np.count_nonzero(row))[1:]
            whole += int((ends - begins >= lengths[row[begins] - FIRST]).sum())
    fitting = int((lengths <= LENGTH).sum())
    lost = int(lengths.sum()) - delivered
    return MILLION * (padding + lost) / lengths.sum(), MILLION * (fitting - whole) / fitting


def pad(documents: list[Document]) -> tuple[float, float]:
    """As they are batched without packing: a document a row, but for those that are longer."""
    counted = ((len(each), first) for each in documents for first in starts_in(each))
    lengths = np.array([min(LENGTH, length - first) for length, first in counted])
    batches = [lengths[first : first + ROWS] for first in range(0, len(lengths), ROWS)]
    places = sum(len(batch) * batch.max() for batch in batches)
    return MILLION * (places - lengths.sum()) / lengths.sum(), 0.0


def measure_tokens(documents: list[Document], rounds: int) -> list[Figure]:
    """Nanoseconds for each token of an epoch."""
    num_tokens = sum(map(len, documents))
    epochs = make_epochs(documents)
    spent: dict[str, list[float]] = {case: [] for case in epochs}
    for turn in range(rounds + 1):  # the first is to warm up
        for case, epoch in epochs.items():
            passed = seconds(partial(play_all, epoch))
            if turn:
                spent[case].append(1e9 * passed / num_tokens)
    return [
        figure("packing: a token", case, "ns", found,
               target=TOKEN_TARGET_NS if case.startswith(OURS) else None)
        for case, found in spent.items()
    ]  # fmt: skip


def play_all(epoch: Epoch) -> None:
    """Look at nothing."""
    for _ in epoch():
        pass


def make_epochs(documents: list[Document]) -> dict[str, Epoch]:
    """Whoever packs, with documents in one order."""
    nested = as_nested(documents)
    return {
        **{case: ours(nested, how) for case, how in zip(OUR_CASES, HOWS, strict=True)},
        **installed(OF_TABLES, documents),
    }


def ours_of_table(documents: list[Document]) -> Epoch:
    """The same source as the peers'."""
    return ours(as_table(documents), HOWS[0])


HOWS = ("best_fit", "concatenate")
OUR_CASES = tuple(f"{OURS}, {how}" for how in HOWS)
OF_TABLES = {
    f"{OURS}, best_fit, a table": ours_of_table,
    "torchtitan": torchtitan,
    "grain, best fit": grain_best_fit,
    "grain, concatenate": grain_concatenate,
    "DataCollatorWithFlattening": transformers,
}
MAKES_ROWS = (*OUR_CASES, "torchtitan", "grain, best fit", "grain, concatenate")


def measure(arguments: argparse.Namespace) -> list[Figure]:
    """All of it."""
    logging.getLogger().setLevel(logging.ERROR)  # torchtitan says when an epoch ends
    documents = read_documents(NUM_FILES[arguments.size])
    return [
        *measure_plans(documents, arguments),
        *measure_rows(documents, arguments.rounds),
        *measure_tokens(documents, arguments.rounds),
    ]


if __name__ == "__main__":
    run(measure, command_line(__doc__).parse_args())

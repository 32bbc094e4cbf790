"""Documents whose tokens tell where they are from, in sources of every kind; and packed rows."""

from __future__ import annotations

import json
from collections import Counter
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from torch.utils.data import Dataset

import torch_distinput as tdi
from tests.distribute.street import stream_of

NO_LABEL = -100
FIRST, PAD = 1000, 7
"""Document d has tokens 1000 d + 1000, 1000 d + 1001, ...; padding is less."""


class Row(NamedTuple):
    """What a row has, without padding but for its number."""

    tokens: tuple[int, ...]
    labels: tuple[int, ...]
    position_ids: tuple[int, ...]
    document_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]


def document(number, length):
    return [FIRST * (number + 1) + place for place in range(length)]


def documents(lengths):
    return [document(number, length) for number, length in enumerate(lengths)]


class Documents(Dataset):
    """Map-style, of dicts."""

    def __init__(self, texts):
        self.texts = texts

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return {"name": f"{index}", "input_ids": torch.tensor(self.texts[index], dtype=torch.int64)}


def jagged(texts):
    """A column as a nested tensor."""
    offsets = torch.tensor([0, *np.cumsum([len(text) for text in texts])])
    values = torch.tensor([token for text in texts for token in text], dtype=torch.int32)
    return {"input_ids": torch.nested.nested_tensor_from_jagged(values, offsets)}


def objects(texts):
    """A column as an array of arrays."""
    column = np.empty(len(texts), dtype=object)
    column[:] = [np.array(text, dtype=np.uint16) for text in texts]
    return {"input_ids": column}


def mixed(texts):
    """The same documents in the same order out of two sources."""
    order = [place for place in range(len(texts)) if place % 2 == 0]
    other = [place for place in range(len(texts)) if place % 2 == 1]
    parts = {"even": [texts[p] for p in order], "odd": [texts[p] for p in other]}
    if not other:
        return dicts(texts)
    sources = {"even": jagged(parts["even"]), "odd": dicts(parts["odd"])}
    return tdi.mix(sources, weights=(1, 1), stop="all")


def dicts(texts):
    """A list of examples."""
    return [{"input_ids": text} for text in texts]


MAKERS = {
    "dicts": dicts,
    "dataset": Documents,
    "jagged": jagged,
    "objects": objects,
    "mixture": mixed,
}


def rows_of(batch, tokens="input_ids"):
    """The rows of a batch."""
    columns = [batch[tokens], *(batch[name] for name in Row._fields[1:])]
    return [
        Row(*(tuple(column.tolist()) for column in row))
        for row in zip(*(column.unbind() for column in columns), strict=True)
    ]


def show(strategy, step):
    """A step as rows, for each replica."""
    return [rows_of(batch) for batch in strategy.local_results(step)]


def check_row(row, lengths, row_length):
    """Labels, positions and numbers of a row follow from its tokens."""
    assert {row_length} == set(map(len, row))
    number, place = 0, 0
    for at, token in enumerate(row.tokens):
        if token == PAD:
            place = place + 1 if at and row.tokens[at - 1] == PAD else 0
            assert (NO_LABEL, place, 0, False) == tuple(column[at] for column in row[1:])
            continue
        goes_on = at and token == row.tokens[at - 1] + 1
        number, place = (number, place + 1) if goes_on else (number + 1, 0)
        text, offset = divmod(token, FIRST)
        label = token + 1 if offset + 1 < lengths[text - 1] else NO_LABEL
        expected = (label, place, number, label != NO_LABEL)
        assert expected == tuple(column[at] for column in row[1:]), (at, row)


def check_rows(rows, lengths, row_length, *, times=1):
    """Each token of each document comes so often, and each row is sound."""
    for row in rows:
        check_row(row, lengths, row_length)
    got = Counter(token for row in rows for token in row.tokens if token != PAD)
    expected = Counter(token for text in documents(lengths) for token in text)
    assert Counter(dict.fromkeys(expected, times)) == got


lengths = st.lists(st.integers(0, 14), min_size=1, max_size=14).filter(any)
hows = st.sampled_from(["best_fit", "concatenate"])
kinds = st.sampled_from(sorted(MAKERS))


def write_documents(folder, texts, per_file=3):
    """A FileDataset of JSON lines."""
    folder.mkdir()
    for number, first in enumerate(range(0, len(texts), per_file)):
        lines = [json.dumps({"input_ids": text}) for text in texts[first : first + per_file]]
        (folder / f"{number:03}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    reader = tdi.readers.JSONL(columns={"input_ids": (torch.int64, ...)})
    return tdi.FileDataset(str(folder / "*.jsonl"), reader=reader)


STREAMS = {
    "stream": lambda folder, texts: stream_of(dicts(texts)),
    "files": write_documents,
    "mixed stream": lambda folder, texts: tdi.mix(
        {"even": stream_of(dicts(texts[::2])), "odd": dicts(texts[1::2])}
        if len(texts) > 1
        else {"even": stream_of(dicts(texts))},
        weights=(1, 1) if len(texts) > 1 else [1],
        stop="all",
    ),
}

"""Map-style datasets of Hugging Face: by columns, with the batches that rows would make."""

from __future__ import annotations

import datasets
import numpy as np
import pytest
import torch

import torch_distinput as tdi
from torch_distinput.data.batch.collate import collate_examples
from torch_distinput.data.sources.indexed import ExampleFetch
from torch_distinput.data.sources.table import TableFetch, gives_columns

COUNT = 12
COLUMNS = {
    "number": list(range(COUNT)),
    "float": [row / 2 for row in range(COUNT)],
    "flag": [row % 2 == 0 for row in range(COUNT)],
    "int32": np.arange(COUNT, dtype=np.int32),
    "text": [f"row {row}" for row in range(COUNT)],
    "bytes": [bytes([row]) for row in range(COUNT)],
    "vector": [[row, 2, 3] for row in range(COUNT)],
    "matrix": [[[row, 2], [3, 4]] for row in range(COUNT)],
    "ragged": [[row] * (row % 3) for row in range(COUNT)],
    "struct": [{"a": row, "b": [row, row]} for row in range(COUNT)],
    "missing": [None if row == 3 else row for row in range(COUNT)],
    "words": [["a", f"{row}"] for row in range(COUNT)],
}
FORMATS = ["torch", "numpy", "python", "pandas", None]
ORDERS = ([3, 1, 11, 4], [0, 1, 2, 3], [5])


def table(name, kind):
    """A dataset of one column."""
    return datasets.Dataset.from_dict({name: COLUMNS[name]}).with_format(kind)


def shown(fetch, order):
    """What a fetch gives: structure, types, shapes and values, or its error."""
    try:
        return repr(said(fetch(np.array(order))))  # in which NaN equals itself
    except (ValueError, tdi.SourceError) as error:
        return str(error)


def said(value):
    """A batch as something that can be compared."""
    if isinstance(value, dict):
        return {name: said(leaf) for name, leaf in value.items()}
    if isinstance(value, torch.Tensor):
        return "tensor", value.dtype, value.tolist()
    if isinstance(value, np.ndarray):
        return "array", value.dtype, [said(item) for item in value]
    if isinstance(value, (list, tuple)):
        return type(value), [said(item) for item in value]
    return type(value), value


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_what_rows_make(name, kind):
    """The structure, the types and the values, also those of an error."""
    dataset = table(name, kind)
    by_rows = ExampleFetch(dataset, collate_examples)
    by_columns = TableFetch(dataset)
    assert [shown(by_rows, order) for order in ORDERS] == [
        shown(by_columns, order) for order in ORDERS
    ]


@pytest.mark.parametrize("kind", FORMATS)
def test_columns_without_a_value_in_a_batch(kind):
    """Examples may have nothing in some of them."""
    nothing = {"none": [None] * COUNT, "empty": [[]] * COUNT}
    dataset = datasets.Dataset.from_dict({"number": COLUMNS["number"], **nothing})
    dataset = dataset.with_format(kind)
    by_rows = shown(ExampleFetch(dataset, collate_examples), [3, 1])
    assert by_rows == shown(TableFetch(dataset), [3, 1])
    assert "'number': ('tensor', torch.int64, [3, 1])" in by_rows


@pytest.mark.parametrize("kind", ["torch", "numpy", None])
def test_no_row_is_made(kind, monkeypatch):
    """Nor a dict for it."""
    dataset = datasets.Dataset.from_dict({"x": list(range(5)), "s": list("abcde")})
    monkeypatch.setattr(datasets.Dataset, "__getitems__", None)
    batch = TableFetch(dataset.with_format(kind))(np.array([4, 2]))
    assert ([4, 2], ["e", "c"]) == (batch["x"].tolist(), list(batch["s"]))


def test_tables_become_what_parquet_files_become():
    """Ragged columns are jagged tensors."""
    dataset = datasets.Dataset.from_dict({name: COLUMNS[name] for name in ("ragged", "text")})
    batch = TableFetch(dataset.with_format("arrow"))(np.array([4, 2]))
    assert [[4], [2, 2]] == [row.tolist() for row in batch["ragged"].unbind()]
    assert ["row 4", "row 2"] == batch["text"]
    with pytest.raises(tdi.ConfigurationError, match="1 nulls.*with_format"):
        TableFetch(table("missing", "arrow"))(np.array([2, 3]))


def test_what_is_written_to_a_batch_stays_there():
    """Arrays may lie in a file that is mapped to memory."""
    dataset = table("number", "numpy")
    fetch = TableFetch(dataset)
    fetch(np.arange(4))["number"].fill_(7)
    assert [0, 1, 2, 3] == fetch(np.arange(4))["number"].tolist()


def test_transforms_of_batches():
    """They are asked for all rows at once, and a column of another length is refused."""
    dataset = datasets.Dataset.from_dict({"x": list(range(6))})
    dataset.set_transform(lambda batch: {"y": torch.tensor(batch["x"]) * 2, "s": batch["x"]})
    batch = TableFetch(dataset)(np.array([3, 1]))
    assert ([6, 2], [3, 1]) == (batch["y"].tolist(), batch["s"].tolist())
    dataset.set_transform(lambda batch: {"y": torch.zeros(len(batch["x"]) + 1)})
    with pytest.raises(ValueError, match="3 rows for 2 examples"):
        TableFetch(dataset)(np.array([3, 1]))


class Own(datasets.Dataset):
    """Rows of a user's own."""

    def __getitem__(self, key):
        row = super().__getitem__(key)
        return {**row, "more": key} if isinstance(key, int) else row


def test_who_is_asked_by_columns():
    """A dataset in its own way; not one whose rows are its user's."""
    dataset = table("number", None)
    assert gives_columns(dataset)
    assert not gives_columns(Own(dataset.data))
    assert not gives_columns([1, 2])


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("kind", ["torch", None])
def test_every_row_once(kind, processes):
    """Through the front door, shuffled, and through a DataLoader."""
    dataset = datasets.Dataset.from_dict({"x": list(range(53))}).with_format(kind)
    one = tdi.OneDeviceStrategy("cpu")
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=processes)
    for distributed in (
        one.distribute_dataset(dataset, global_batch_size=8, shuffle=True, num_workers=processes),
        one.distribute_dataset(loader),
    ):
        rows = [row for step in distributed for row in step["x"].tolist()]
        assert list(range(53)) == sorted(rows)

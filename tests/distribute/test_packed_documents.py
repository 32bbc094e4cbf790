"""What documents may be read from, what becomes of labels and padding, and what is refused."""

from __future__ import annotations

import logging

import datasets
import numpy as np
import pytest
import torch

import torch_distinput as tdi
from tests.distribute.packings import Documents, dicts, documents, jagged, rows_of
from tests.distribute.street import one, stream_of
from torch_distinput.data.user_sources.sequences import packing

TEXTS = [[11, 12, 13], [21, 22, 23, 24], [31, 32], [41, 42, 43, 44, 45]]
PACKED = [[11, 12, 13, 31, 32], [21, 22, 23, 24, 0], [41, 42, 43, 44, 45]]


def pack(source, **keywords):
    """One batch of all rows."""
    packed = tdi.pack(source, **{"length": 5, **keywords})
    (batch,) = one().distribute_dataset(packed, global_batch_size=100)
    return batch


def test_rows_as_drawn():
    """Labels are of the next token, and cross neither a document's end nor padding."""
    batch = pack(dicts(TEXTS))
    assert PACKED == batch["input_ids"].tolist()
    assert [
        [12, 13, -100, 32, -100],
        [22, 23, 24, -100, -100],
        [42, 43, 44, 45, -100],
    ] == batch["labels"].tolist()
    assert [[0, 1, 2, 0, 1], [0, 1, 2, 3, 0], [0, 1, 2, 3, 4]] == batch["position_ids"].tolist()
    assert [[1, 1, 1, 2, 2], [1, 1, 1, 1, 0], [1] * 5] == batch["document_ids"].tolist()
    assert torch.equal(batch["labels"] != -100, batch["loss_mask"])
    assert ["int64", "int64", "int64", "int32", "bool"] == [
        str(leaf.dtype).removeprefix("torch.") for leaf in batch.values()
    ]


def test_a_label_may_be_in_another_row():
    """Each token but the first of a document is the label of one, also where it is cut."""
    batch = pack(dicts(TEXTS), how="concatenate", length=4)
    assert [[11, 12, 13, 21], [22, 23, 24, 31], [32, 41, 42, 43], [44, 45, 0, 0]] == batch[
        "input_ids"
    ].tolist()
    assert [
        [12, 13, -100, 22],
        [23, 24, -100, 32],
        [-100, 42, 43, 44],
        [45, -100, -100, -100],
    ] == batch["labels"].tolist()


def test_labels_that_a_model_shifts():
    """Each token itself, but those that begin a document or a row, and padding."""
    batch = pack(dicts(TEXTS), how="concatenate", length=4, shift_labels=False, pad_id=9)
    assert [
        [-100, 12, 13, -100],
        [-100, 23, 24, -100],
        [-100, -100, 42, 43],
        [-100, 45, -100, -100],
    ] == batch["labels"].tolist()
    assert [44, 45, 9, 9] == batch["input_ids"][-1].tolist()


def test_labels_of_a_column():
    """Such as those of a prompt that is not to be learned; shifted as tokens are."""
    examples = [
        {"input_ids": text, "labels": [-100, *text[1:]], "name": "x"} for text in TEXTS
    ]
    source = [{**example, "labels": [*example["labels"][:-1], 7]} for example in examples]
    batch = pack(source, labels="labels")
    assert [12, 7, -100, 7, -100] == batch["labels"][0].tolist()
    kept = pack(examples[:1], labels="labels", shift_labels=False)
    assert [[-100, 12, 13, -100, -100]] == kept["labels"].tolist()


def rows_by_column(columns):
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


SFT = {"input_ids": TEXTS, "labels": [[-100, *text[1:]] for text in TEXTS]}
"""As data for instruction tuning is."""
WITH_LABELS = {
    "columns": lambda columns: {name: jagged(rows)["input_ids"] for name, rows in columns.items()},
    "examples": rows_by_column,
    "a stream": lambda columns: stream_of(rows_by_column(columns)),
    "a table": datasets.Dataset.from_dict,
}


@pytest.mark.parametrize("name", ["labels", "loss_mask"])
@pytest.mark.parametrize("make", WITH_LABELS.values(), ids=WITH_LABELS)
def test_labels_that_are_left_out_are_told(make, name, caplog):
    """Once; prompts are learned then."""
    source = make({"input_ids": TEXTS, name: SFT["labels"]})
    packing._warn_of_labels.cache_clear()
    for _ in range(2):
        pack(source)
    assert 1 == caplog.text.count(f"leaves out the {name!r} of its source")


@pytest.mark.parametrize("make", WITH_LABELS.values(), ids=WITH_LABELS)
def test_labels_that_are_read_are_not_told_of(make, caplog):
    packing._warn_of_labels.cache_clear()
    pack(make({**SFT, "loss_mask": TEXTS}), labels="labels")
    pack(make({"input_ids": TEXTS, "name": TEXTS}))
    assert "leaves out" not in caplog.text


def test_jagged_rows_have_no_padding():
    batch = pack(dicts(TEXTS), layout="jagged")
    assert [[11, 12, 13, 31, 32], [21, 22, 23, 24], [41, 42, 43, 44, 45]] == [
        row.tolist() for row in batch["input_ids"].unbind()
    ]
    assert [[12, 13, -100, 32, -100], [22, 23, 24, -100]] == [
        list(row.labels) for row in rows_of(batch)[:2]
    ]


def test_jagged_rows_are_cut_for_replicas():
    """As any leaf."""
    packing = tdi.pack(dicts(TEXTS), length=5, layout="jagged")
    (step,) = one(2).distribute_dataset(packing, global_batch_size=4)
    assert [[5, 4], [5]] == [part.offsets().diff().tolist() for part in step["input_ids"]]


def hugging_face(texts):
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"input_ids": texts, "name": ["x"] * len(texts)})


SOURCES = {
    "lists": (lambda: TEXTS, None),
    "bytes": (lambda: list(map(bytes, TEXTS)), None),
    "arrays": (lambda: [np.array(text, dtype=np.uint16) for text in TEXTS], None),
    "packed bytes": (
        lambda: {"text": tdi.PackedStrings.from_list(list(map(bytes, TEXTS)))},
        "text",
    ),
    "jagged": (lambda: jagged(TEXTS), "input_ids"),
    "dataset": (lambda: Documents(TEXTS), "input_ids"),
    "table": (lambda: hugging_face(TEXTS), "input_ids"),
    "torch table": (lambda: hugging_face(TEXTS).with_format("torch"), "input_ids"),
    "part of a table": (
        lambda: hugging_face([[1], *TEXTS, [2]]).select(range(1, 5)), "input_ids",
    ),
    "transformed table": (
        lambda: hugging_face(TEXTS).with_transform(
            lambda rows: {"ids": [list(row) for row in rows["input_ids"]]}
        ),
        "ids",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SOURCES)
def test_documents_of_any_source(kind):
    """The same rows out of each."""
    make, tokens = SOURCES[kind]
    batch = pack(make(), tokens=tokens)
    assert PACKED == batch[tokens or "input_ids"].tolist()


@pytest.mark.parametrize("kind", SOURCES)
def test_rows_are_read_one_by_one(kind):
    """The documents of a row, which are not all those between the first and the last."""
    make, tokens = SOURCES[kind]
    packing = tdi.pack(make(), length=5, tokens=tokens)
    batches = one().distribute_dataset(packing, global_batch_size=1)
    assert PACKED == [batch[tokens or "input_ids"][0].tolist() for batch in batches]


@pytest.mark.parametrize("make", [torch.tensor, np.array])
def test_columns_of_two_dimensions(make):
    """Documents of one length."""
    batch = pack({"input_ids": make([[1, 2], [3, 4], [5, 6]])}, length=4)
    assert [[1, 2, 3, 4], [5, 6, 0, 0]] == batch["input_ids"].tolist()


@pytest.mark.parametrize(
    "given", [[3, 4, 2, 5], "size", lambda example: len(example["input_ids"])]
)
def test_lengths_may_be_given(given):
    """Then no document is read before the first step."""
    source = [{"input_ids": text, "size": len(text)} for text in TEXTS]
    assert PACKED == pack(source, document_lengths=given)["input_ids"].tolist()


def test_a_document_that_is_read_twice_has_one_length():
    """Lengths that differ from what is read lose no token in silence."""
    words = "Expected 4 values in column 'input_ids' of document 0"
    with pytest.raises(tdi.SourceError, match=words):
        pack(dicts(TEXTS), document_lengths=[4, 4, 2, 5])


def test_labels_of_another_length_are_refused():
    source = [{"input_ids": text, "labels": text[1:]} for text in TEXTS]
    with pytest.raises(tdi.SourceError, match="3 values in column 'labels' of document 0.* got 2"):
        pack(source, labels="labels")


def test_waste_is_said(caplog):
    """When rows are planned; nothing is left out in silence."""
    with caplog.at_level(logging.INFO, logger="torch_distinput"):
        pack([*dicts(TEXTS), {"input_ids": []}, {"input_ids": [1] * 7}])
    assert "6 documents in 5 rows, 16.00 % of them padding; 1 documents are cut, 1 have" in (
        caplog.text
    )


REFUSED = {
    "no column": (dicts(TEXTS), {"tokens": "ids"}, "column 'ids', got a source with columns input"),
    "no names": (TEXTS, {}, "column 'input_ids', got a source with no names"),
    "text": ([{"input_ids": "abc"}], {}, "got a str. Turn text into tokens"),
    "floats": ([{"input_ids": [0.5]}], {}, "got values of float64"),
    "a mask": ([{"input_ids": [True]}], {}, "got values of bool"),
    "numbers": ({"input_ids": torch.arange(4)}, {}, "got a Tensor of torch.int64, shape"),
    "a number each": ([{"input_ids": 3}], {}, "got a int"),
    "rows of vectors": (
        {"input_ids": torch.nested.nested_tensor([torch.ones(2, 3)], layout=torch.jagged)}, {},
        "got a NestedTensor of torch.float32, shape",
    ),
    "float columns": ({"input_ids": torch.ones(2, 3)}, {}, "got values of float32"),
    "a long one": (
        dicts(TEXTS), {"length": 4, "long_documents": "error"},
        "at most length=4 tokens .*got 5 tokens in document 3, and 1 of 4 documents",
    ),
    "lengths of a stream": (
        stream_of(dicts(TEXTS)), {"document_lengths": [3, 4, 2, 5]}, "with an index, got them for",
    ),
    "a loader": (torch.utils.data.DataLoader(Documents(TEXTS)), {}, "makes batches of its own"),
    "lengths below 0": (dicts(TEXTS), {"document_lengths": [3, -4, 2, 5]}, "got -4 for example 1"),
    "too few lengths": (dicts(TEXTS), {"document_lengths": [3]}, "for each of 4 examples"),
    "fractions": (dicts(TEXTS), {"document_lengths": [3, 4.5, 2, 5]}, "give whole numbers from 0"),
    "a schedule in steps": (
        tdi.mix(
            {"a": TEXTS, "b": TEXTS},
            weights=tdi.schedule({0: (1, 1), 3: (1, 2)}, unit="steps"),
        ),
        {"tokens": None}, "Expected a schedule in examples",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_sources(case):
    """With what was expected, what came and what to do."""
    source, keywords, message = REFUSED[case]
    with pytest.raises(tdi.ConfigurationError, match=message):
        pack(source, **keywords)


ARGUMENTS = [
    ({"length": 0}, ValueError, "length must be at least 1, got 0"),
    ({"length": 2.5}, TypeError, "length must be a whole number"),
    ({"window": 0}, ValueError, "window must be at least 1"),
    ({"how": "greedy"}, ValueError, "how to be 'best_fit' or 'concatenate', got 'greedy'"),
    ({"long_documents": "drop"}, ValueError, "long_documents to be 'split' or 'error'"),
    ({"layout": "flat"}, ValueError, "layout to be 'dense' or 'jagged'"),
    ({"tokens": "labels"}, ValueError, "Rename the column"),
    ({"tokens": 3}, TypeError, "name of a column or None, got 3"),
    ({"labels": "input_ids"}, ValueError, "labels in a column beside"),
    ({"tokens": None, "labels": "labels"}, ValueError, "labels in a column beside"),
    ({"shift_labels": 1}, TypeError, "shift_labels must be True or False"),
    ({"pad_id": "x"}, TypeError, "pad_id must be a whole number"),
]


@pytest.mark.parametrize(("keywords", "error", "message"), ARGUMENTS)
def test_refused_arguments(keywords, error, message):
    with pytest.raises(error, match=message):
        tdi.pack(TEXTS, **{"length": 5, **keywords})


PACK = tdi.pack(documents([3]), length=2, tokens=None)
BUCKET = tdi.bucket(documents([3]), length=len, boundaries=(2,))


@pytest.mark.parametrize("source", [PACK, tdi.mix({"a": PACK}, weights=[1]), BUCKET])
def test_rows_are_packed_once(source):
    with pytest.raises(tdi.ConfigurationError, match="Pack the documents themselves, once"):
        pack(source)


def test_a_batch_size_is_needed():
    """In rows."""
    with pytest.raises(tdi.ConfigurationError, match=r"global_batch_size for pack\(list, "):
        one().distribute_dataset(tdi.pack(TEXTS, length=4, tokens=None))

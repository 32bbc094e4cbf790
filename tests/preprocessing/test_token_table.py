"""The table that strings are found in: with its directory, and without."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_distinput import preprocessing as tp
from torch_distinput.preprocessing.vocabulary.sorted_table import (
    NOT_FOUND,
    SortedTable,
    build_directory,
)

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
ENDS = torch.tensor([LOWEST, LOWEST + 1, -1, 0, 1, HIGHEST - 1, HIGHEST])
anything = st.integers(LOWEST, HIGHEST)
in_a_heap = st.integers(-50, 50)


def spread(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(LOWEST, HIGHEST, (count,), generator=generator).unique()


def neighbours(keys: torch.Tensor) -> torch.Tensor:
    """What may be wanted: keys, what is beside them, and the ends of all numbers."""
    return torch.cat([keys, keys - 1, keys + 1, ENDS])


@given(st.sets(anything | in_a_heap, min_size=1))
def test_a_directory_says_what_searchsorted_says(chosen):
    keys = torch.tensor(sorted(chosen))
    directory = build_directory(keys)

    wanted = neighbours(keys)

    if directory is not None:
        assert torch.equal(torch.searchsorted(keys, wanted), directory.search(keys, wanted))


@pytest.mark.parametrize("count", [1, 7, 100, 4096, 300_000])
def test_hashes_have_a_directory_of_few_steps(count):
    keys = spread(count)
    directory = build_directory(keys)

    assert directory is not None
    assert directory.num_steps <= 4
    wanted = neighbours(keys)
    assert torch.equal(torch.searchsorted(keys, wanted), directory.search(keys, wanted))


def test_keys_in_one_place_do_without():
    assert build_directory(torch.arange(100)) is None


@pytest.mark.parametrize("shape", [(6,), (2, 3), (), (0,), (3, 0)])
def test_places_have_the_shape_of_what_is_wanted(shape):
    keys = spread(50)
    table = SortedTable(keys, torch.arange(50).flip(0), 0, build_directory(keys))
    wanted = keys[: torch.Size(shape).numel()].reshape(shape)

    assert torch.equal(table._replace(directory=None).find(wanted), table.find(wanted))
    assert torch.equal(table.find(wanted + 1), torch.full(shape, NOT_FOUND))


MASK = "[MASK]"
TOKENS = [f"token {number}" for number in range(500)]


@pytest.mark.parametrize(
    "values",
    [
        TOKENS,
        [*TOKENS[::-1], "none of them", "", "nor this"],
        ["token 1", MASK, None, "token 2", "x"],
        [["token 1", "x"], ["y", None]],
        np.array(TOKENS[:9]),
        np.array(["token 1", None, "x"], dtype=object),
        [b"token 1", "token 1", b"x", b"\xff"],
        [(), ()],
        [("token 1", "x"), ("token 2", MASK)],
        "token 3",
        [],
    ],
    ids=repr,
)
@pytest.mark.parametrize("num_oov_indices", [1, 3])
def test_host_strings_and_packed_ones_have_the_same_indices(values, num_oov_indices):
    layer = tp.StringLookup(
        vocabulary=TOKENS, num_oov_indices=num_oov_indices, mask_token=MASK, missing="oov"
    )

    assert torch.equal(layer(tp.pack_strings(values)), layer(values))


@pytest.mark.parametrize(
    ("values", "error", "told"),
    [
        (["token 1", 2], TypeError, "Expected strings, got 2 of type int"),
        (["token 1", ["token 2"]], ValueError, "lists of equal lengths"),
        (["token 1", ("token 2",)], ValueError, "lists of equal lengths"),
        (["token 1", None], ValueError, "got None 1 times in 2 strings"),
    ],
)
def test_lists_of_something_else_are_refused(values, error, told):
    with pytest.raises(error, match=told):
        tp.StringLookup(vocabulary=TOKENS)(values)


def test_looking_up_leaves_the_callers_list_alone():
    values = ["token 1", None, b"token 2", "x"]

    tp.StringLookup(vocabulary=TOKENS, missing="oov")(values)

    assert values == ["token 1", None, b"token 2", "x"]

"""check_reader: what it takes for the same records, and what not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from torch_distinput.readers import Reader
from torch_distinput.testing import check_reader

NUMBERS = ["nan", "0", "1", "2"]
FORMS = {
    "numbers": lambda values: values,
    "numbers without NaN": lambda values: np.nan_to_num(values).tolist(),
    "rows of an array": lambda values: np.array(values)[:, None],
    "rows without NaN": lambda values: np.nan_to_num(values)[:, None],
    "columns": lambda values: {"x": np.array(values)[:, None]},
    "a tensor": torch.tensor,
}
ODD = {
    "numbers": lambda values: [0.0, *values[1:]],
    "numbers without NaN": lambda values: np.nan_to_num(values).astype(int).tolist(),
    "rows without NaN": lambda values: np.nan_to_num(values).astype(np.float32)[:, None],
    "a tensor": lambda values: torch.tensor(values).nan_to_num(),
}
"""What they are instead."""


@dataclass(frozen=True)
class FromBytes(Reader):
    """Numbers, which every second time may be others."""

    form: str
    changes: bool = False

    def read(self, file, part):
        with file.open() as opened:
            values = [float(NUMBERS[byte % 4]) for byte in opened.read()]
        reads.append(part)
        forms = ODD if self.changes and not len(reads) % 2 else FORMS
        yield forms[self.form](values)


reads: list = []


@pytest.fixture
def path(tmp_path):
    reads.clear()
    written = tmp_path / "a.bin"
    written.write_bytes(bytes(range(8)))
    return str(written)


@pytest.mark.parametrize("form", FORMS)
def test_nan_is_the_same_as_itself(path, form) -> None:
    assert 8 == len(check_reader(FromBytes(form), path, num_records=8))


@pytest.mark.parametrize("form", ODD)
def test_records_that_change_are_found(path, form) -> None:
    with pytest.raises(AssertionError, match="to be the same when read alone"):
        check_reader(FromBytes(form, changes=True), path, num_records=8)

"""A reader for the tests: numbers of four bytes, with everything a reader may offer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from torch_distinput.data.formats.reader import Part, Reader

WIDTH = 4
BAD = 2**32 - 1


@dataclass(frozen=True)
class Numbers(Reader):
    """Files of unsigned integers; the largest one is a bad record."""

    counted: bool = False
    addressable: bool = False
    records_per_part: int = 3
    records_per_chunk: int = 2
    late: bool = False

    def parts(self, file):
        """A few records each."""
        if file.size is None:
            return [Part()]
        records = file.size // WIDTH
        known = self.counted or self.addressable
        return [
            Part(
                start=start, stop=min(records, start + self.records_per_part), first_record=start,
                num_records=min(records, start + self.records_per_part) - start if known else None,
            )
            for start in range(0, records, self.records_per_part)
        ]  # fmt: skip

    def read(self, file, part):
        """Positions count records."""
        with file.open() as opened:
            if part.start:
                opened.seek(part.start * WIDTH)
            left = -1 if part.stop is None else part.stop - part.start
            while left:
                wanted = self.records_per_chunk if left < 0 else min(left, self.records_per_chunk)
                content = opened.read(wanted * WIDTH)
                if not content:
                    return
                left -= len(content) // WIDTH
                values = np.frombuffer(content, dtype="<u4").astype(np.int64)
                yield torch.from_numpy(values) if self.late else self._checked(values)

    def decode(self, records):
        """Refuse bad ones."""
        return self._checked(records.numpy()) if self.late else records

    def _checked(self, values):
        if (values == BAD).any():
            msg = "the largest number"
            raise ValueError(msg)
        return torch.from_numpy(values)


def write_numbers(folder, files):
    """Write lists of integers as files, and return the glob that finds them in order."""
    for number, values in enumerate(files):
        (folder / f"n{number:04}.bin").write_bytes(np.array(values, dtype="<u4").tobytes())
    return str(folder / "n*.bin")

"""Whole numbers of all examples, lengths or costs: measured when they are first asked for."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from torch_distinput.data.sources.sequences.lengths import digest_lengths, measure_examples
from torch_distinput.data.user_sources.epochs import AtEpoch
from torch_distinput.data.user_sources.sequences.length import Length
from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.assignment.permutation import Indices
from torch_distinput.random_generators import seeded_generators


@final
class KnownLengths:
    """The lengths of all examples of a source with an index, or what they cost."""

    def __init__(
        self,
        length: Length,
        fetch: Any,
        num_indices: int | None,
        dataset: Any,
        *,
        name: str,
    ) -> None:
        """Measure nothing yet.

        Args:
            length: of an example.
            fetch: the source's.
            num_indices: that it answers for; None where only its sampler knows.
            dataset: the user's, which is told that it is read in epoch 0.
            name: of the argument, for messages.
        """
        self._length = length
        self._fetch = fetch
        self._num_indices = num_indices
        self._dataset = dataset
        self._name = name
        self._lengths: Indices | None = None
        self._digest = ""

    def read(self) -> Indices:
        """Return the length of each index; of a dataset that is told epochs that in epoch 0.

        They hold for all epochs, whichever is played first: after a resume they must be the same.
        Random generators are as they were afterwards, and the same on all ranks meanwhile.

        Raises:
            ConfigurationError: a ValueError; see :func:`measure_examples`.
            SourceError: the source, or the function, raised.
        """
        if self._lengths is None:
            self._lengths = self._measure()
        return self._lengths

    def digest(self) -> str:
        """Name them: on all ranks they must be the same, and after a resume."""
        self._digest = self._digest or digest_lengths(self.read())
        return self._digest

    def _measure(self) -> Indices:
        length, num_indices, name = self._length, self._num_indices, self._name
        is_array = not (callable(length) or isinstance(length, str))
        if num_indices is None:
            if not is_array:
                msg = (
                    "Expected a dataset with a len(), whose examples are measured for the token "
                    "budget, got one without. Pass their lengths as an array."
                )
                raise ConfigurationError(msg)
            assert not isinstance(length, str), "an array"
            num_indices = len(np.asarray(length))
        if is_array:
            return measure_examples(length, self._fetch, num_indices, name=name)
        with AtEpoch(self._dataset, 0), seeded_generators():
            return measure_examples(length, self._fetch, num_indices, name=name)

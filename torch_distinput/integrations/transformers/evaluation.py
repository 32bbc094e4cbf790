"""Evaluation of each example once, though the batches of the processes differ in size.

Trainer gathers tensors that must have as many rows on all processes, and repeats each loss for a
whole batch. Here rows are filled up before they are gathered, and taken out afterwards:

    process 0    a b c         filled    a b c    gathered    a b c d - -    kept    a b c d
    process 1    d                       d - -
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch
from accelerate import Accelerator
from accelerate.utils import recursively_apply

import torch_distinput as tdi
from torch_distinput.integrations.accelerate import DistributedLoader
from torch_distinput.integrations.transformers.means import CURE
from torch_distinput.integrations.transformers.stand_in import StandIn


@final
class _Evaluated:
    """As long as the examples that were evaluated, which Trainer asks afterwards."""

    def __init__(self, num_examples: int) -> None:
        self.num_examples = num_examples

    def __len__(self) -> int:
        return self.num_examples


@final
class EvaluationLoader:
    """What ``get_eval_dataloader`` and ``get_test_dataloader`` return: this process's batches.

    Each ``iter()`` plays the dataset from its beginning, as epoch 0.

    Attributes:
        dataset: knows how many examples there were.
        stand_in: for this process where it has no rows.
        gathers_loss: Trainer will gather the loss of the step in use next, and then its rows.
    """

    def __init__(
        self, dataset: tdi.DistributedDataset, accelerator: Accelerator, num_examples: int | None
    ) -> None:
        self.dataset = _Evaluated(num_examples or 0)
        self.stand_in = StandIn()
        self.gathers_loss = False
        self._loader = DistributedLoader(dataset, accelerator, cure=CURE)

    def __len__(self) -> int:
        """Steps of the dataset."""
        return len(self._loader)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        self._loader.set_epoch(0)
        self.dataset.num_examples = 0
        self.stand_in = StandIn()
        for batch in self._loader:
            self.dataset.num_examples += self.step.num_examples
            yield batch

    @property
    def step(self) -> tdi.Step:
        """The step in use."""
        return self._loader.step

    @property
    def num_rows(self) -> int:
        """Examples of the step in use on this process."""
        return sum(self.step.local_counts)


@final
class RowGatherer:
    """Gathers the rows of the step in use, as Trainer's ``gather_function``."""

    def __init__(self, loader: EvaluationLoader, accelerator: Accelerator) -> None:
        self._loader = loader
        self._accelerator = accelerator
        self._step: tdi.Step | None = None
        self._own_rows = self._most_rows = 0
        self._real: torch.Tensor | None = None

    def __call__(self, rows: Any) -> Any:
        """The rows of all processes, those of the first one first; any nest of tensors."""
        if self._step is not self._loader.step:
            self._count(self._loader.step)
        is_loss, self._loader.gathers_loss = self._loader.gathers_loss, False
        if is_loss and isinstance(rows, torch.Tensor) and rows.ndim == 1:
            rows = rows[:1].expand(self._own_rows)  # it comes repeated for a whole batch
        return recursively_apply(self._gather, rows, error_on_other_type=True)

    def _count(self, step: tdi.Step) -> None:
        """Ask all processes for their rows, once a step."""
        self._step, self._own_rows = step, self._loader.num_rows
        device = self._accelerator.device
        counts = self._accelerator.gather(torch.tensor([self._own_rows], device=device))
        self._most_rows = int(counts.max())
        places = torch.arange(self._most_rows, device=device)
        self._real = (places < counts[:, None]).flatten()

    def _gather(self, tensor: torch.Tensor) -> torch.Tensor:
        expected, shape = self._own_rows, tuple(tensor.shape)
        if expected and shape[:1] != (expected,):  # without rows it is a stand-in's
            msg = (
                f"Expected {expected} rows, one for each example of the batch, got a tensor of "
                f"shape {shape}. Let the model return a row for each example, and nothing else."
            )
            raise ValueError(msg)
        own = tensor[:expected]
        missing = own.new_zeros((self._most_rows - len(own), *own.shape[1:]))
        gathered: torch.Tensor = self._accelerator.gather(torch.cat([own, missing]))
        return gathered[self._real.to(gathered.device)] if self._real is not None else gathered

"""An epoch whose steps are values of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, final

from torch_distinput.errors import UsageError
from torch_distinput.values import Distributed

if TYPE_CHECKING:
    from torch_distinput.distribute.reports.run_report import RunReport
    from torch_distinput.distribute.steps.step import Step
    from torch_distinput.values import InputStats


@final
class DistributedSteps(Distributed, Iterator["Step"]):
    """The run that :meth:`DistributedDataset.steps` returns.

    ``iter(dataset)`` is called when the first step is asked for.
    """

    def __init__(self, dataset: Iterable[Any]) -> None:
        """Called by the dataset, or by what shows its progress."""
        self._dataset = dataset
        self._iterator: Any = None
        self._cure: str | None = None  # how losses are averaged, where an integration plays it

    def __iter__(self) -> DistributedSteps:
        """Return itself; says so if all steps were delivered."""
        if self._iterator is not None:
            iter(self._iterator)
        return self

    def __next__(self) -> Step:
        """Return the next step. Raises what ``next()`` of ``iter(dataset)`` raises."""
        if self._iterator is None:
            try:
                self._iterator = iter(iter(self._dataset))  # the second is for the loop over this
            except StopIteration as error:  # of user code; raised from here it would be the end
                msg = "Expected iter() of the dataset to begin, got StopIteration. Catch it there."
                raise RuntimeError(msg) from error
            if self._cure is not None:
                self._iterator._loss_steps.cure = self._cure  # noqa: SLF001 - the iterator's own
        step: Step = self._iterator._next_step()  # noqa: SLF001 - the iterator's own
        return step

    def stats(self) -> InputStats:
        """What :meth:`DistributedIterator.stats` says: counters since the first step.

        Raises:
            UsageError: before the first step.
        """
        stats: InputStats = self._begun("stats()").stats()
        return stats

    def report(self) -> RunReport:
        """What :meth:`DistributedIterator.report` says: where the time of this rank's steps went.

        Raises:
            UsageError: before the first step; without ``InputOptions(trace=...)``.
        """
        report: RunReport = self._begun("report()").report()
        return report

    def close(self) -> None:
        """Close the iterator, if the first step has been asked for; further steps raise."""
        if self._iterator is not None:
            self._iterator.close()

    def _begun(self, asked: str) -> Any:
        """The iterator, which there is from the first step on."""
        if self._iterator is None:
            msg = f"{asked} needs steps, but none has been asked for yet. Call it in the loop."
            raise UsageError(msg)
        return self._iterator

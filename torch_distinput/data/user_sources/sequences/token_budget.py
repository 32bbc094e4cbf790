"""A budget of tokens for a global batch, as a user writes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from torch_distinput.data.user_sources.sequences.length import Length
from torch_distinput.errors import ConfigurationError
from torch_distinput.options import check_count
from torch_distinput.plan.assignment.bounds import LARGEST_BUDGET, BatchBudget


@final
@dataclass(frozen=True, slots=True, eq=False)
class TokenBudget:
    """A global batch of as many consecutive examples as fit, for ``global_batch_size=``.

    The lengths of a batch add up to ``num_tokens`` at most, and the next example would not fit.
    What is counted are tokens of examples, not the padding that a ``collate_fn`` adds.

    >>> import torch_distinput as tdi
    >>> strategy = tdi.OneDeviceStrategy("cpu")
    >>> documents = [[1, 2, 3], [4, 5], [6], [7, 8, 9, 10]]
    >>> budget = tdi.TokenBudget(6, length=len)
    >>> dataset = strategy.distribute_dataset(documents, global_batch_size=budget, collate_fn=list)
    >>> list(dataset)
    [[[1, 2, 3], [4, 5], [6]], [[7, 8, 9, 10]]]

    Attributes:
        num_tokens: the most tokens of a global batch, over all replicas in sync.
        length: how many tokens an example has: a function of an example; the name of a column, of
            lengths or of sequences; or, for sources with an index, an array with a whole number for
            each example.
        max_length: what a longer example counts for, which your ``collate_fn`` cuts it to: here
            nothing is cut. None: each counts for its length, and one that is longer than the budget
            is an error.

    Raises:
        TypeError: if the numbers are no whole numbers, or ``length`` is none of these.
        ValueError: if they are below 1 or above 2**48, or ``max_length`` is above ``num_tokens``.
    """

    num_tokens: int
    length: Length = field(kw_only=True)
    max_length: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse what is no budget, and keep NumPy's numbers as plain ones."""
        num_tokens = check_count("num_tokens of a TokenBudget", self.num_tokens, minimum=1)
        object.__setattr__(self, "num_tokens", num_tokens)
        if num_tokens > LARGEST_BUDGET:
            msg = (
                f"TokenBudget expects at most {LARGEST_BUDGET} tokens, got {num_tokens}. Pass the "
                "number of examples of a global batch, if their lengths are not to limit it."
            )
            raise ConfigurationError(msg)
        if not (callable(self.length) or hasattr(self.length, "__len__")):
            msg = (
                "TokenBudget expects length to be a function of an example, the name of a column, "
                f"or an array of whole numbers, got {self.length!r}."
            )
            raise TypeError(msg)
        if self.max_length is None:
            return
        longest = check_count("max_length of a TokenBudget", self.max_length, minimum=1)
        object.__setattr__(self, "max_length", longest)
        if longest > num_tokens:
            msg = (
                f"TokenBudget expects max_length to be at most its {num_tokens} tokens, got "
                f"{longest}: such an example would fit into no batch. Lower it, or raise the other."
            )
            raise ConfigurationError(msg)

    def __repr__(self) -> str:
        """Show no array: it may be long."""
        length = self.length
        shown = repr(length) if isinstance(length, str) else type(length).__name__
        if callable(length):
            shown = getattr(length, "__name__", shown)
        return f"TokenBudget({self.num_tokens}, length={shown}, max_length={self.max_length})"


def size_of(budget: TokenBudget) -> BatchBudget:
    """What of it decides where batches end, once lengths are known."""
    return BatchBudget(num_tokens=budget.num_tokens, max_length=budget.max_length)


def refuse_array(budget: TokenBudget, name: str) -> None:
    """Refuse lengths by number for rows that are read in order, of a source ``name``."""
    if not (callable(budget.length) or isinstance(budget.length, str)):
        msg = (
            "Expected length= of a token budget to be a function of an example or the name of "
            f"a column for {name}, which is read in order, got an array: rows have no index "
            "to look lengths up by."
        )
        raise ConfigurationError(msg)

"""``balance=``: what it asks of a source, and the costs of examples with an index.

                          DATA: rows go to all       FILE, OFF: rows go to the
                          replicas in sync           replicas of their worker
    examples by index     costs are known before     costs are known before
    a stream              each worker finds those    each worker finds those of its own
                          of all rows of a batch     rows, step by step

Under DATA each worker deals all rows by itself. So the workers compare the costs: at the start, or
batch by batch in their votes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch_distinput.data.sources.source import (
    IndexedSource,
    ReadySource,
    Source,
    StreamSource,
)
from torch_distinput.data.user_sources.sequences.length import Length
from torch_distinput.data.user_sources.sequences.padded_cost import PaddedCost
from torch_distinput.errors import ConfigurationError
from torch_distinput.options import AutoShardPolicy, Rebatch
from torch_distinput.plan.assignment.balancing import LARGEST_COST
from torch_distinput.plan.assignment.batching import Splitter
from torch_distinput.plan.assignment.permutation import Indices
from torch_distinput.plan.progress.state import COSTS, Recipe

BALANCE = "balance"
"""The name of the argument."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Balance:
    """How the rows of a global batch are dealt.

    Attributes:
        cost: of an example.
        is_padded: whether each row of a replica costs as much as the dearest of them.
        is_bounded: whether no replica may get more rows than its share of a full batch, because
            batches are padded to that.
    """

    cost: Length
    is_padded: bool = False
    is_bounded: bool = False

    @property
    def facts(self) -> dict[str, object]:
        """What must be equal on all workers, as far as it can be told before costs are found."""
        cost, name = self.cost, "an array"
        if isinstance(cost, str):
            name = f"column {cost!r}"
        elif callable(cost):
            name = getattr(cost, "__name__", type(cost).__name__)
        return {BALANCE: f"padded, {name}" if self.is_padded else name}


def make_balance(
    cost: Length | PaddedCost | None,
    source: Source,
    splitter: Splitter,
    policy: AutoShardPolicy,
    *,
    is_bounded: bool,
) -> Balance | None:
    """What was asked for, if it was.

    Raises:
        ConfigurationError: a ValueError; such a source cannot be balanced. It names the cure.
    """
    if cost is None:
        return None
    is_padded = isinstance(cost, PaddedCost)
    own = cost.cost if isinstance(cost, PaddedCost) else cost
    balance = Balance(cost=own, is_padded=is_padded, is_bounded=is_bounded)
    _check(balance, source, splitter, policy)
    return balance


def _check(balance: Balance, source: Source, splitter: Splitter, policy: AutoShardPolicy) -> None:
    if splitter.rebatch is Rebatch.CYCLE:
        msg = (
            'Expected rebatch="split" or "even" with balance=, got "cycle", under which replicas '
            "have the same numbers of rows in all steps, whatever these cost. Choose another rule."
        )
    elif isinstance(source, ReadySource):
        msg = (
            f"Expected examples with balance=, got the ready global batches of {source.name}, "
            "whose rows are not taken apart. Pass examples and global_batch_size=, or the dataset "
            "of the DataLoader."
        )
    elif isinstance(source, IndexedSource) and source.num_examples is None:
        msg = (
            f"Expected a source that knows how many examples it has with balance=, got "
            f"{source.name} without a len(). Give the dataset a __len__."
        )
    elif isinstance(source, StreamSource) and not _is_looked_up(balance.cost):
        msg = (
            f"Expected balance= to be the name of a column or a function of an example for "
            f"{source.name}, which is read in order, got {type(balance.cost).__name__}: there is "
            "no index to look costs up by."
        )
    elif not splitter.shared and splitter.topology.replicas_per_worker == 1 < _workers(splitter):
        msg = (
            f"Expected rows that can go to any worker with balance=, got {source.name} under "
            f"AutoShardPolicy.{policy.name}: each of {_workers(splitter)} workers reads its own, "
            "and has one replica to give them to. Use "
            'InputOptions(auto_shard_policy="data"), or leave balance out.'
        )
    else:
        return
    raise ConfigurationError(msg)


def _is_looked_up(cost: Length) -> bool:
    """Whether a cost is found in an example."""
    return isinstance(cost, str) or callable(cost)


def _workers(splitter: Splitter) -> int:
    return splitter.topology.num_workers


@final
class ExampleCosts:
    """The costs of the examples of a source with an index: found once, when they are needed."""

    def __init__(self, balance: Balance, source: IndexedSource) -> None:
        """Take what tells them; an array is looked at now, as that takes no time."""
        self._prefix = "padded " if balance.is_padded else ""
        self._measured = source.find_lengths(balance.cost, name=BALANCE)
        self._found: Indices | None = None
        if not _is_looked_up(balance.cost):
            self.measure()

    @property
    def is_known(self) -> bool:
        """Whether they have been measured."""
        return self._found is not None

    def measure(self) -> Indices:
        """Return them; see :meth:`KnownLengths.read`. Costs that are too large are refused."""
        if self._found is None:
            self._found = check_costs(self._measured.read())
        return self._found

    def describe(self) -> Recipe:
        """Name them: ranks with others would deal other rows."""
        self.measure()
        return {COSTS: self._prefix + self._measured.digest()}

    def look_up(self, indices: Indices) -> Indices:
        """Return those of some examples, once they are measured."""
        assert self._found is not None, "measured when an epoch is prepared"
        try:
            return self._found[indices]
        except IndexError as error:
            msg = (
                f"Expected indices of the {len(self._found)} examples that balance= has costs of, "
                f"got {int(indices.max())} from the sampler. Let it give indices of this dataset."
            )
            raise ConfigurationError(msg) from error


def check_costs(costs: Indices) -> Indices:
    """Refuse costs whose sums would be no integers of the machine."""
    if len(costs) and int(costs.max()) > LARGEST_COST:
        worst = int(costs.argmax())
        msg = (
            f"Expected balance to give costs of at most {LARGEST_COST}, got {int(costs[worst])} "
            f"for example {worst}. Divide all costs by the same number."
        )
        raise ConfigurationError(msg)
    return costs

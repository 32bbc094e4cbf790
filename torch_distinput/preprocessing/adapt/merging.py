"""The states of all workers as one: the only file of this package in which workers meet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from torch_distinput.communicator import Communicator, named_workers
from torch_distinput.errors import MismatchError, PeerFailedError
from torch_distinput.preprocessing.adapt.protocol import Adaptive, Configured, TokenAnalyzer
from torch_distinput.preprocessing.states.token_counts import TokenCounts

_BY_OTHERS = f"{PeerFailedError.__name__}: "
"""How the failure of a worker begins that only heard of another's, without the reason."""


def check_same_layers(
    owner: Configured, layers: Mapping[str, Adaptive], workers: Communicator
) -> None:
    """Refuse, on all workers, layers that are not made alike.

    Args:
        owner: the layer that adapts, perhaps :class:`Features`.
        layers: those whose state is to be found.
        workers: all of them; each calls this.

    Raises:
        MismatchError: naming the workers that differ from worker 0, and in what.
    """
    own = [
        (name, f"{layer!r}{' with a given state' * layer.is_given}", layer.config_fingerprint())
        for name, layer in layers.items()
    ]
    own.append(("all layers together", repr(owner), owner.config_fingerprint()))
    shown = workers.gather_objects(own)
    others = [worker for worker, layers_there in enumerate(shown) if layers_there != shown[0]]
    if not others:
        return
    there = shown[others[0]]
    mine, theirs = next(pair for pair in zip(shown[0], there, strict=False) if pair[0] != pair[1])
    msg = (
        f"Expected the same layers on all workers, but {named_workers(others)} "
        f"{'differs' if len(others) == 1 else 'differ'} from worker 0: worker 0 has "
        f"{_show(mine)}, worker {others[0]} has {_show(theirs)}. Make layers from the same "
        "arguments on all workers."
    )
    raise MismatchError(msg)


def _show(layer: tuple[str, str, str]) -> str:
    return f"{layer[0]}{' = ' if layer[0] else ''}{layer[1]}"


@contextmanager
def fail_together(workers: Communicator, what: str) -> Iterator[None]:
    """Do something on all workers, and wait for all of them; an error on one is one on all.

    Args:
        workers: all of them; each comes here.
        what: they are doing.

    Raises:
        PeerFailedError: another worker's failure; its own is raised as it is.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:  # noqa: BLE001 - raised below, where all workers have met
        failure = error
    failures = workers.gather_objects(failure and f"{type(failure).__name__}: {failure}")
    failed = [worker for worker, text in enumerate(failures) if text is not None]
    causes = [worker for worker in failed if not failures[worker].startswith(_BY_OTHERS)]
    if failure is not None and not (causes and isinstance(failure, PeerFailedError)):
        raise failure
    failed = causes or failed
    if failed:
        who = named_workers(failed).replace("worker", "Worker", 1)
        msg = f"{who} failed to {what}: {failures[failed[0]]}"
        raise PeerFailedError(msg) from failure


def check_same_data(fingerprint: int, workers: Communicator) -> None:
    """Refuse, on all workers, rows of their own: the fingerprint is that of the data.

    Raises:
        MismatchError: naming the workers that passed other rows than worker 0.
    """
    found = workers.gather_objects(fingerprint)
    others = [worker for worker, there in enumerate(found) if there != found[0]]
    if others:
        msg = (
            f"Expected the same data on all workers, of which each reads its part; but "
            f"{named_workers(others)} passed other rows than worker 0, or rows that change each "
            "time they are read. Pass all the data on each, or parts of their own by "
            "strategy.distribute_datasets_from_function."
        )
        raise MismatchError(msg)


def merge_across(
    states: Mapping[str, Any], layers: Mapping[str, Adaptive], workers: Communicator
) -> dict[str, Any]:
    """Merge each layer's states of all workers; the result is the same on each."""
    if workers.size == 1:
        return dict(states)
    return {
        name: _merge_counts(state, cast(TokenAnalyzer, layers[name].analyzer), workers)
        if isinstance(state, TokenCounts)
        else _merge(type(state), workers.gather_objects(state.to_arrays()))
        for name, state in states.items()
    }


def _merge(kind: type, parts: Iterable[Mapping[str, Any]]) -> Any:
    first, *others = (kind.from_arrays(part) for part in parts)  # type: ignore[attr-defined]
    for other in others:
        first.merge(other)
    return first


def _merge_counts(own: TokenCounts, analyzer: TokenAnalyzer, workers: Communicator) -> TokenCounts:
    """Merge counts by owner: each worker sums up the tokens of one part of all hashes.

    So it holds its part of the vocabulary only, until the most frequent tokens of all are known.
    """
    parts = [part.to_arrays() for part in own.partition(workers.size)]
    owned = _merge(TokenCounts, workers.deal_objects(parts))
    tops = workers.gather_objects(analyzer.trim(owned).to_arrays())
    return _merge(TokenCounts, tops)  # type: ignore[no-any-return]

"""Every error of our own, drawn as a tree by who must act.

    DistinputError
      ConfigurationError (ValueError)      you: what was written cannot work
        TooFewFilesError                   FILE has fewer files or shards than workers
      UsageError (RuntimeError)            you: a call at the wrong time or in the wrong place
      MismatchError (RuntimeError)         the ranks: they do not run the same thing
      PeerFailedError (RuntimeError)       another rank: it raised, died or left
      PeerTimeoutError (RuntimeError)      another rank: it did not answer in time
      SourceError (RuntimeError)           the data: the source raised while it was read
      AuditError (RuntimeError)            the data: an epoch was not delivered as it should be
      ClosureCancelledError (RuntimeError) a closure before it: it failed, and this one was not run
      WorkerLostError (RuntimeError)       a worker of a coordinator: it died, and no other helps
      ServerLostError (RuntimeError)       a parameter server: it died, and what it held is gone

Plain ``ValueError`` and ``TypeError`` are raised for single arguments that are wrong by themselves.
A message has three parts: what was expected, what came (with numbers), what to do. A note below it
(Python 3.11 and later print it with the traceback) names the section that explains it.
"""

from __future__ import annotations

import copy
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

E = TypeVar("E", bound=BaseException)


class DistinputError(Exception):
    """The root of all errors that torch_distinput defines."""

    explained_in: ClassVar[str | None] = None

    def __init__(self, *args: object) -> None:
        """Note where errors of this class are explained."""
        super().__init__(*args)
        if self.explained_in is not None:
            refer(self, self.explained_in)


def refer(error: E, section: str) -> E:
    """Note with an error which section of the documentation explains it: a page and its anchor.

    It replaces an earlier note of ours, and is no part of the text: a peer quotes what was said,
    and tests compare it.
    """
    error.__notes__ = [f"See {section}"]
    return error


class ConfigurationError(DistinputError, ValueError):
    """Arguments, data and cluster that cannot work together; raised before the first step."""


class TooFewFilesError(ConfigurationError):
    """``AutoShardPolicy.FILE`` has fewer files or shards than workers; raised on every rank."""

    explained_in = "docs/errors.md#fewer-files-than-workers"


class UsageError(DistinputError, RuntimeError):
    """A call at the wrong time or in the wrong place, such as ``next`` inside ``Strategy.run``."""


class MismatchError(DistinputError, RuntimeError):
    """The ranks do not run the same thing; the message names ranks, dataset and difference."""

    explained_in = "docs/errors.md#the-ranks-differ"


class PeerFailedError(DistinputError, RuntimeError):
    """Another rank raised, died or left its loop; the message has its rank and its words."""

    explained_in = "docs/errors.md#one-rank-fails"


class PeerTimeoutError(DistinputError, RuntimeError):
    """Another rank did not answer within ``InputOptions.timeout`` seconds.

    Attributes:
        workers: the workers that did not answer, where they are known.
    """

    explained_in = "docs/errors.md#a-rank-is-late-stopped-or-gone"

    def __init__(self, message: str, workers: tuple[int, ...] = ()) -> None:
        """Keep the workers beside the message."""
        super().__init__(message)
        self.workers = workers


class SourceError(DistinputError, RuntimeError):
    """The source raised while this rank read it; the original error is the ``__cause__``.

    Raised on the rank that read; its peers get a :class:`PeerFailedError` with the same words.
    """

    explained_in = "docs/errors.md#one-rank-fails"


class AuditError(DistinputError, RuntimeError):
    """``InputOptions(audit=True)``: an epoch was not delivered as it should be; on all ranks.

    Examples were lost or came twice, or a worker read another stream than the others.
    """

    explained_in = "docs/checkpoints.md#auditing-an-epoch"


class ClosureCancelledError(DistinputError, RuntimeError):
    """The value of a closure that was never run, because one before it failed."""

    explained_in = "docs/parameter-servers.md#closures"


class WorkerLostError(DistinputError, RuntimeError):
    """A worker process died, and starting it again does not help.

    A closure has killed its worker each time it was tried, no worker can be started any more, or
    the value asked for was in the process that died. The message has the history.
    """

    explained_in = "docs/parameter-servers.md#when-a-process-dies"


class ServerLostError(DistinputError, RuntimeError):
    """A parameter server died, and the parameters it held with it: restore from a checkpoint."""

    explained_in = "docs/parameter-servers.md#when-a-process-dies"


PEER_ERRORS = (PeerFailedError, PeerTimeoutError)
"""Errors that are about another rank: what happened there comes first."""


def make_system_error(what: str, needs: str, cure: str) -> ConfigurationError:
    """For what this operating system has not.

    Args:
        what: was asked for.
        needs: what it takes.
        cure: what to do here instead.
    """
    msg = f"Expected a system with {needs} for {what}, got {sys.platform}. {cure}"
    return ConfigurationError(msg)


def again(error: BaseException) -> BaseException:
    """The same error, to be raised another time: without the frames that keep the first."""
    same = _copy(error)
    if same is None:  # by identity: an error of the user's may have a length, and be empty
        same = UsageError(f"This ended with {type(error).__name__}: {error}")
    same.__cause__ = error.__cause__
    return same


def _copy(error: BaseException) -> BaseException | None:
    """An error of that text; None where a class of the user's allows none."""
    makes: tuple[Callable[[], BaseException], ...] = (
        lambda: copy.copy(error),
        lambda: rebuild(*parts_of_error(error)),
    )
    for make in makes:
        with suppress(Exception):
            if str(same := make()) == str(error):
                return same
    return None


def parts_of_error(
    error: BaseException,
) -> tuple[type[BaseException], tuple[Any, ...], Mapping[str, Any]]:
    """What :func:`rebuild` takes."""
    return type(error), error.__reduce__()[1], vars(error)  # type: ignore[return-value]


def rebuild(
    kind: type[BaseException], args: tuple[Any, ...], attributes: Mapping[str, Any]
) -> BaseException:
    """Make an error again without its ``__init__``, which may take something else than its args.

    Copying and unpickling call it, so that ``super().__init__(f"no {name}")`` would be said twice.
    """
    same = kind.__new__(kind, *args)
    of_python = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    of_python.__init__(same, *args)  # type: ignore[misc]  # an OSError has its file from there
    same.__dict__.update(attributes)
    return same


def let_go(error: BaseException) -> None:
    """Clear the frames of an error that is kept: they would keep loaders and batches alive.

    Its text, and that of the errors it came from, still shows their lines.
    """
    seen: set[int] = set()
    found: list[BaseException | None] = [error]
    while found:
        one = found.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            found += one.__cause__, one.__context__

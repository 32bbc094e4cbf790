"""The end of a scope: what was made inside must be the same on all workers, or is made so.

It is known by its fingerprint and its state only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch_distinput.communicator import Communicator, exchange, named_workers
from torch_distinput.distribute.session import Session
from torch_distinput.errors import MismatchError, PeerFailedError
from torch_distinput.options import TIMEOUT
from torch_distinput.scope_registry import Fingerprinted


def compare(made: Sequence[Fingerprinted], session: Session, *, replicate: bool) -> None:
    """Compare what each worker has made, in the order it was made.

    Args:
        made: on this worker.
        session: of the workers, each of which calls this.
        replicate: give all workers worker 0's state before.

    Raises:
        MismatchError: on all workers, naming those that differ from worker 0, and in what.
        PeerFailedError: a worker is gone.
        PeerTimeoutError: a worker did not come; perhaps it has made nothing.
    """
    workers, heartbeat = session.communicator, session.heartbeat
    topic = f"scope {next(session.scopes)}"
    heartbeat.start(TIMEOUT)
    gone = partial(heartbeat.peers.gone, TIMEOUT)
    show = partial(exchange, workers, timeout=TIMEOUT, gone=gone)
    kinds = json.dumps([type(thing).__name__ for thing in made])
    shown = show(f"{topic}, what was made", kinds)
    _check_alike([json.loads(text) for text in shown], "made")
    refusals = _replicate(made, workers) if replicate else [""] * len(made)
    fingerprints = json.dumps(
        [
            [repr(thing), thing.fingerprint(), refusal]
            for thing, refusal in zip(made, refusals, strict=True)
        ]
    )
    shown = show(f"{topic}, state", fingerprints)
    _check_alike([json.loads(text) for text in shown], "has")


def _replicate(made: Sequence[Fingerprinted], workers: Communicator) -> list[str]:
    """Give all worker 0's states; return why a thing cannot take its own, or nothing.

    It is told to all afterwards: a worker that raised here would leave the others waiting.
    """
    own: Any = None
    try:
        if workers.rank == 0:
            own = [{name: x.cpu() for name, x in thing.state_dict().items()} for thing in made]
    except Exception as error:
        workers.gather_objects(f"{type(error).__name__}: {error}")  # the others wait for it
        raise
    states = workers.gather_objects(own)[0]
    if isinstance(states, str):
        msg = f"Expected the states of worker 0's layers, but it failed: {states}"
        raise PeerFailedError(msg)
    if not workers.rank:
        return [""] * len(made)
    return [_refusal(thing, state) for thing, state in zip(made, states, strict=True)]


def _refusal(thing: Fingerprinted, state: dict[str, Any]) -> str:
    try:
        thing.load_state_dict(state)
    except Exception as error:  # noqa: BLE001 - raised by all workers
        return str(error)
    return ""


def _check_alike(shown: Sequence[Sequence[object]], verb: str) -> None:
    differing = [worker for worker, things in enumerate(shown) if things != shown[0]]
    if not differing:
        return
    theirs, other = shown[differing[0]], differing[0]
    place = next(
        (i for i, (a, b) in enumerate(zip(shown[0], theirs, strict=False)) if a != b),
        min(len(shown[0]), len(theirs)),
    )
    verb_of = "differs" if len(differing) == 1 else "differ"
    msg = (
        f"Expected all workers to make the same layers in a scope, but {named_workers(differing)} "
        f"{verb_of} from worker 0 in layer {place}: worker 0 {verb} {_name(shown[0], place)}, "
        f"worker {other} {verb} {_name(theirs, place)}. Give all workers the same arguments and "
        "files, adapt with strategy=, or use scope(replicate=True) to take worker 0's state."
    )
    raise MismatchError(msg)


def _name(things: Sequence[object], place: int) -> str:
    if place >= len(things):
        return "no such layer"
    thing = things[place]
    if not isinstance(thing, list):
        return str(thing)
    shown, fingerprint, refusal = thing
    why = f" (which cannot take worker 0's state: {refusal})" if refusal else ""
    return f"{shown} with fingerprint {fingerprint[:12]}{why}"

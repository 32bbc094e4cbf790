"""Showing values to the other workers inside of an iteration, before its first step."""

from __future__ import annotations

import json
from typing import Any

from torch_distinput.cluster.liveness.heartbeat import Heartbeat
from torch_distinput.communicator import Communicator, exchange, named_workers
from torch_distinput.errors import PeerTimeoutError


class Exchange:
    """Shows plain values as often as it is called, which all workers do alike."""

    def __init__(
        self,
        communicator: Communicator,
        heartbeat: Heartbeat,
        topic: str,
        *,
        name: str,
        timeout: float,
    ) -> None:
        """Take the way to the others in the iteration ``topic`` of the dataset ``name``."""
        self._communicator = communicator
        self._heartbeat = heartbeat
        self._topic = topic
        self._name = name
        self._timeout = timeout
        self._num_calls = 0

    def __call__(self, value: Any) -> list[Any]:
        """Return what each worker shows, in worker order.

        Raises:
            PeerFailedError: another worker has failed in this iteration, or is gone.
            PeerTimeoutError: another worker did not come in time.
        """
        self._num_calls += 1
        peers = self._heartbeat.peers
        try:
            texts = exchange(
                self._communicator,
                f"examples of {self._topic}, {self._num_calls}",
                json.dumps(value),
                timeout=self._timeout,
                gone=lambda: peers.gone(self._timeout) | peers.failures(self._topic),
            )
        except PeerTimeoutError as error:
            msg = (
                f"Expected the first example of {self._name} from all workers within "
                f"{self._timeout:g} s, but {named_workers(error.workers)} did not have it "
                f"({peers.describe(error.workers)}). Raise InputOptions.timeout if the dataset "
                "takes that long to start."
            )
            raise PeerTimeoutError(msg, error.workers) from error
        values = {text: json.loads(text) for text in set(texts)}
        return [values[text] for text in texts]

"""``Parameters``: what a user holds, in the coordinator's process and in the closures.

    thread            writes               reads        guarded by
    any that calls    _clients             _clients     a lock for each key

A closure gets a pickle of it, and finds in its process the one client that earlier ones have made.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, final

import torch
from torch import nn

import torch_distinput as tdi
from torch_distinput import threads
from torch_distinput.coordinator.parameters import identity
from torch_distinput.coordinator.parameters.client import Client, Connection
from torch_distinput.coordinator.parameters.description import ModuleRecipe, check_same, make_module
from torch_distinput.coordinator.parameters.fan_out import FanOut
from torch_distinput.coordinator.parameters.gate import ParameterStats
from torch_distinput.coordinator.parameters.identity import Caller
from torch_distinput.errors import ServerLostError, UsageError
from torch_distinput.random_generators import put_back_generators

_clients: dict[tuple[str, Caller], Client] = {}


@final
class Parameters:
    """Parameters of a module that live on parameter servers.

    Made by :meth:`ParameterServerStrategy.create_parameters`; pass it to closures. In each process
    there is one copy of the module, which :meth:`pull` brings up to date and returns.

    Attributes:
        pause: called around :meth:`state_dict` and :meth:`load_state_dict`; the coordinator holds
            its closures back in it.
        note_closed: called by :meth:`close`, with what processes know them by.
        check_open: called before :meth:`pull`, :meth:`push` and :meth:`stats` in the process that
            has made them; raises where the job has ended, even if servers still answer.
        check_travel: called when this is pickled; raises where it must not be.
    """

    def __init__(self, connection: Connection, client: Client | None = None) -> None:
        self._connection = connection
        self._own = client
        self.pause: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._is_closed = False
        self.note_closed: Callable[[str], object] = lambda _: None
        self.check_open: Callable[[], object] = lambda: None
        self.check_travel: Callable[[], object] = lambda: None

    def __reduce__(self) -> Any:
        self.check_travel()
        return Parameters, (self._connection,)

    def pull(self, *, device: torch.device | str | None = None) -> nn.Module:
        """Return this process's module with the values that the servers have now.

        It is the same module each time, with ``.grad`` None, and modes (``train``, ``eval``),
        dtypes and ``requires_grad`` as ``module_fn`` made them. Only what has changed since the
        last pull is sent: of an embedding with sparse gradients the changed rows, if the optimizer
        is SGD without momentum and weight decay, Adagrad without weight decay, or SparseAdam. What
        was written into the module is replaced, but for what is written through
        ``parameter.data``, which torch does not notice.

        Unless ``max_staleness`` is 0, pushes may come between two servers' answers.

        Args:
            device: where the module is to be; by default on the device of
                :func:`torch_distinput.get_strategy`, and outside of one where it is.

        Raises:
            ServerLostError: a server's process has ended.
            ConfigurationError: ``module_fn`` makes another module here than in the coordinator.
        """
        strategy = tdi.get_strategy()
        if device is None and strategy is not None:
            device = strategy.device
        self.check_open()
        return self._client().pull(None if device is None else torch.device(device))

    def push(self, gradients: Mapping[str, torch.Tensor] | None = None) -> None:
        """Apply gradients on the servers, once for each :meth:`pull`; wait until that is done.

        Each server gives the push to its own optimizer: the result is that of one optimizer in one
        process which is given the pushes in this order, with coalesced sparse gradients. A sparse
        gradient whose optimizer takes only dense ones is made dense on the server. A parameter
        without gradient is left out, as ``optimizer.step()`` leaves it out. Buffers that changed,
        as BatchNorm's, go with it: of two workers, whoever pushes last sets them.

        Args:
            gradients: by names of ``module.named_parameters()``; by default the ``.grad`` of the
                pulled module.

        Raises:
            UsageError: no pull came before, or no gradient is there.
            ConfigurationError: unknown names, other shapes or dtypes.
            ServerLostError: a server's process has ended.
        """
        self.check_open()
        self._client().push(gradients)

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"model": module.state_dict(), "optimizer": optimizer.state_dict()}``, whole.

        Both are as those of one process, between two pushes: the optimizer's is that of
        ``optimizer_fn(list(module.parameters()))``. The pulled module of this process has these
        values, too.
        """
        with self.pause():
            return self._client().state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state, of any number of servers, or of a module and its optimizer.

        Raises:
            ConfigurationError: it is of another module or optimizer.
        """
        with self.pause():
            self._client().load_state_dict(state_dict)

    def stats(self) -> ParameterStats:
        """Count pulls, pushes, and how stale the gradients were."""
        self.check_open()
        return self._client().stats()

    def close(self) -> None:
        """Let servers and workers drop them, when no closure uses them any more.

        Workers do so with their next closure. Parameters that are not closed stay until the
        strategy is. Every later call but this one raises a UsageError.

        Raises:
            UsageError: called in a closure: others may use them.
        """
        if self._own is None:
            msg = (
                "Expected parameters to be closed by the process that has created them, got a call "
                "of close() on a worker. Call it on the coordinator, after join()."
            )
            raise UsageError(msg)
        if not self._is_closed:
            self.note_closed(self._connection.key)
            with suppress(ServerLostError):
                self._own.close()
            self._is_closed = True

    def release(self, worker: str) -> None:
        """A worker's process has ended: wait for no push of it. Before it is started again."""
        self._client().release(worker)

    def _client(self) -> Client:
        if self._is_closed:
            msg = (
                "Expected open Parameters, got some that were closed: no server holds them any "
                "more. Create others, and load a state that was saved before."
            )
            raise UsageError(msg)
        return self._own if self._own is not None else _find_client(self._connection)


def release_all() -> None:
    """A closure of this process has ended: pulls without a push wait for none any more."""
    caller = identity.current_caller()
    for (_, whose), client in list(_clients.items()):
        if whose == caller:
            client.withdraw()


def drop_client(key: str) -> None:
    """These parameters were closed: let the copy of this process go."""
    for known in [known for known in list(_clients) if known[0] == key]:
        _clients.pop(known, None)


def _find_client(connection: Connection) -> Client:
    caller = identity.current_caller()
    with threads.named_lock(f"parameters {connection.key}"):
        found = _clients.get((connection.key, caller))
        if found is None:
            servers = FanOut(connection.servers)
            recipe: ModuleRecipe = servers.call(0, "register", connection.key, caller)
            # This is in the middle of a closure. Were a seed of module_fn to stay, all workers
            # would draw alike from here on; and in the closure's inference mode the parameters
            # could never be trained.
            with put_back_generators(), torch.inference_mode(False):
                module = make_module(pickle.loads(recipe.module_fn))  # noqa: S301 - our coordinator's
            check_same(recipe.description, module)
            found = _clients[connection.key, caller] = Client(connection, caller, recipe, module)
        return found

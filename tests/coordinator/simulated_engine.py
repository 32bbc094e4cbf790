"""An engine without processes: objects in this process, which die when a test says so.

A call runs in the thread that makes it, and arguments and results are pickled as on their way to
another process. A function that runs on a "worker" ends it by :func:`die`; the caller is told, and
the object is gone, as after kill -9. A function waits at a :class:`Gate`, until a test opens it or
its process is killed.

    thread      writes                          reads     guarded by
    any caller  what is there (``made``)        the same  one assignment; ``_condition`` tells
                                                          those that wait at gates
    any         arrivals at gates, open gates   the same  ``_condition``
"""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar

from torch_distinput.coordinator.engines.engine import Lent, ProcessDiedError, RemoteObject

_condition = threading.Condition()
WATCHDOG_SECONDS = 100


class Death(BaseException):
    """Ends the "process" in whose thread it is raised."""


class Here(threading.local):
    remote: SimulatedObject | None = None
    made: list[Any] | None = None


here = Here()


def die() -> None:
    """End the process that runs this."""
    raise Death


def worker_name() -> str:
    """The name of the process that runs this."""
    assert here.remote is not None
    return here.remote.name


class Gate:
    """Where functions on workers wait for a test, and a test for them. Pickled by its name."""

    known: ClassVar[dict[str, Gate]] = {}

    def __init__(self, name: str) -> None:
        self.name = name
        self.arrivals: list[str] = []
        self.is_open = False
        self.known[name] = self

    def __reduce__(self) -> Any:
        return find_gate, (self.name,)

    def open(self) -> None:
        with _condition:
            self.is_open = True
            _condition.notify_all()

    def wait(self) -> None:
        """Wait on a worker."""
        remote, made = here.remote, here.made
        assert remote is not None
        self.arrive()
        with _condition:
            until(lambda: self.is_open or remote.made is not made)
        if remote.made is not made:
            raise Death

    def arrive(self) -> None:
        """Tell a test that a worker is here, and go on."""
        with _condition:
            self.arrivals.append(worker_name())
            _condition.notify_all()

    def expect(self, number: int = 1) -> None:
        """Wait in a test until this many functions have arrived here."""
        with _condition:
            until(lambda: len(self.arrivals) >= number)


def find_gate(name: str) -> Gate:
    return Gate.known[name]


def until(is_true: Callable[[], bool]) -> None:
    assert _condition.wait_for(is_true, WATCHDOG_SECONDS), "a test hangs at a gate"


class SimulatedObject:
    """An object in a process of :class:`SimulatedEngine`. Pickled by its number."""

    known: ClassVar[list[SimulatedObject]] = []

    def __init__(
        self, engine: SimulatedEngine, name: str, make: Callable[[], Any], num_calls: int
    ) -> None:
        self.number, self.num_calls = len(self.known), num_calls
        self.known.append(self)
        self.engine = engine
        self.name = name
        self.make = pickle.dumps(make)
        self.made: list[Any] | None = []  # None: dead
        self.calls: Counter[str] = Counter()
        self.request: Any = None  # the first argument of the last call

    def __reduce__(self) -> Any:
        return find_object, (self.number,)

    def call(self, method: str, *args: Any) -> Any:
        self.calls[method] += 1
        self.request = args[0] if args else None
        self.engine.before(self, method)
        made = self.made
        if made is None:
            raise ProcessDiedError(f"{self.name}: is not there")
        outer = here.remote, here.made
        here.remote, here.made = self, made
        try:
            if not made:
                made.append(pickle.loads(self.make)())
            result = getattr(made[0], method)(*pickle.loads(pickle.dumps(args)))
            with result.opened if isinstance(result, Lent) else nullcontext(result) as value:
                result = pickle.loads(pickle.dumps(value))
            self.engine.after(self, method)
        except Death:
            self.kill()
        except Exception as error:  # noqa: BLE001
            raise pickle.loads(pickle.dumps(error)) from RuntimeError("the lines over there")
        finally:
            here.remote, here.made = outer
        if self.made is not made:
            raise ProcessDiedError(f"{self.name}: killed by signal 9")
        return result

    def kill(self) -> None:
        """As kill -9."""
        with _condition:
            self.made = None
            _condition.notify_all()


def find_object(number: int) -> SimulatedObject:
    return SimulatedObject.known[number]


class SimulatedEngine:
    """Starts objects in this process.

    Attributes:
        objects: by name.
        before, after: called with (object, method) around each call; they may kill it.
        on_restart: called with the object; it may raise.
    """

    def __init__(self) -> None:
        self.objects: dict[str, SimulatedObject] = {}
        self.before: Callable[[SimulatedObject, str], None] = lambda *_: None
        self.after: Callable[[SimulatedObject, str], None] = lambda *_: None
        self.on_restart: Callable[[SimulatedObject], None] = lambda _: None
        self.closed = False

    def start(
        self, name: str, make: Callable[[], Any], *, restarts: bool, num_calls: int = 16
    ) -> SimulatedObject:
        self.objects[name] = SimulatedObject(self, name, make, num_calls)
        return self.objects[name]

    def restart(self, remote: RemoteObject) -> None:
        assert isinstance(remote, SimulatedObject)
        self.on_restart(remote)
        if self.closed:
            raise ProcessDiedError(f"{remote.name}: the engine is closed")
        remote.made = []

    def close(self) -> None:
        self.closed = True
        for remote in self.objects.values():
            remote.kill()

"""Signals that ask the whole job to stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from torch_distinput.errors import UsageError
from torch_distinput.threads import is_loader_process


def handle_signal(signum: int, request: Callable[[], None]) -> None:
    """Call ``request()`` when the signal comes, and then the function that handled it before.

    Not the one that raises KeyboardInterrupt: the step that it tears would be lost. In a child that
    was forked meanwhile the function before is all there is; a loader process of ours goes on until
    its parent ends it, since a signal may be sent to both.
    """
    if threading.current_thread() is not threading.main_thread():
        msg = (
            "stop_on_signal must be called in the main thread, as signal.signal must, but was "
            f"called in {threading.current_thread().name!r}. Call request_stop() there instead."
        )
        raise UsageError(msg)
    before, process = signal.getsignal(signum), os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:
            if not is_loader_process():
                signal.signal(number, before or signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        request()
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)

    signal.signal(signum, handle)

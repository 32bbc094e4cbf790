"""Ctrl-C at a line that a test chooses."""

from __future__ import annotations

import gc
import sys


def is_line(frame, event):
    """Count lines only."""
    return event == "line"


def interrupt_at(number, call, *, watches, counts=is_line, raised=KeyboardInterrupt):
    """Raise KeyboardInterrupt at the first, second, ... moment that counts under a call.

    Args:
        number: of the moment, from 1.
        call: what is called.
        watches: tells by its path whether the moments of a file are looked at.
        counts: tells which of them count, by frame and event, as of ``sys.settrace``.
        raised: what the call may raise then.

    Returns:
        Whether there were so many.
    """
    reached = 0

    def trace(frame, event, _):
        nonlocal reached
        if not watches(frame.f_code.co_filename):
            return None
        if counts(frame, event):
            reached += 1
            if reached == number:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before, was_collecting = sys.gettrace(), gc.isenabled()
    gc.disable()  # finalizers of what other tests have left are none of the lines under the call
    sys.settrace(trace)
    try:
        call()
    except raised:
        pass
    finally:
        sys.settrace(before)
        if was_collecting:
            gc.enable()
    return reached >= number

"""A stream that ranks play, and how a rank has ended."""

from __future__ import annotations

import torch

LONG_TIMEOUT = 100.0
"""An ``InputOptions.timeout`` that nobody waits for: what is heard is heard before."""
SOON = 50.0
"""It takes a second or two, but others may keep the machine busy."""


def described(outcome):
    """A rank's error with its class."""
    return f"{type(outcome.error).__name__}: {outcome.error}"


def numbers(count):
    """A stream of the first integers."""
    return (torch.tensor(k) for k in range(count))

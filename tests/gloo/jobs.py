"""A stream that ranks play, and how a rank has ended."""

from __future__ import annotations

import torch


def described(outcome):
    """A rank's error with its class."""
    return f"{type(outcome.error).__name__}: {outcome.error}"


def numbers(count):
    """A stream of the first integers."""
    return (torch.tensor(k) for k in range(count))

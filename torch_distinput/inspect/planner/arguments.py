"""Arguments of a plan, checked where it begins."""

from __future__ import annotations

from typing import Any

from torch_distinput.errors import ConfigurationError
from torch_distinput.options import check_count


def check_size(size: Any) -> int:
    """Return the number of examples; 0 for a budget, or where a DataLoader has it."""
    if size is None or type(size).__name__ == "TokenBudget":
        return 0
    return check_count("global_batch_size", size, minimum=1)


def check_bytes(number: Any) -> float:
    """Return a number of bytes above 0, or say what came instead."""
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    if not (is_number and 0 < number < float("inf")):
        msg = (
            f"bytes_per_example must be a number above 0, got {number!r}. Leave it out, if unknown."
        )
        raise ConfigurationError(msg)
    return float(number)


def make_size_error(name: str, size: Any) -> ConfigurationError:
    """Return the error for a source whose batches need a number of examples."""
    msg = (
        "plan_epoch expects global_batch_size to be the number of examples of a global batch for "
        f"{name}, got {size!r}. A token budget is planned of sources with an index, under DATA "
        'and without rebatch="cycle".'
    )
    return ConfigurationError(msg)


def refuse_beside(source: Any, **given: Any) -> None:
    """Refuse arguments that say nothing of a source, or that it has set itself."""
    for name, value in given.items():
        if value:
            msg = (
                f"plan_epoch expects {name} with paths only, got it beside a "
                f"source of type {type(source).__name__}. Leave it out; a FileDataset has what it "
                "is made with."
            )
            raise ConfigurationError(msg)

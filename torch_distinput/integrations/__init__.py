"""Other libraries: one module for each, which sees the public names only.

``torch_distinput.integrations.torchdata`` is imported when it is asked for, and needs torchdata
only then.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from torch_distinput.integrations import (
        accelerate,
        lightning,
        torchdata,
        torchtitan,
        transformers,
    )

__all__ = ["accelerate", "lightning", "torchdata", "torchtitan", "transformers"]


def __getattr__(name: str) -> _typing.Any:
    """Import a module when it is asked for."""
    if name not in __all__:
        msg = f"module 'torch_distinput.integrations' has no attribute {name!r}"
        raise AttributeError(msg)
    return _importlib.import_module(f"torch_distinput.integrations.{name}")


def __dir__() -> list[str]:
    """What there is, whether it is imported yet or not."""
    return sorted({*globals(), *__all__})

"""What a source of the user's raised, with the place at which it did."""

from __future__ import annotations

from torch_distinput.errors import SourceError


def source_error(error: Exception, where: str) -> SourceError:
    """Name the place at which a source raised; an error that names its place is left alone."""
    if isinstance(error, SourceError):
        return error
    said = str(error)
    if isinstance(error, StopIteration):
        said = (
            "it would pass for the end of the data, and the rest would be lost. Give next() a "
            "default, or catch StopIteration where it is called."
        )
    return SourceError(f"The source raised {type(error).__name__} at {where}: {said}")

"""What a source of the user's raised, with the place at which it did."""

from __future__ import annotations

from torch_distinput.errors import SourceError, refer


def source_error(error: Exception, where: str) -> SourceError:
    """Name the place at which a source raised; an error that names its place is left alone."""
    if isinstance(error, SourceError):
        return error
    said = str(error)
    is_an_end = isinstance(error, StopIteration)
    if is_an_end:
        said = (
            "it would pass for the end of the data, and the rest would be lost. Give next() a "
            "default, or catch StopIteration where it is called."
        )
    found = SourceError(f"The source raised {type(error).__name__} at {where}: {said}")
    return refer(found, "docs/errors.md#your-function-raises-stopiteration") if is_an_end else found

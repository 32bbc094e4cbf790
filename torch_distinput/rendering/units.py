"""Numbers as people read them."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def show_bytes(count: float) -> str:
    """A number of bytes in a unit in which it is short."""
    number, unit = float(count), 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:,.1f} {_UNITS[unit]}" if unit else f"{number:,.0f} B"

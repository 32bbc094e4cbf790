"""Numbers as people read them."""

from __future__ import annotations

_ENDS_IN_ES = ("ss", "tch")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def show_bytes(count: float) -> str:
    """A number of bytes in a unit in which it is short."""
    number, unit = float(count), 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:,.1f} {_UNITS[unit]}" if unit else f"{number:,.0f} B"


def show_count(number: int, noun: str) -> str:
    """A number and what it counts: "1 example", "1,000 batches"."""
    ending = "es" if noun.endswith(_ENDS_IN_ES) else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"

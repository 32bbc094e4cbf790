"""Which of our errors stands for which of TensorFlow's: one table, with reasons.

TensorFlow raises one class for many causes, so a row may ask for a part of the message, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.golden.values import Json

CALLER = ("ValueError", "TypeError")
"""What a caller wrote is wrong: the two classes for that."""

UNFIT_BATCH = ("SourceError from ValueError",)
"""What the source gave is no batch: known when it is read, so the rank and the place are added."""


@dataclass(frozen=True, slots=True)
class Row:
    """TensorFlow's ``type``, with ``text`` in its message, is one of our classes."""

    type: str
    text: str
    ours: tuple[str, ...]
    reason: str


ERRORS = (
    Row(
        "InvalidArgumentError",
        "FILE based sharding",
        ("TooFewFilesError",),
        "too few files: a mistake of the caller's, found before the first step",
    ),
    Row(
        "InvalidArgumentError",
        "does not have a value",
        ("UsageError",),
        "get_value() past the end: a call at the wrong time",
    ),
    Row(
        "InvalidArgumentError",
        "StringToNumber",
        ("SourceError from ValueError",),
        "the user's function raised while the data was read: the cause is chained",
    ),
    Row(
        "InvalidArgumentError",
        "",
        ("ValueError", "MismatchError"),
        "shapes that differ between replicas: the caller's values, or the ranks' disagreement",
    ),
    Row(
        "NotFoundError",
        "No such file",
        ("FileNotFoundError",),
        "a path that does not exist, by Python's name",
    ),
    Row("NotFoundError", "hardable", ("ValueError",), "FILE on a source without files"),
    Row("IndexError", "", UNFIT_BATCH, "TensorFlow's accident for elements without rows"),
    Row(
        "ValueError",
        "from outside of replica_fn",
        ("UsageError",),
        "next() inside run(): a call at the wrong place",
    ),
    Row("ValueError", "", CALLER, "an argument that is wrong by itself"),
    Row("NotImplementedError", "", ("NotImplementedError",), "the same"),
    Row("RuntimeError", "", ("RuntimeError",), "the same"),
    Row("KeyError", "", ("KeyError",), "the user's own error passes through"),
)


def accepted(error: Json) -> tuple[str, ...]:
    """Names of our classes that stand for an expected error; the first row that fits decides."""
    if "ours" in error:
        return tuple(error["ours"])
    for row in ERRORS:
        if row.type == error["type"] and row.text in error["message"]:
            return row.ours
    return ()


def describe(error: BaseException) -> Json:
    """An error of ours as an observation: its classes, those of its causes, and its words.

    A class that was raised from another one is there as ``"SourceError from ValueError"``, too;
    others that add a place may stand between them.
    """
    kinds = own = _kinds(error)
    cause = error.__cause__
    while cause is not None:
        kinds = kinds + [f"{kind} from {other}" for kind in own for other in _kinds(cause)]
        cause = cause.__cause__
    return {"type": type(error).__name__, "kinds": kinds, "message": str(error)}


def _kinds(error: BaseException) -> list[str]:
    return [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, BaseException)]


def error_of(seen: Json) -> Json | None:
    """The error an observation ended with, wherever it came; None if there was none."""
    if isinstance(seen.get("error"), dict):
        return seen["error"]
    for epoch in seen.get("epochs", ()):
        if epoch["end"]["event"] == "error":
            return epoch["end"]["error"]
    return None

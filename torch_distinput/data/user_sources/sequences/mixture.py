"""A mixture of sources, as a user writes it: their names, weights, and when it ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from numbers import Integral, Rational, Real
from typing import Any, final

import numpy as np

from torch_distinput.data.user_sources.sequences.length import Length
from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.assignment.mixing import FIRST, STOPS

Weights = Sequence[float] | Mapping[str, float]
EXAMPLES, STEPS = "examples", "steps"
_UNITS = (EXAMPLES, STEPS)
_SHORT = 1000
"""A float that is nearest to a fraction with a denominator up to this is taken for it."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class WeightSchedule:
    """Weights that change while a mixture is played; made by :func:`schedule`.

    Attributes:
        points: examples or steps from the beginning of an epoch, each with its weights.
        unit: what the points count.
    """

    points: tuple[tuple[int, Weights], ...]
    unit: str = EXAMPLES


@final
@dataclass(frozen=True, eq=False)
class Mixture:
    """Sources and their weights; made by :func:`mix`, played by ``distribute_dataset``.

    Attributes:
        sources: by name.
        points: from which example, or step, on each has which weight; there is one at 0.
        unit: what the points count.
        stop: when an epoch ends.
        length: how many tokens an example has, where weights are shares of tokens.
    """

    sources: Mapping[str, Any]
    points: tuple[tuple[int, tuple[Fraction, ...]], ...]
    unit: str
    stop: str
    length: Length | None = None

    def __repr__(self) -> str:
        """Show the names: what they stand for may be large."""
        return f"mix({', '.join(self.sources)})"


def mix(
    sources: Mapping[str, Any],
    *,
    weights: Weights | WeightSchedule,
    stop: str = FIRST,
    length: Length | None = None,
) -> Mixture:
    """Mix sources into one, in which each has its share of any beginning, to within an example.

    A source like any other, to be passed to ``distribute_dataset``, or to another ``mix``. Which
    source gives example i of an epoch is arithmetic: no random numbers are drawn for it.
    ``shuffle=True`` of ``distribute_dataset`` shuffles each source by itself.

    Args:
        sources: by name: tensors, arrays, datasets with an index, streams, FileDatasets, other
            mixtures. Their examples have one structure and the same dtypes.
        weights: of the sources, by name or in their order: numbers from 0 on of any sum, or a
            :func:`schedule` of such weights.
        stop: when an epoch ends. ``"first"``: when the first source has no more examples for its
            next turn. ``"all"``: when all have ended; who ends before falls out, and each example
            comes exactly once. ``"repeat"``: when each source has been seen once; who ends before
            begins again, in a new order if it is shuffled.
        length: weights are shares of tokens, of which an example has so many: the name of a column,
            or a function of an example. If all sources have an index, each gets its share of
            examples by the mean of its lengths. Else examples are counted as they are read, and the
            next one is of the source that has had the fewest tokens for its share. None: weights
            are shares of examples.

    Raises:
        TypeError: if the sources have no names, a weight is no number, or ``length`` no name or
            function.
        ValueError: if weights are negative, NaN, infinite or all 0, of other names or another
            number than the sources; or ``stop`` is none of the three.
    """
    if not isinstance(sources, Mapping) or not all(isinstance(name, str) for name in sources):
        msg = (
            'mix expects sources by name, such as {"web": web, "code": code}, got '
            f"{type(sources).__name__}."
        )
        raise TypeError(msg)
    if not sources:
        msg = "mix expects one source or more, got none. Leave it out, or add a source."
        raise ConfigurationError(msg)
    if stop not in STOPS:
        msg = f"mix expects stop to be {', '.join(map(repr, STOPS))}, got {stop!r}."
        raise ConfigurationError(msg)
    if not (length is None or isinstance(length, str) or callable(length)):
        msg = (
            "mix expects length to be the name of a column or a function of an example, got "
            f"{type(length).__name__}: each source has lengths of its own."
        )
        raise TypeError(msg)
    if not isinstance(weights, WeightSchedule):
        weights = WeightSchedule(((0, weights),))
    names = tuple(sources)
    points = tuple((at, _read_weights(own, names)) for at, own in weights.points)
    _refuse_endless(points[-1][1], names, stop)
    return Mixture(dict(sources), points, weights.unit, stop, length)


def schedule(points: Mapping[int, Weights], *, unit: str = EXAMPLES) -> WeightSchedule:
    """Weights for :func:`mix` that change: linear from point to point, constant after the last.

    Args:
        points: from which example (or step) of the epoch on the sources have which weights; the
            first is 0, and each lies after the one before it.
        unit: what points count: ``"examples"`` of the global order, or ``"steps"`` of
            ``global_batch_size`` examples.

    Raises:
        TypeError: if a point is no whole number.
        ValueError: if the points do not begin with 0, or do not increase; or of another unit.
    """
    if unit not in _UNITS:
        msg = f"schedule expects unit to be {' or '.join(map(repr, _UNITS))}, got {unit!r}."
        raise ConfigurationError(msg)
    if not isinstance(points, Mapping) or not points:
        msg = (
            "schedule expects weights by the example from which on they hold, such as "
            f"{{0: (0.8, 0.2), 10_000: (0.5, 0.5)}}, got {points!r}."
        )
        raise TypeError(msg) if not isinstance(points, Mapping) else ConfigurationError(msg)
    at = list(points)
    if not all(isinstance(point, Integral) and not isinstance(point, bool) for point in at):
        msg = f"schedule expects whole numbers as points, got {at}. Round them."
        raise TypeError(msg)
    if at[0] != 0 or any(two <= one for one, two in pairwise(at)):
        msg = (
            f"schedule expects points that begin with 0 and increase, got {', '.join(map(str, at))}"
            ". Write them in order, the weights at the beginning first."
        )
        raise ConfigurationError(msg)
    return WeightSchedule(tuple((int(point), points[point]) for point in at), unit)


def _read_weights(weights: Any, names: tuple[str, ...]) -> tuple[Fraction, ...]:
    """The weights in the order of the names, as fractions."""
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            msg = (
                f"mix expects a weight for each of its sources {', '.join(names)}, got weights of "
                f"{', '.join(map(str, weights)) or 'none'}. Give each source one, 0 for none."
            )
            raise ConfigurationError(msg)
        weights = [weights[name] for name in names]
    if isinstance(weights, (str, bytes, AbstractSet)) or not hasattr(weights, "__iter__"):
        msg = (
            f"mix expects weights by name or in a sequence, got {weights!r}. Write for example "
            '{"web": 0.8, "code": 0.2}.'
        )
        raise TypeError(msg)
    weights = list(weights)
    if len(weights) != len(names):
        msg = (
            f"mix expects {len(names)} weights, one for each of {', '.join(names)}, got "
            f"{len(weights)}: {weights}. Give each source one, 0 for none."
        )
        raise ConfigurationError(msg)
    read = tuple(map(_read_weight, names, weights))
    if not any(read):
        msg = (
            f"mix expects a weight above 0, got {weights} for {', '.join(names)}. Raise that of a "
            "source that is to be read."
        )
        raise ConfigurationError(msg)
    return read


def _read_weight(name: str, weight: Any) -> Fraction:
    """A weight as the fraction that was meant: of a float the shortest that is that float."""
    single = str(getattr(weight, "dtype", "")).endswith("float32")
    if getattr(weight, "shape", None) == ():  # a number of NumPy or torch
        weight = weight.item()
    if isinstance(weight, bool) or not isinstance(weight, (Real, Decimal)):
        msg = f"mix expects numbers as weights, got {weight!r} for {name!r}. Write 0.5, say."
        raise TypeError(msg)
    if not math.isfinite(weight) or weight < 0:
        msg = (
            f"mix expects finite weights from 0 on, got {weight!r} for {name!r}. Use 0 for a "
            "source that is not to be read."
        )
        raise ConfigurationError(msg)
    if isinstance(weight, (Rational, Decimal)):
        return Fraction(weight)
    weight = float(weight)
    short = Fraction(weight).limit_denominator(_SHORT)
    nearest = float(np.float32(float(short))) if single else float(short)
    return short if nearest == weight else Fraction(repr(weight))


def _refuse_endless(weights: tuple[Fraction, ...], names: tuple[str, ...], stop: str) -> None:
    """Where all sources are to be seen, all must come to an end."""
    never = [name for name, weight in zip(names, weights, strict=True) if not weight]
    if never and stop != FIRST:
        msg = (
            f"mix expects weights above 0 at the end with stop={stop!r}, under which each source "
            f"is played to its end, got 0 for {', '.join(never)}. Give it a weight, leave it out, "
            f'or use stop="{FIRST}".'
        )
        raise ConfigurationError(msg)

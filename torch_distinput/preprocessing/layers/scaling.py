"""Layers that scale numbers: Rescaling, and Normalization with its adapted mean and variance."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from torch_distinput.preprocessing.columns.tensors import MISSING_NUMBERS, Takes, to_floats
from torch_distinput.preprocessing.layers.layer import AdaptiveLayer, Layer, check_choice
from torch_distinput.preprocessing.states.column_moments import ColumnMoments

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)
_EPSILON = 1e-7
"""The smallest divisor (``keras.backend.epsilon``): a constant feature is divided by it."""


@final
class Rescaling(Layer):
    """``inputs * scale + offset`` in float32 (``keras.layers.Rescaling``).

    Args:
        scale: a number, or one for each place of the last dimension.
        offset: a number, or one for each place of the last dimension.
    """

    takes: Takes = "floats"
    scale: torch.Tensor
    offset: torch.Tensor

    def __init__(
        self, scale: float | Sequence[float], offset: float | Sequence[float] = 0.0
    ) -> None:
        """See the class."""
        given = {"scale": np.asarray(scale).tolist(), "offset": np.asarray(offset).tolist()}
        for name, value in given.items():
            if np.asarray(value).dtype.kind not in "iufb":
                msg = f"{name} must be a number, or one per element, got {value!r:.60}."
                raise TypeError(msg)
        super().__init__(**given)
        for name, value in given.items():
            tensor = torch.tensor(value, dtype=torch.float32)
            self.register_buffer(name, tensor, persistent=False)  # the configuration has it

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Move the buffers; ``to_empty()`` leaves them unset, and no state has them."""
        super()._apply(fn, recurse)
        for name in ("scale", "offset"):
            device = self.get_buffer(name).device
            self._buffers[name] = torch.tensor(
                self._config[name], dtype=torch.float32, device=device
            )
        return self

    def forward(self, inputs: Any) -> torch.Tensor:
        """Scale numbers of any shape."""
        return to_floats(inputs, self) * self.scale + self.offset


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class MomentsAnalyzer:
    """Mean and variance, exactly.

    Attributes:
        ignore_nan: whether NaN is left out; else it makes both NaN.
    """

    ignore_nan: bool

    def new_state(self) -> ColumnMoments:
        """Begin to count."""
        return ColumnMoments()

    def finish(self, state: ColumnMoments) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return mean and variance, float32; None unless each mean has a value behind it."""
        if not state.num_seen and (self.ignore_nan or not state.num_nan):
            return None
        found = state.finalize(ignore_nan=self.ignore_nan, for_float32=True)
        with np.errstate(over="ignore"):  # the square of what float32 holds may be infinite
            mean, variance = (torch.from_numpy(each.astype(np.float32)) for each in found)
        return mean, variance


@final
class Normalization(AdaptiveLayer):
    """``(inputs - mean) / sqrt(variance)`` in float32 (``keras.layers.Normalization``).

    :meth:`adapt` finds mean and variance exactly: the true value for the numbers as float32,
    rounded, whatever the batches, the order and the number of ranks.

    Args:
        axis: the dimensions that have a mean and variance for each place, counted with the rows as
            dimension 0; None for one mean of all. A column ``(rows,)`` has one, whatever the axis.
        mean: given instead of adapted, together with ``variance``.
        variance: see ``mean``.
        invert: compute ``inputs * sqrt(variance) + mean`` instead.
        missing: ``"error"``: None is refused, and NaN makes mean and variance NaN, as in Keras.
            ``"ignore"``: both are left out of the statistics, and stay NaN.
    """

    takes: Takes = "floats"
    state_types: Mapping[str, torch.dtype] = {"mean": torch.float32, "variance": torch.float32}
    mean: torch.Tensor | None
    variance: torch.Tensor | None

    def __init__(
        self,
        axis: int | Sequence[int] | None = -1,
        mean: float | Sequence[float] | None = None,
        variance: float | Sequence[float] | None = None,
        *,
        invert: bool = False,
        missing: str = "error",
    ) -> None:
        """See the class."""
        axis = int(axis) if isinstance(axis, np.integer) else axis
        axes = (axis,) if isinstance(axis, int) else tuple(axis or ())
        if 0 in axes or len(set(axes)) < len(axes):
            msg = (
                f"Expected axis to name dimensions behind the rows once each, got {axis!r}. Leave "
                "out 0 (the rows), and repeated ones."
            )
            raise ValueError(msg)
        self.axes = axes
        self.invert = invert
        self.missing = check_choice("missing", missing, MISSING_NUMBERS)
        kept = list(axes) if isinstance(axis, Sequence) else axis
        analyzer = MomentsAnalyzer(ignore_nan=missing == "ignore")
        super().__init__(analyzer, axis=kept, invert=invert, missing=missing)
        if (mean is None) != (variance is None):
            msg = (
                "Normalization needs both mean and variance or none of them, got one. Pass both, "
                "or leave both out and call adapt(dataset)."
            )
            raise ValueError(msg)
        if mean is not None:
            self._give(np.array(mean, np.float32), np.array(variance, np.float32))

    def _give(self, mean: np.ndarray, variance: np.ndarray) -> None:
        if mean.shape != variance.shape or mean.ndim > max(1, len(self.axes)):
            msg = (
                "Expected mean and variance of one shape, a number or one per element of "
                f"axis={self.get_config()['axis']}, got shapes {mean.shape} and {variance.shape}. "
                "Pass two numbers, or two lists with one per element."
            )
            raise ValueError(msg)
        self.mean, self.variance = torch.from_numpy(mean), torch.from_numpy(variance)
        self.is_given = True

    def forward(self, inputs: Any) -> torch.Tensor:
        """Normalize numbers ``(rows, ...)``, or those of one example."""
        values = to_floats(inputs, self, self.missing)
        mean, variance = self.need("mean"), self.need("variance")
        mean, variance = self._align(mean, values), self._align(variance, values)
        # Dividing is right: multiplying by the reciprocal gives other bits.
        deviation = variance.sqrt().clamp_min(_EPSILON)
        return values * deviation + mean if self.invert else (values - mean) / deviation

    def _align(self, statistic: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Spread a statistic over the dimensions that it belongs to."""
        if statistic.ndim == 0:
            return statistic
        axes = self._find_axes(values.ndim)
        shape = [values.shape[dim] if dim in axes else 1 for dim in range(values.ndim)]
        if tuple(values.shape[dim] for dim in axes) != tuple(statistic.shape):
            msg = (
                f"{self.describe()} has means of shape {tuple(statistic.shape)} for "
                f"axis={self.get_config()['axis']}, got inputs of shape {tuple(values.shape)}. "
                "Pass inputs of the size that the means were made for."
            )
            raise ValueError(msg)
        return statistic.reshape(shape)

    def _find_axes(self, ndim: int) -> list[int]:
        """The dimensions that are kept, ascending."""
        if any(not -ndim <= axis < ndim for axis in self.axes):
            msg = (
                f"Expected axis={self.get_config()['axis']} to name dimensions of the inputs, got "
                f"inputs of {ndim} dimensions. Choose a dimension that they have, or reshape them."
            )
            raise ValueError(msg)
        return sorted(axis % ndim for axis in self.axes)

    def count(self, state: ColumnMoments, column: Any) -> None:
        """Add the rows of a column."""
        values = to_floats(column, self, self.missing).detach().cpu().numpy()
        axes = self._find_axes(values.ndim) if values.ndim > 1 else []
        if 0 in axes:
            msg = (
                f"{self.describe()} keeps axis={self.get_config()['axis']}, which in a batch of "
                f"{values.ndim} dimensions is that of the rows. Name dimensions behind them."
            )
            raise ValueError(msg)
        others = [dim for dim in range(values.ndim) if dim not in axes]
        kept = tuple(values.shape[dim] for dim in axes)
        state.update(values.transpose(*others, *axes).reshape(-1, *kept))

    def _set_state(self, found: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.mean, self.variance = found
        unbounded = int((~self.variance.isfinite()).sum())
        if unbounded:
            _log.warning(
                "%s: the variance is infinite or NaN in %d of %d places, where all results will be "
                "0 or NaN. Cut outliers off, or see missing='ignore' for NaN.",
                self.describe(),
                unbounded,
                self.variance.numel(),
            )

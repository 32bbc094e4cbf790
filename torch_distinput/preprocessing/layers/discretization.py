"""Numbers into bins, whose boundaries are given or adapted quantiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from torch_distinput.options import check_count
from torch_distinput.preprocessing.columns.tensors import MISSING_NUMBERS, Takes, to_floats
from torch_distinput.preprocessing.layers.encoding import encode
from torch_distinput.preprocessing.layers.layer import AdaptiveLayer, check_choice
from torch_distinput.preprocessing.states.quantiles import Quantiles

_MODES = ("int", "one_hot", "multi_hot", "count")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class BinsAnalyzer:
    """Boundaries of bins of equal counts."""

    num_bins: int

    def new_state(self) -> Quantiles:
        """Begin to count."""
        return Quantiles()

    def finish(self, state: Quantiles) -> torch.Tensor | None:
        """Return the boundaries, float32 ``(num_bins - 1,)``; fewer of fewer numbers."""
        return torch.from_numpy(state.finalize(self.num_bins)) if state.count else None


@final
class Discretization(AdaptiveLayer):
    """The bin that each number falls into (``keras.layers.Discretization``).

    Bin i holds ``boundaries[i-1] <= x < boundaries[i]``; NaN and infinity fall into the last one.
    Numbers and boundaries are float32. Gives int32 of the shape of the inputs, or float32 vectors
    (:func:`~torch_distinput.preprocessing.layers.encoding.encode`).

    :meth:`adapt` makes bins of equal counts, over all numbers of a batch together: quantiles of
    type 4 (``numpy.quantile(method="interpolated_inverted_cdf")``). They are exact for up to
    131,072 distinct numbers, else their rank is off by 1e-4 at most; NaN is left out.

    Args:
        bin_boundaries: ascending; instead of ``num_bins``.
        num_bins: bins to adapt to.
        epsilon: of Keras, which is off by about so much; not used.
        output_mode: ``"int"``, ``"one_hot"``, ``"multi_hot"`` or ``"count"``.
        missing: ``"error"`` refuses None; ``"ignore"`` takes it as NaN.
    """

    takes: Takes = "floats"
    state_types: Mapping[str, torch.dtype] = {"boundaries": torch.float32}
    boundaries: torch.Tensor | None

    def __init__(
        self,
        bin_boundaries: Sequence[float] | None = None,
        num_bins: int | None = None,
        epsilon: float = 0.01,  # noqa: ARG002 - see above
        output_mode: str = "int",
        *,
        missing: str = "error",
    ) -> None:
        """See the class."""
        if (bin_boundaries is None) == (num_bins is None):
            msg = (
                "Discretization needs bin_boundaries or num_bins, one of them; got "
                f"bin_boundaries={bin_boundaries!r:.60} and num_bins={num_bins!r}."
            )
            raise ValueError(msg)
        if num_bins is not None:
            num_bins = check_count("num_bins", num_bins, minimum=1)
        self.num_bins = num_bins
        self.output_mode = check_choice("output_mode", output_mode, _MODES)
        self.missing = check_choice("missing", missing, MISSING_NUMBERS)
        given = None if bin_boundaries is None else _parse_boundaries(bin_boundaries)
        super().__init__(
            BinsAnalyzer(num_bins=num_bins or 1),
            bin_boundaries=None if given is None else given.tolist(),
            num_bins=num_bins,
            output_mode=output_mode,
            missing=missing,
        )
        self.boundaries = given
        self.is_given = given is not None

    @property
    def bin_boundaries(self) -> torch.Tensor:
        """float32 ``(bins - 1,)``, ascending."""
        return self.need("boundaries")

    def forward(self, inputs: Any) -> torch.Tensor:
        """Find the bins of numbers of any shape."""
        values = to_floats(inputs, self, self.missing)
        boundaries = self.need("boundaries")
        bins = torch.bucketize(values, boundaries, right=True)
        if self.output_mode == "int":
            return bins.to(torch.int32)
        return encode(bins, self.output_mode, boundaries.shape[0] + 1, dtype=torch.float32)

    def count(self, state: Quantiles, column: Any) -> None:
        """Add numbers of any shape."""
        state.update(to_floats(column, self, self.missing).detach().cpu().numpy())

    def _set_state(self, found: torch.Tensor) -> None:
        self.boundaries = found


def _parse_boundaries(boundaries: Sequence[float]) -> torch.Tensor:
    try:
        values = torch.as_tensor(boundaries, dtype=torch.float32).clone()  # the caller's memory
    except (TypeError, ValueError) as error:
        msg = (
            f"Expected bin_boundaries to be numbers, got {boundaries!r:.80}: {error}. Pass a flat "
            "list, such as [0.0, 1.0]."
        )
        raise TypeError(msg) from None
    if values.ndim != 1 or bool((values[1:] < values[:-1]).any()) or bool(values.isnan().any()):
        msg = (
            f"Expected bin_boundaries in ascending order, without NaN, got {boundaries!r:.80}. "
            "Pass a flat list that is sorted."
        )
        raise ValueError(msg)
    return values

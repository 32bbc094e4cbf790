"""What TPUs ask of their input: one shape in all steps, and dense tensors only.

A TPU runs programs that are compiled for the shapes of what they read. A batch of another shape is
one program more, for which all workers wait. So under a :class:`TPUStrategy` steps are padded: to a
full batch where that is known beforehand, else to the largest batch so far.
"""

from __future__ import annotations

import logging
from typing import Any, final

import numpy as np
import torch

from torch_distinput.data.batch.leaf_kinds import DENSE, kind_of_spec
from torch_distinput.data.batch.tree import flatten, leaf_names
from torch_distinput.errors import ConfigurationError
from torch_distinput.options import InputOptions, PartialBatch
from torch_distinput.values import TensorSpec

_log = logging.getLogger(__name__)


def choose_partial_batch(options: InputOptions, *, has_static_shapes: bool) -> PartialBatch:
    """What holds: as asked for, else as the devices need it."""
    asked = PartialBatch(options.partial_batch)
    if asked is PartialBatch.AUTO:
        return PartialBatch.PAD if has_static_shapes else PartialBatch.ZERO_ROWS
    if has_static_shapes and asked is not PartialBatch.PAD:
        msg = (
            'TPUStrategy expects partial_batch="pad", because a TPU compiles a program for each '
            f"number of rows, got {asked.value!r}. Leave partial_batch out, and use the mask that "
            "comes with each batch."
        )
        raise ConfigurationError(msg)
    return asked


def make_values_error() -> ConfigurationError:
    """The error for values that nobody pads or moves."""
    return ConfigurationError(
        "TPUStrategy expects input whose shapes are static and which is moved to the TPU, got "
        "distribute_values_from_function, which keeps values as they are: of any shape, on the "
        "host. Pass the values as columns to distribute_dataset, or make a tensor on "
        "strategy.device and pass it to run: a worker has one replica."
    )


@final
class LeafCheck:
    """Looks at the batches of one dataset before they are copied to a TPU.

    It hears of a spec when that is new, so not in each step.
    """

    def __init__(self, title: str) -> None:
        """Nothing has been said of the dataset that is called ``title``."""
        self._title = title
        self._has_warned = False

    def __call__(self, spec: Any) -> None:
        """Refuse leaves that are no dense tensors; warn, once, of sizes that vary.

        Raises:
            ConfigurationError: it names the leaf. Batches have one structure on all ranks, so each
                of them raises it by itself.
        """
        leaves, structure = flatten(spec)
        for name, leaf in zip(leaf_names(structure, "batch"), leaves, strict=True):
            if kind_of_spec(leaf) is not DENSE:
                raise _make_not_dense_error(name, leaf)
            if None in leaf.shape[1:] and not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "%s: expected one shape in all batches for a TPU, got other sizes than "
                    "before at %s: %s. Each new shape is compiled, while all workers wait. Pad "
                    "to one size, or to a few, in the collate_fn or in a map.",
                    self._title,
                    name,
                    leaf.shape,
                )


def _make_not_dense_error(name: str, leaf: TensorSpec) -> ConfigurationError:
    cure = "Turn it into numbers in the pipeline: StringLookup, Hashing or TextVectorization in a "
    cure += "collate_fn or a map"
    if leaf.layout is torch.jagged and isinstance(leaf.dtype, torch.dtype):
        found = "a jagged tensor"
        cure = "Pad its rows to one length in the collate_fn"
    elif isinstance(leaf.dtype, np.dtype):
        found = f"an array of {leaf.dtype}"
    elif leaf.layout is torch.jagged:
        found = "packed strings"
    else:
        found = "a list" if leaf.dtype is object else f"a list of {leaf.dtype.__name__}"
    return ConfigurationError(
        "TPUStrategy expects dense tensors only, because a TPU computes neither on strings and "
        f"objects nor on rows of varying length, got {found} at {name}. {cure}, leave it out, or "
        "keep the batches on the host: InputOptions(fetch_to_device=False)."
    )

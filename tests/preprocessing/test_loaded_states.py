"""States that come by load_state_dict and _apply: whole, in their own type, or refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torch_distinput import preprocessing as pp


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("layer", "part"),
    [
        (pp.StringLookup(vocabulary=["x", "yy"]), {"text": torch.tensor([97, 98])}),
        (pp.StringLookup(vocabulary=["x", "yy"]), {"ends": torch.tensor([3])}),
        (pp.Normalization(mean=1.0, variance=4.0), {"mean": torch.tensor(5.0)}),
        (
            pp.IntegerLookup(vocabulary=[1, 2], idf_weights=[1, 2], output_mode="tf_idf"),
            {"vocabulary": torch.tensor([3, 4])},
        ),
    ],
    ids=["text", "ends", "mean", "no idf"],
)
def test_a_part_of_a_state_changes_nothing(layer, part, strict):
    """A state that lacks a tensor is refused, and the layer keeps its own."""
    before = layer.fingerprint()
    with pytest.raises(RuntimeError, match="Expected a whole state"):
        layer.load_state_dict(part, strict=strict)
    assert before == layer.fingerprint()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_state_keeps_the_type_of_its_layer(dtype):
    """A checkpoint that was converted as a whole is computed with in float32."""
    given = pp.Normalization(mean=[1.0, 2.0], variance=[4.0, 9.0])
    layer = pp.Normalization()
    layer.load_state_dict({name: value.to(dtype) for name, value in given.state_dict().items()})
    assert given.fingerprint() == layer.fingerprint()


def test_integers_that_were_rounded_are_refused():
    """Where tokens end cannot come from a half, which rounds it."""
    state = pp.StringLookup(vocabulary=["a", "b"]).state_dict()
    layer = pp.StringLookup()
    with pytest.raises(RuntimeError, match=r"got torch.bfloat16, which rounds integers"):
        layer.load_state_dict({name: value.bfloat16() for name, value in state.items()})
    assert ["[UNK]"] == layer.get_vocabulary()


def test_rescaling_survives_to_empty():
    """What no state has is set again where a model made on "meta" gets its memory."""
    with torch.device("meta"):
        layer = pp.Rescaling(2.0, 1.0)
    assert [3.0, 5.0] == layer.to_empty(device="cpu")([1.0, 2.0]).tolist()


def test_tokens_that_are_written_in_place_are_found():
    """DDP writes the buffers of rank 0 over those of the others; a dict made before is stale."""
    layer, other = pp.StringLookup(vocabulary=["a", "b"]), pp.StringLookup(vocabulary=["b", "a"])
    assert [1, 2] == layer(["a", "b"]).tolist()
    for name, buffer in layer.named_buffers():
        buffer.copy_(other.get_buffer(name))
    assert [2, 1] == layer(["a", "b"]).tolist() == layer(pp.pack_strings(["a", "b"])).tolist()


def test_a_state_of_no_boundary_is_saved(tmp_path):
    """Torch makes bytes of no stride but 1, and an empty tensor may have any."""
    layer = pp.Discretization(num_bins=1)
    layer.adapt([1.0, 2.0])
    pp.save(layer, tmp_path / "out")
    assert layer.fingerprint() == pp.load(tmp_path / "out").fingerprint()


def test_what_was_given_may_be_written_over():
    """Layers have numbers of their own."""
    given = [np.array([1.0, 2.0], np.float32) for _ in range(4)]
    mean, variance, boundaries, weights = given
    layers = [
        pp.Normalization(mean=mean, variance=variance),
        pp.Discretization(boundaries),
        pp.Discretization(torch.from_numpy(boundaries)),
        pp.StringLookup(vocabulary=["a", "b"], idf_weights=weights, output_mode="tf_idf"),
    ]
    before = [layer.fingerprint() for layer in layers]
    for array in given:
        np.add(array, 10, out=array)
    assert before == [layer.fingerprint() for layer in layers]

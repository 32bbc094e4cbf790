"""The law: on the host, as packed tensors and in an exported graph a layer gives the same bits."""

from __future__ import annotations

import io
import shutil

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings

from tests.conftest import LONG
from tests.preprocessing.every_layer import (
    KINDS,
    WIDTH,
    batches,
    of_integers,
    of_strings,
    one_batch,
)
from torch_distinput import preprocessing as pp


def exported(features):
    """The layers as a graph for any number of rows."""
    packed = features.pack(one_batch(2), WIDTH)
    rows = torch.export.Dim("rows")
    shapes = {
        name: [{0: rows}, {0: rows}] if isinstance(value, pp.PaddedStrings) else {0: rows}
        for name, value in packed.items()
    }
    return torch.export.export(features, (packed,), dynamic_shapes=(shapes,), strict=False)


# To export takes long: in a graph their ways to hash, and to encode, are those of their neighbours.
ALIKE = set() if LONG else {
    "hash count", "slots", "slots salt", "crossed", "vectors multi_hot", "vectors count",
    "hash ints one_hot", "integers hashed", "integers salt", "codes multi_hot", "codes count",
}  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def features_and_graph(request):
    layers = KINDS[request.param]()
    some = {name: layer for name, layer in layers.items() if name not in ALIKE}
    return pp.Features(**layers), exported(pp.Features(**some)).module()


def bits(tensor):
    """What differs if one bit, the dtype or the shape does; any NaN is like any other."""
    array = tensor.numpy().copy()
    if array.dtype.kind == "f":
        array[np.isnan(array)] = np.nan
    return array.dtype, array.shape, array.tobytes()


def check_same(features, batch, *graphs):
    on_the_host = features(batch)
    packed = features.pack(batch, WIDTH)
    as_tensors = features(packed)
    assert on_the_host.keys() == as_tensors.keys()
    for found in (as_tensors, *(graph(packed) for graph in graphs)):
        differing = [name for name, out in found.items() if bits(out) != bits(on_the_host[name])]
        assert not differing


@pytest.mark.slow
@settings(max_examples=1000 if LONG else 12)  # the examples have all values that are special
@given(batch=batches())
@example(batch=one_batch(0))
@example(batch=one_batch(1))
@example(batch=one_batch(40))
def test_host_tensors_and_graph_give_the_same_bits(features_and_graph, batch):
    features, graph = features_and_graph
    check_same(features, batch, graph)


def small():
    """What a model has most often."""
    return pp.Features(
        normal=("xs", pp.Normalization(-1, [0.1, 1e30, -0.0], [2.0, 0.0, 1e-40])),
        bins=("x", pp.Discretization([-1e-40, 0, 0.1, 3e38], output_mode="one_hot")),
        words=("s", of_strings(mask_token="", missing="mask")),
        codes=("f", of_integers(num_oov_indices=3)),
        categories=("is", pp.CategoryEncoding(8, "count")),
    )


@pytest.fixture(scope="module")
def small_graph():
    return exported(small())


@pytest.mark.slow
def test_a_graph_that_was_saved_is_the_same(small_graph):
    file = io.BytesIO()
    torch.export.save(small_graph, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for rows in (0, 1, 40):
        check_same(small(), one_batch(rows), loaded)


@pytest.mark.long  # the compiler takes longer than all the other tests of layers
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # torch's own
def test_a_compiled_graph_is_the_same(small_graph, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    package = str(tmp_path / "model.pt2")
    torch._inductor.aoti_compile_and_package(small_graph, package_path=package)
    compiled = torch._inductor.aoti_load_package(package)
    for rows in (0, 1, 2, 40, 333):
        check_same(small(), one_batch(rows), compiled)


NONE, WORD, CODE, NAN = ["a", None], ["a", "x"], np.array([1, 2]), np.array([1, np.nan])
REFUSED = [
    (of_strings(missing="error"), NONE, "got None, or"),
    (of_strings(num_oov_indices=0, missing="error"), WORD, "what is no token of its"),
    (of_integers(missing="error"), NAN, "got NaN or None without"),
    (of_integers(num_oov_indices=0, missing="error"), CODE, "not in its vocabulary"),
    (pp.Hashing(3), NONE, "Hashing 'out' got None. Fill it in"),
    (pp.HashedCrossing(3), NONE, "HashedCrossing 'out' got None. Fill it in"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "values", "message"), REFUSED)
def test_a_graph_refuses_what_the_layer_does(layer, values, message):
    columns = ("c", "c") if isinstance(layer, pp.HashedCrossing) else "c"
    features = pp.Features(out=(columns, layer))
    good, bad = (features.pack({"c": part}, 8) for part in (values[:1], values[1:]))
    graph = torch.export.export(features, (good,), strict=False).module()
    assert bits(graph(good)["out"]) == bits(features(good)["out"])
    with pytest.raises(RuntimeError, match=message):
        graph(bad)
    with pytest.raises(ValueError, match="Fill|Give|got None, or"):
        features(bad)

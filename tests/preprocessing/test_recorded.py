"""Artifacts, states and results that were recorded once: they load for good, and give the same.

``python -m tests.preprocessing.test_recorded NAME ...`` records anew what is missing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.preprocessing.every_layer import KINDS, boxed, one_batch
from torch_distinput import preprocessing as pp

FOLDER = Path(__file__).parent / "recorded"
ROWS = 40
TEXTS = ["A b, c!", "b  C\tb", "", "日本 é B.", "x"]


def batch():
    """The columns of every layer, and one of texts."""
    return {**one_batch(ROWS), "text": np.resize(boxed(TEXTS, len(TEXTS)), ROWS)}


def adapted():
    """A layer of each kind that adapts; two features share one."""
    policy = {"missing": "oov", "num_oov_indices": 2}
    masked = {"mask_token": "b", **policy}
    shared = pp.StringLookup(**masked)
    features = pp.Features(
        normal=("i", pp.Normalization()),
        bins=("x", pp.Discretization(num_bins=5)),
        s=shared,
        again=("ss", shared),
        weighed=("ss", pp.StringLookup(max_tokens=8, output_mode="tf_idf", missing="oov")),
        codes=("i", pp.IntegerLookup(mask_token=5, **policy)),
        codes_weighed=("is", pp.IntegerLookup(output_mode="tf_idf", missing="oov")),
        text=pp.TextVectorization(ngrams=2, output_sequence_length=4),
        text_weighed=("text", pp.TextVectorization(output_mode="tf_idf", max_tokens=5)),
        kept=("f", torch.nn.Identity()),
    )
    features.adapt(iter([batch()]))
    return features


def make(name):
    return adapted() if name == "adapted" else pp.Features(**KINDS[name]())


def digest(value):
    """One bit, the dtype or the shape differs: another digest. Any NaN is like any other."""
    array = np.array(value.numpy() if isinstance(value, torch.Tensor) else value)
    if array.dtype.kind == "f":
        array[np.isnan(array)] = np.nan
    content = hashlib.sha256(array.tobytes()).hexdigest()[:16]
    return f"{array.dtype} {array.shape} {content}"


def digests(values):
    return {name: digest(value) for name, value in values.items()}


def counted(features):
    """What each layer counts of the batch, as arrays: what ``analyze`` keeps of a file."""
    found = {}
    for name, layer in features.adaptive():
        state = layer.analyzer.new_state()
        layer.count(state, features.take(batch(), name))
        found[name] = digests(state.to_arrays())
    return found


def described(features):
    """All that must stay as it is."""
    return {
        "fingerprint": features.fingerprint(),
        "config_fingerprint": features.config_fingerprint(),
        "layers": {
            name: [layer.config_fingerprint(), layer.fingerprint()]
            for name, layer in features.items()
            if hasattr(layer, "fingerprint")
        },
        "state": digests(features.state_dict()),
        "outputs": digests(features(batch())),
        "counted": counted(features),
    }


def record(name):
    features = make(name)
    with tempfile.TemporaryDirectory() as folder:
        pp.save(features, folder)
        files = {
            path.relative_to(folder).as_posix(): base64.b64encode(path.read_bytes()).decode()
            for path in sorted(Path(folder).rglob("*"))
            if path.is_file()
        }
    content = json.dumps({"described": described(features), "files": files}, indent=1)
    (FOLDER / f"{name}.json").write_text(content + "\n")


@pytest.fixture(params=[*KINDS, "adapted"])
def recorded(request, tmp_path):
    """What was recorded, and the layers of its artifact."""
    found = json.loads((FOLDER / f"{request.param}.json").read_text())
    for name, content in found["files"].items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(base64.b64decode(content))
    return request.param, found["described"], pp.load(tmp_path)


def test_an_artifact_loads_and_gives_what_it_gave(recorded):
    _, expected, features = recorded
    assert expected == described(features)


def test_layers_that_are_made_today_are_the_same(recorded):
    name, expected, _ = recorded
    assert expected == described(make(name))


def test_a_state_dict_makes_layers_the_same(recorded):
    name, expected, features = recorded
    made = make(name)
    for tensor in made.state_dict().values():
        tensor.zero_()
    made.load_state_dict(features.state_dict())
    assert expected["outputs"] == digests(made(batch()))


if __name__ == "__main__":
    for missing in sys.argv[1:]:
        record(missing)

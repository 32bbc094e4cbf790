"""Play cases recorded from Keras: ``python -m tests.golden_keras tests/golden/keras.json``.

Only what kind of error Keras raises is compared, never its words. Cases marked ``quirk`` are
behaviour that is not copied; they are counted and not played. Where a case has ``exact`` states,
from rational arithmetic, they must agree bit for bit. Two named rules map the rest:

- What Keras refuses at the first call after adapting to nothing, ``adapt`` itself refuses here.
- An axis that the rows lack is refused when rows come, for a layer may be made before them.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torch_distinput import ConfigurationError
from torch_distinput import preprocessing as pp

LATE_AXIS = "normalization/err_axis_range"
GOLDEN = Path(__file__).parent / "golden" / "keras.json"


def cases(path: Path = GOLDEN) -> list[dict[str, Any]]:
    """All cases of a file."""
    return json.loads(path.read_text())["cases"]


def play(case: dict[str, Any], give: Callable[[Any], Any] = lambda inputs: inputs) -> str | None:
    """Play a case; None if it agrees, else what differs. ``give``: what layers get of an input."""
    with tempfile.TemporaryDirectory() as folder:
        config = _config(case, Path(folder))
        try:
            layer = getattr(pp, case["layer"])(**config)
        except Exception as error:  # noqa: BLE001 - compared
            return _refused(error, case.get("init_error"), "construction")
    if "init_error" in case:
        return None if case["id"] == LATE_AXIS else "construction should have been refused"
    if "adapt" in case:
        try:
            layer.adapt(_adapt_data(case["adapt"]))
        except ConfigurationError as error:
            if all(call.get("error", {}).get("kind") == "value" for call in case["calls"]):
                return _differing_vocabulary(layer, case)  # the first rule
            return f"adapt raised {error}"
        except Exception as error:  # noqa: BLE001 - compared
            return _refused(error, case.get("adapt_error"), "adapt")
        if "adapt_error" in case:
            return "adapt should have been refused"
    return next(filter(None, _differences(layer, case, give)), None)


def _differences(
    layer: Any, case: dict[str, Any], give: Callable[[Any], Any]
) -> Iterator[str | None]:
    # Keras's own approximate boundaries depend on its batches: the exact ones are compared.
    calls = [] if "adapt_approx" in case["tags"] else case.get("calls", [])
    for number, call in enumerate(calls):
        found = _differing_call(layer, call, case["tolerance"], give)
        yield found and f"call {number}: {found}"
    yield _differing_exact(layer, case.get("exact", {}))
    yield _differing_vocabulary(layer, case)


def _config(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    config = {name: _decoded(value) for name, value in case["config"].items()}
    if isinstance(config.get("ngrams"), list):
        config["ngrams"] = tuple(config["ngrams"])
    if "vocabulary_file" in case:
        path = folder / "vocabulary.txt"
        path.write_bytes(base64.b64decode(case["vocabulary_file"]["b64"]))
        config["vocabulary"] = str(path)
    return config


def _adapt_data(adapt: dict[str, Any]) -> Any:
    if "array" in adapt:
        return _decoded(adapt["array"])
    batches = [_decoded(batch) for batch in adapt["batches"]]
    return lambda: iter(batches)


def _refused(error: Exception, expected: dict[str, Any] | None, what: str) -> str | None:
    if expected is None:
        return f"{what} raised {type(error).__name__}: {error}"
    allowed: tuple[type[Exception], ...] = (ValueError,)
    if expected["kind"] != "value":
        allowed = (ValueError, TypeError, LookupError, RuntimeError)
    return None if isinstance(error, allowed) else f"{what} refused with {type(error).__name__}"


def _differing_call(
    layer: Any, call: dict[str, Any], tolerance: dict[str, Any], give: Callable[[Any], Any]
) -> str | None:
    kwargs = {name: _decoded(value) for name, value in call.get("kwargs", {}).items()}
    try:
        output = layer(give(_decoded(call["inputs"])), **kwargs)
    except Exception as error:  # noqa: BLE001 - compared
        return _refused(error, call.get("error"), "it")
    if "error" in call:
        return "it should have been refused"
    return _differing(output, call["output"], tolerance)


def _differing(output: Any, expected: dict[str, Any], tolerance: dict[str, Any]) -> str | None:
    got = output.numpy() if isinstance(output, torch.Tensor) else np.asarray(output, dtype=object)
    if list(got.shape) != expected["shape"]:
        return f"shape {list(got.shape)} instead of {expected['shape']}"
    if expected["dtype"] == "string":
        wanted = _decoded(expected).reshape(-1).tolist()
        same = got.reshape(-1).tolist() == wanted
        return None if same else f"{got.tolist()} instead of {wanted}"
    if got.dtype.name != expected["dtype"]:
        return f"dtype {got.dtype.name} instead of {expected['dtype']}"
    if "sha256" in expected:
        same = hashlib.sha256(np.ascontiguousarray(got).tobytes()).hexdigest() == expected["sha256"]
        return None if same else f"values from {got.reshape(-1)[:8]} on differ"
    wanted = _decoded(expected)
    if tolerance.get("exact") or got.dtype.kind in "iub":
        same = np.array_equal(got, wanted)
    else:
        limits = {"rtol": tolerance["rtol"], "atol": tolerance["atol"]}
        same = np.allclose(got, wanted, equal_nan=True, **limits)
    return None if same else f"{got.tolist()} instead of {wanted.tolist()}"


def _differing_exact(layer: Any, exact: dict[str, Any]) -> str | None:
    for name in ("mean", "variance"):
        if name in exact:
            wanted = np.array([float.fromhex(text) for text in exact[name]]).astype(np.float32)
            got = getattr(layer, name).numpy().reshape(-1)
            if got.tobytes() != wanted.tobytes():
                return f"{name} {got} instead of exactly {wanted}"
    if "bin_boundaries" in exact:
        wanted = np.array(exact["bin_boundaries"], np.float32)
        got = layer.bin_boundaries.numpy()
        if got.shape != wanted.shape or not np.allclose(got, wanted, rtol=3e-7, atol=0):
            return f"boundaries {got} instead of {wanted}"
    return None


def _differing_vocabulary(layer: Any, case: dict[str, Any]) -> str | None:
    wanted = case.get("state", {}).get("vocabulary")
    if not isinstance(wanted, list):
        return None
    texts = [_text(value) for value in wanted]
    got = layer.get_vocabulary()
    return None if got == texts else f"vocabulary {got[:8]} instead of {texts[:8]}"


def _text(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return base64.b64decode(value["b64"]).decode("utf-8", "surrogateescape")


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "recipe" in value:
        return _RECIPES[value["recipe"]["kind"]](value["recipe"])
    if "literal" in value:
        return {"[None, 'a']": [None, "a"]}[value["literal"]]
    if value["dtype"] == "string":
        strings = np.empty(len(value["data"]), dtype=object)
        strings[:] = [_text(item) for item in value["data"]]
        return strings.reshape(value["shape"])
    floats = value["dtype"].startswith("float")
    data = [float(item) for item in value["data"]] if floats else value["data"]
    return np.array(data, dtype=value["dtype"]).reshape(value["shape"])


def _tokens(recipe: dict[str, Any]) -> np.ndarray:
    numbers = range(recipe["start"], recipe["start"] + recipe["n"])
    return np.array([f"{recipe['prefix']}{number}" for number in numbers], dtype=object)


def _arange(recipe: dict[str, Any]) -> np.ndarray:
    return np.arange(recipe["n"], dtype=np.int64) * recipe["step"] + recipe["start"]


def _congruential(recipe: dict[str, Any]) -> np.ndarray:
    state, out = recipe["seed"], []
    for _ in range(recipe["n"]):
        state = (1664525 * state + 1013904223) % 2**32
        out.append(state / 2**32 * recipe["scale"] + recipe["offset"])
    return np.array(out, dtype=np.float32)


_RECIPES: dict[str, Callable[[dict[str, Any]], np.ndarray]] = {
    "tokens": _tokens,
    "arange": _arange,
    "lcg_float32": _congruential,
}


def main() -> None:
    """Play all cases of a file and print how many of each layer agree."""
    parser = argparse.ArgumentParser(description="Play cases recorded from Keras.")
    parser.add_argument("path", type=Path, nargs="?", default=GOLDEN)
    tally: Counter[tuple[str, str]] = Counter()
    for case in cases(parser.parse_args().path):
        found = None
        if "quirk" in case["tags"]:
            outcome = "quirk"
        else:
            found = play(case)
            outcome = "differs" if found else "agrees"
        if found:
            print(f"{case['id']}: {found[:300]}")
        tally[case["layer"], outcome] += 1
    for layer in sorted({layer for layer, _ in tally}):
        counts = ", ".join(
            f"{tally[layer, outcome]} {outcome}" for outcome in ("agrees", "differs", "quirk")
        )
        print(f"{layer}: {counts}")
    sys.exit(any(outcome == "differs" for _, outcome in tally))


if __name__ == "__main__":
    main()

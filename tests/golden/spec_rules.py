"""Rules about what describes the data: specs, types, results of single calls. See ``rules``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np

from tests.golden import facts, sources
from tests.golden.errors import error_of
from tests.golden.expected import each_worker, steps_of
from tests.golden.values import Json, is_leaf, leaves, map_leaves, num_rows

SPECS = ("element_spec", "iterator_element_spec")


def _each_spec(case: Json, change: Callable[[Json], Json]) -> Json:
    def changed(seen: Json) -> Json:
        specs = {name: seen[name] for name in SPECS if name in seen}
        known = {name: spec for name, spec in specs.items() if "error" not in spec}
        return {**seen, **{name: change(spec) for name, spec in known.items()}}

    return each_worker(case, changed) if case["kind"] in facts.ITERATION else case


def _one_spec(case: Json) -> Json:
    """TensorFlow repeats a leaf's spec for each local replica."""

    def once(leaf: Json) -> Json:
        specs = leaf.get("per_replica", [leaf])
        if any(spec != specs[0] for spec in specs):
            raise ValueError(f"specs that differ between replicas: {specs}")
        return specs[0]

    return _each_spec(case, lambda spec: map_leaves(once, spec))


def _measured_dimensions(case: Json) -> Json:
    """TensorFlow knows sizes from the program; ours are seen in the data, None where they vary."""
    batches = [value for seen in case["expected"] for step in steps_of(seen) for value in step]
    shapes = [[leaf["s"][1:] for leaf in leaves(value)] for value in batches if num_rows(value)]
    by_leaf = list(zip(*shapes, strict=True))

    def changed(spec: Json) -> Json:
        numbers = count()

        def measured(leaf: Json) -> Json:
            number = next(numbers)
            return _measured_leaf(leaf, by_leaf[number] if by_leaf else ())

        return map_leaves(measured, spec)

    return _each_spec(case, changed)


def _measured_leaf(leaf: Json, shapes: Sequence[list[int]]) -> Json:
    if not is_leaf(leaf):
        return leaf
    columns = [sorted({shape[place] for shape in shapes}) for place in range(len(leaf["s"]) - 1)]
    sizes = [
        _measured(column) if size is None else size
        for size, column in zip(leaf["s"][1:], columns, strict=True)
    ]
    return {**leaf, "s": [*leaf["s"][:1], *sizes]}


def _measured(seen: list[int]) -> Json:
    """One size is known; of several, the first batch shows one, and all of them show None."""
    return seen[0] if len(seen) == 1 else {"one_of": [None, *seen]}


def _ragged_is_jagged(case: Json) -> Json:
    """The spec of a ragged tensor, with dtype and dimensions as those of any tensor."""

    def spelled(leaf: Json) -> Json:
        found = _RAGGED.match(leaf.get("repr", ""))
        if found is None:
            return leaf
        sizes = [None if size == "None" else int(size) for size in found["sizes"].split(", ")]
        return {"d": found["dtype"], "s": sizes}

    return _each_spec(case, lambda spec: map_leaves(spelled, spec))


_RAGGED = re.compile(r"RaggedTensorSpec\(TensorShape\(\[(?P<sizes>.*?)\]\), tf\.(?P<dtype>\w+)")


def _no_spec_without_examples(case: Json) -> Json:
    """TensorFlow knows the spec of what it has never seen, or has not delivered."""
    silent = not any(steps_of(seen) or error_of(seen) for seen in case["expected"])
    if case["kind"] not in facts.ITERATION or not silent:
        return case
    if case["kind"] == "distribute_dataset" and sources.shows_example(case):
        return case
    return _each_spec(case, lambda _: {"error": {"ours": ["SourceError"]}})


def _bare_for_one_replica(case: Json) -> Json:
    """TensorFlow wraps one replica's value where there are several workers."""
    if facts.replicas_per_worker(case) > 1:
        return case

    def changed(seen: Json) -> Json:
        names = [name for name in ("value_types", "type") if seen.get(name)]
        return {**seen, **{name: _bare(seen[name]) for name in names}}

    return each_worker(case, changed)


def _bare(types: Json) -> Json:
    if isinstance(types, dict):
        return {"structure": _bare(types["structure"])}
    return "EagerTensor" if isinstance(types, str) else ["EagerTensor"]


def _integer_mean(case: Json) -> Json:
    def changed(seen: Json) -> Json:
        result = seen.get("result", {})
        if case.get("reduce_op") != "MEAN" or result.get("d") != "float64":
            return seen
        rounded = np.float32(result["v"]).tolist()
        return {**seen, "result": {**result, "d": "float32", "v": rounded}}

    return each_worker(case, changed)


def _no_default_context(case: Json) -> Json:
    def changed(seen: Json) -> Json:
        contexts = seen.get("contexts_seen")
        if contexts is None:
            return seen
        outside = {**contexts["outside"], "replica_context_is_none": True}
        return {**seen, "contexts_seen": {**contexts, "outside": outside}}

    return each_worker(case, changed)


def _our_options(case: Json) -> Json:
    """The options that TensorFlow alone has, numbers of enums and other constants."""
    if case["kind"] != "input_options_defaults":
        return case

    def ours(options: Json) -> Json:
        names = ("fetch_to_device", "replication_mode", "per_replica_buffer_size")
        return {name: options[f"experimental_{name}"] for name in names}

    def changed(seen: Json) -> Json:
        return {
            "defaults": ours(seen["defaults"]),
            "fetch_false": ours(seen["fetch_false"]),
            "auto_shard_policy": sorted({*seen["auto_shard_policy"]} - {"HINT"}),
            "default_policy": seen["default_policy"],
            "replication_modes": seen["replication_modes"],
        }

    return each_worker(case, changed)


ROWS: tuple[tuple[str, str, Callable[[Json], Json]], ...] = (
    ("one spec", "a leaf has one spec, the same for any R (Zero rows)", _one_spec),
    ("ragged is jagged", "a ragged batch is a jagged tensor", _ragged_is_jagged),
    (
        "no spec without examples",
        "an empty source has shown no structure to anybody (Zero rows)",
        _no_spec_without_examples,
    ),
    (
        "measured dimensions",
        "sizes are seen in the data, not in a graph (Zero rows)",
        _measured_dimensions,
    ),
    (
        "bare for one replica",
        "with R = 1 a leaf is the bare value, for any W (Steps)",
        _bare_for_one_replica,
    ),
    ("integer mean", "integers average to float32 (Steps)", _integer_mean),
    (
        "no default context",
        "outside run() there is no replica context (Steps)",
        _no_default_context,
    ),
    ("our options", "the closed list of options; no HINT (Steps)", _our_options),
)

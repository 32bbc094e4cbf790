"""Expected against observed: a list of differences in words, empty where they agree.

Values are compared as JSON text, so 1 is not 1.0, 0.0 is not -0.0 and a dtype is never guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from tests.golden.errors import accepted, error_of
from tests.golden.values import Json, is_leaf, map_leaves

PLAIN = (
    *("num_replicas_in_sync", "contexts", "value_types", "type", "contexts_seen"),
    *("local_results", "run_results", "result", "ids", "num", "calls", "total", "steps"),
    *("sizes", "defaults", "fetch_false", "auto_shard_policy", "default_policy"),
    "replication_modes",
)
"""Keys of an observation that are compared as they are."""

SPECS = ("element_spec", "iterator_element_spec")

UNCOMPARED = {
    *("phase", "source_spec", "dataset_type", "inferred_batch_size", "cardinality"),
    *("partial_batch_handling", "len", "element_spec_repr"),
}
"""Keys about TensorFlow's objects, not about what is delivered."""

COMPARED = {*PLAIN, *SPECS, "rows", "error", "epochs"}


def differences(case: Json, observed: Sequence[Json]) -> list[str]:
    """Compare all workers of a case whose expected side the rules have rewritten."""
    expected = case["expected"]
    if len(expected) != len(observed):
        return [f"expected {len(expected)} workers, got {len(observed)}"]
    found = [
        f"worker {worker}: {difference}"
        for worker, (want, got) in enumerate(zip(expected, observed, strict=True))
        for difference in _of_worker(case, want, got)
    ]
    return [*found, *_in_step(observed), *_multisets(case, observed)]


def _of_worker(case: Json, want: Json, got: Json) -> Iterator[str]:
    failed = error_of(got)
    if failed is not None and error_of(want) is None:
        yield f"expected no error, got {failed['type']}: {failed['message']}"
        return
    for key in PLAIN:
        if key in want and _text(want[key]) != _text(got.get(key)):
            yield f"{key}: expected {_text(want[key])}, got {_text(got.get(key))}"
    unknown = {*want} - COMPARED - UNCOMPARED
    if unknown:
        yield f"recorded, and not compared: {sorted(unknown)}"
    for number, (row, other) in enumerate(_pairs(want, got)):
        yield from (f"row {number}: {text}" for text in _row(row, other))
    if error_of(want) is not None:
        yield from _errors(want, got)
    elif "epochs" in want:
        yield from _epochs(case, want["epochs"], got["epochs"])
        yield from _specs(want, got)


def _pairs(want: Json, got: Json) -> list[tuple[Json, Json]]:
    rows, others = want.get("rows", []), got.get("rows", [])
    return list(zip(rows, [*others, *[{}] * len(rows)], strict=False))


def _row(want: Json, got: Json) -> Iterator[str]:
    if "error" in want:
        yield from _errors(want, got)
    elif _text(want) != _text(got):
        yield f"expected {_text(want)}, got {_text(got)}"


def _errors(want: Json, got: Json) -> Iterator[str]:
    """The kind of error, and the steps before it: at least what TensorFlow delivered.

    Exactly what is expected where a rule knows the step.
    """
    error, raised = error_of(want) or {}, error_of(got)
    if raised is None:
        yield f"expected an error ({_text(error)}), got none"
        return
    names = accepted(error)
    if not set(names) & {*raised["kinds"]}:
        yield f"expected {' or '.join(names)}, got {raised['type']}: {raised['message']}"
    before, delivered = _all_steps(want), _all_steps(got)
    compared = delivered if error.get("exact") else delivered[: len(before)]
    if _text(before) != _text(compared):
        yield f"before the error: expected {_text(before)}, got {_text(delivered)}"


def _in_step(observed: Sequence[Json]) -> Iterator[str]:
    """Whatever happened, it happened to all workers at the same step."""
    counts = [len(_all_steps(got)) for got in observed]
    if len(set(counts)) > 1:
        yield f"the workers delivered different numbers of steps: {counts}"


def _all_steps(seen: Json) -> list[Json]:
    return [step for epoch in seen.get("epochs", ()) for step in epoch["steps"]]


def _epochs(case: Json, want: Json, got: Json) -> Iterator[str]:
    if len(want) != len(got):
        yield f"expected {len(want)} epochs, got {len(got)}"
    for number, (expected, observed) in enumerate(zip(want, got, strict=False)):
        for difference in _epoch(expected, observed, by_shape="compare" in case):
            yield f"epoch {number}: {difference}"


def _epoch(want: Json, got: Json, *, by_shape: bool) -> Iterator[str]:
    steps, others = want["steps"], got["steps"]
    if len(steps) != len(others):
        yield f"expected {len(steps)} steps, got {len(others)}: {_text(others)}"
    for number, (step, other) in enumerate(zip(steps, others, strict=False)):
        expected = list(map(_shape, step)) if by_shape else step
        observed = list(map(_shape, other)) if by_shape else other
        if _text(expected) != _text(observed):
            yield f"step {number}: expected {_text(expected)}, got {_text(observed)}"
    if want["end"]["event"] != got["end"]["event"]:
        yield f"end: expected {want['end']['event']}, got {got['end']['event']}"
    for key in ("has_value", "past_end"):
        if want.get(key) != got.get(key):
            yield f"{key}: expected {want.get(key)}, got {got.get(key)}"
    if "empty_get_value_error" in want:
        names, raised = accepted(want["empty_get_value_error"]), got.get("empty_get_value_error")
        if not raised or not set(names) & {*raised["kinds"]}:
            yield f"get_value() on empty: expected {' or '.join(names)}, got {_text(raised)}"


def _specs(want: Json, got: Json) -> Iterator[str]:
    """Dtypes and trailing dimensions; ours leave the first one open always."""
    for key in SPECS:
        wanted = want.get(key, {})
        if "error" in wanted:
            yield from (f"{key}: {text}" for text in _errors(wanted, got[key]))
        elif wanted and not _fits(wanted, got[key]):
            yield f"{key}: expected {_text(want[key])}, got {_text(got[key])}"


def _fits(want: Json, got: Json) -> bool:
    if is_leaf(want):
        return is_leaf(got) and want["d"] == got["d"] and _sizes_fit(want["s"], got["s"])
    for kind in ("tuple", "dict"):
        if kind in want:
            names = want[kind].keys() if kind == "dict" else range(len(want[kind]))
            same = kind in got and len(got[kind]) == len(names)
            return same and all(_fits(want[kind][name], got[kind][name]) for name in names)
    return bool(want == got)


def _sizes_fit(want: Json, got: Json) -> bool:
    if len(want) != len(got):
        return False
    allowed = [size["one_of"] if isinstance(size, dict) else [size] for size in want[1:]]
    return all(size in sizes for size, sizes in zip(got[1:], allowed, strict=True))


def _multisets(case: Json, observed: Sequence[Json]) -> Iterator[str]:
    """Where the order is TensorFlow's random numbers: the same values, per worker or over all."""
    how = case.get("compare")
    if how is None or any(error_of(seen) for seen in observed):
        return
    want, got = _groups(how, case["expected"]), _groups(how, observed)
    for name in want:
        if want[name] != got.get(name):
            yield f"values of {name}: expected {want[name]}, got {got.get(name)}"


def _groups(how: str, seen: Sequence[Json]) -> dict[str, list[str]]:
    """Sorted values by what keeps them together."""
    groups: dict[str, list[str]] = {}
    for worker, observation in enumerate(seen):
        for number, epoch in enumerate(observation["epochs"]):
            name = {
                "multiset_per_epoch": f"epoch {number}",
                "multiset_global": "all epochs",
                "multiset_per_worker": f"worker {worker}",
            }[how]
            rows = groups.setdefault(name, [])
            for value in (value for step in epoch["steps"] for value in step):
                map_leaves(lambda leaf, rows=rows: rows.extend(map(_text, leaf["v"])), value)
    return {name: sorted(rows) for name, rows in groups.items()}


def _shape(value: Json) -> Json:
    return map_leaves(lambda leaf: {"d": leaf["d"], "s": leaf["s"]}, value)


def _text(value: Json) -> str:
    return json.dumps(value, sort_keys=True)

"""The optimizer's state in torch's format, whole, joined from the servers' shards and cut for them.

servers                                  whole
exp_avg of rows 0-5, of rows 5-10   <->  exp_avg of rows 0-10
step 7, step 7                      <->  step 7
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torch_distinput.coordinator.parameters.description import ModuleRecipe
from torch_distinput.coordinator.parameters.placement import ParameterShard, ParameterSpec
from torch_distinput.errors import ConfigurationError

_DECOUPLED = "decoupled_weight_decay"


def check_state(state_dict: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what ``state_dict()`` returned, or what looks so.

    Raises:
        ConfigurationError: a part is missing.
    """
    _check_keys(
        "a state",
        {"model", "optimizer"},
        state_dict,
        ", or {'model': module.state_dict(), 'optimizer': optimizer.state_dict()}",
    )
    optimizer = state_dict["optimizer"]
    _check_keys("an optimizer's state", {"param_groups", "state"}, optimizer, "", allows_more=True)
    return state_dict


def _check_keys(
    what: str, keys: set[str], given: object, alternative: str, *, allows_more: bool = False
) -> None:
    """Refuse what has not these keys; an optimizer of the user's may add some to its state."""
    is_known = isinstance(given, Mapping) and keys <= given.keys()
    if not is_known or not (allows_more or keys == given.keys()):  # type: ignore[attr-defined]
        found = sorted(map(str, given)) if isinstance(given, Mapping) else type(given)
        first, second = sorted(keys)
        msg = (
            f"Expected {what} with the keys {first!r} and {second!r}, got {found}. Pass what "
            f"state_dict() has returned{alternative}."
        )
        raise ConfigurationError(msg)


def list_settings(group: Mapping[str, Any]) -> frozenset[str]:
    """The settings of a group that an optimizer cannot do without, by name: its numbers.

    Not flags, of which releases of torch add more. But one, which is all that Adam and AdamW differ
    in.
    """
    kinds = (int, float, tuple, torch.Tensor)
    numbers = {
        name
        for name, value in group.items()
        if isinstance(value, kinds) and not isinstance(value, bool)
    }
    return frozenset(numbers | ({_DECOUPLED} if group.get(_DECOUPLED) else set()))


def join_optimizer(
    recipe: ModuleRecipe,
    states: Mapping[int, Mapping[str, Any]],
    groups: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return ``optimizer.state_dict()``, as of an optimizer of ``module.parameters()``.

    Args:
        recipe: where the shards are.
        states: per shard what the optimizer keeps of it; none for one without a gradient so far.
        groups: the optimizer's groups, without parameters.

    Raises:
        ConfigurationError: the shards' states do not fit together.
    """
    numbers = number_names(recipe)
    whole = {
        number: _join_one(recipe, name, states)
        for name, number in numbers.items()
        if any(index in states for index, _ in recipe.shards_of(name))
    }
    return {
        "state": whole,
        "param_groups": [
            {**group, "params": [numbers[name] for name in names]}
            for group, names in zip(groups, recipe.groups, strict=True)
        ],
    }


def split_optimizer(
    recipe: ModuleRecipe, state: Mapping[str, Any]
) -> tuple[dict[int, dict[str, Any]], list[dict[str, Any]]]:
    """Return what :func:`join_optimizer` was given, for the shards of this recipe.

    Raises:
        ConfigurationError: the state is of another optimizer or module.
    """
    sizes = [len(group["params"]) for group in state["param_groups"]]
    if sizes != [len(names) for names in recipe.groups]:
        msg = (
            f"Expected the state of an optimizer with {list(map(len, recipe.groups))} parameters "
            f"in its groups, got one with {sizes}. Load it with the module_fn and optimizer_fn "
            "that it was saved with."
        )
        raise ConfigurationError(msg)
    for own, group in zip(recipe.settings, state["param_groups"], strict=True):
        # More may be a scheduler's, a value of another kind JSON's. Older torch had no such flag.
        odd = set(own - group.keys() - {_DECOUPLED})
        is_decoupled = _DECOUPLED in own
        if bool(group.get(_DECOUPLED, is_decoupled)) != is_decoupled:
            odd.add(_DECOUPLED)
        if odd:
            msg = (
                f"Expected the state of an optimizer with the settings {sorted(own)}, got one that "
                f"differs in {sorted(odd)}. Load it with the optimizer_fn that it was saved with."
            )
            raise ConfigurationError(msg)
    # A state that torch has saved numbers the parameters as they come, and need not do so.
    saved = [number for group in state["param_groups"] for number in group["params"]]
    names = [name for names in recipe.groups for name in names]
    specs = {spec.name: spec for spec in recipe.description.parameters}
    shards = {
        index: _split_one(state["state"][number], specs[name], shard)
        for number, name in zip(saved, names, strict=True)
        if number in state["state"]
        for index, shard in recipe.shards_of(name)
    }
    groups = [
        {key: value for key, value in group.items() if key != "params"}
        for group in state["param_groups"]
    ]
    return shards, groups


def number_names(recipe: ModuleRecipe) -> dict[str, int]:
    """What torch calls each parameter in a state: its number over all groups."""
    return {
        name: number
        for number, name in enumerate(name for names in recipe.groups for name in names)
    }


def _join_one(
    recipe: ModuleRecipe, name: str, states: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    shards = recipe.shards_of(name)
    kept = [states.get(index, {}) for index, _ in shards]
    if len(shards) == 1:
        return dict(kept[0])
    joined = {}
    for key in kept[0]:
        values = [one.get(key) for one in kept]
        lengths = [shard.stop - shard.start for _, shard in shards]
        joined[key] = _join_values(f"{key!r} of {name!r}", values, lengths)
    return joined


def _join_values(what: str, values: list[Any], lengths: list[int]) -> Any:
    if all(isinstance(one, torch.Tensor) and one.ndim for one in values):
        if [len(one) for one in values] == lengths:
            return torch.cat(values)
    elif all(_is_same(values[0], one) for one in values):
        return values[0]
    shown = [tuple(one.shape) if isinstance(one, torch.Tensor) else one for one in values]
    msg = (
        f"Expected an optimizer that keeps numbers or a row for each row, got {shown} as {what} "
        f"on servers with {lengths} rows. Use a partitioner that leaves this parameter whole."
    )
    raise ConfigurationError(msg)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return bool(torch.equal(one, other))
    return type(one) is type(other) and bool(one == other)


def _split_one(
    state: Mapping[str, Any], spec: ParameterSpec, shard: ParameterShard
) -> dict[str, Any]:
    if shard.is_whole:
        return dict(state)
    return {key: _split_value(value, spec, shard) for key, value in state.items()}


def _split_value(value: Any, spec: ParameterSpec, shard: ParameterShard) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if not value.ndim:
        return value.clone()  # each shard counts its steps by itself: one tensor would count double
    if len(value) != spec.num_rows:
        msg = (
            f"Expected an optimizer that keeps numbers or {spec.num_rows} rows for {spec.name!r}, "
            f"got {tuple(value.shape)}. Use a partitioner that leaves this parameter whole."
        )
        raise ConfigurationError(msg)
    if value.is_sparse:
        rows = torch.arange(shard.start, shard.stop, device=value.device)
        return value.index_select(0, rows)
    return shard.cut(value)

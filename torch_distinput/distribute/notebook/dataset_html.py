"""A dataset as a notebook shows it, from its recipe alone: nothing is read, no rank is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from torch_distinput.options import AutoShardPolicy, Rebatch
from torch_distinput.plan.assignment.batching import Splitter
from torch_distinput.plan.assignment.sharding import SHARES_STREAM
from torch_distinput.plan.assignment.topology import Topology
from torch_distinput.plan.progress.position import Position
from torch_distinput.rendering.lanes import MOST_LANES
from torch_distinput.rendering.notebook import caption, draw_plan, facts, show
from torch_distinput.rendering.units import show_count

_CAPTIONS = {
    "data": "A full step: the rows of a global batch, in the order of the epoch.",
    "file": "A full step: each rank takes its rows from files or shards of its own.",
    "off": "A full step: each rank plays all of the source, in its own order.",
}


def show_dataset(
    name: str,
    recipe: Mapping[str, object],
    topology: Topology,
    find_position: Callable[[], Position],
) -> str:
    """Return what a notebook shows.

    Args:
        name: of the source.
        recipe: how it is cut, as ``repr`` prints it too.
        topology: over which it is distributed.
        find_position: tells where the next ``iter()`` starts.
    """
    return show(
        f"DistributedDataset({name})",
        lambda: facts(_describe(recipe, topology)),
        lambda: facts([("next iter()", _place(find_position()))]),
        lambda: _draw(recipe, topology),
    )


def _describe(recipe: Mapping[str, object], topology: Topology) -> list[tuple[str, object]]:
    pairs = [(key, value) for key, value in recipe.items() if key != "source"]
    return [*pairs, ("workers", topology.num_workers)]


def _place(position: Position) -> str:
    if not position.steps:
        return f"epoch {position.epoch}"
    steps, examples = show_count(position.steps, "step"), show_count(position.examples, "example")
    return f"epoch {position.epoch}, after {steps} ({examples})"


def _draw(recipe: Mapping[str, object], topology: Topology) -> str:
    """A picture where a full batch has a number of examples that are cut by a rule alone."""
    size, policy = recipe.get("global_batch_size"), str(recipe.get("auto_shard_policy"))
    if not isinstance(size, int) or "balance" in recipe:
        return ""
    shown = min(topology.num_workers, MOST_LANES)
    shared = SHARES_STREAM[AutoShardPolicy(policy)]
    splitter = Splitter(
        topology=topology,
        rebatch=Rebatch(str(recipe["rebatch"])),
        global_batch_size=size,
        shared=shared,
    )
    seen = (replace(topology, worker_index=worker) for worker in range(shown))
    sizes = [replace(splitter, topology=one).cut(size)[0].sizes for one in seen]
    hidden = (topology.num_workers - shown) * topology.replicas_per_worker
    picture = draw_plan(sizes, is_numbered=shared, num_hidden=hidden)
    return caption(_CAPTIONS[policy]) + picture

"""From what the caller wrote to a DistributedDataset: the one place where the stages are joined."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch_distinput.cluster.launch import count_ranks
from torch_distinput.data.sources import split_sources
from torch_distinput.data.sources.classify import is_stream
from torch_distinput.data.sources.resolve import open_source
from torch_distinput.data.sources.source import (
    IndexedSource,
    ReadySource,
    Request,
    Source,
    StreamSource,
)
from torch_distinput.data.sources.source_warnings import warn_of_source
from torch_distinput.data.steps.padding import Padding
from torch_distinput.data.user_sources import state_version_1
from torch_distinput.data.user_sources.bookmark import refuse_begun
from torch_distinput.data.user_sources.parts import find_part_out_of_order
from torch_distinput.data.user_sources.sequences.length import Length
from torch_distinput.data.user_sources.sequences.padded_cost import PaddedCost
from torch_distinput.device.backend import host_memory
from torch_distinput.distribute.dataset import DistributedDataset
from torch_distinput.distribute.epoch_warnings import find_first_order
from torch_distinput.distribute.static_shapes import choose_partial_batch
from torch_distinput.engine.indexed_input import IndexedInput
from torch_distinput.engine.input import Input
from torch_distinput.errors import ConfigurationError
from torch_distinput.meter import WorkClock
from torch_distinput.options import (
    AutoShardPolicy,
    InputOptions,
    PartialBatch,
    Rebatch,
    check_count,
    check_function,
)
from torch_distinput.plan.assignment.batching import Splitter
from torch_distinput.plan.assignment.sharding import SHARES_STREAM, resolve_policy
from torch_distinput.plan.assignment.topology import InputContext
from torch_distinput.plan.progress.parts import BY_SHARD, DEALING

if TYPE_CHECKING:
    from torch_distinput.data.sources.sequences.balance import Balance
    from torch_distinput.distribute.session import Session

_log = logging.getLogger(__name__)
_LARGEST_SEED = 2**64 - 1


def build_dataset(
    session: Session,
    source: Any,
    request: Request,
    *,
    seed: int,
    options: InputOptions,
    cost: Length | PaddedCost | None,
) -> DistributedDataset:
    """Shard, cut and agree on a source."""
    _refuse_per_replica(options)
    seed = _check_seed(seed)
    opened = open_source(source, _with_memory(request, session, options))
    policy = _choose_policy(source, opened, options)
    refuse_begun(source, is_dealt=policy is AutoShardPolicy.FILE)
    _check_split(session, source, policy)
    splitter = Splitter(
        topology=session.topology,
        rebatch=_rebatch(options, opened),
        global_batch_size=opened.request.size,
        shared=SHARES_STREAM[policy],
    )
    padding = _padding(options, session, splitter, opened.name)
    balance = None
    if cost is not None:
        from torch_distinput.data.sources.sequences.balance import make_balance  # noqa: PLC0415 - as in _input

        is_bounded = padding is not None and not padding.grows
        balance = make_balance(cost, opened, splitter, policy, is_bounded=is_bounded)
    opened, dealing = _deal_by_shard(opened, policy)
    if session.is_first:
        warn_of_source(source, opened.request, policy, session.topology.num_workers)
    recipe: dict[str, object] = {
        "source": opened.kind,
        "shuffle": opened.request.shuffle,
        "seed": seed,
        "auto_shard_policy": policy.value,
        **dealing,
    }
    return DistributedDataset(
        session,
        _input(opened, splitter, policy, seed, options=options, balance=balance),
        name=opened.name,
        recipe=recipe,
        facts=_facts(opened, session, options, balance),
        options=options,
        padding=padding,
        order=find_first_order(session.first_orders, source, opened.request, seed),
    )


def _choose_policy(source: Any, opened: Source, options: InputOptions) -> AutoShardPolicy:
    asked = AutoShardPolicy(options.auto_shard_policy)
    if asked is AutoShardPolicy.FILE:
        from torch_distinput.data.sources.mixing.mixed_sources import check_policy  # noqa: PLC0415 - as in _input

        check_policy(source, asked)
    return resolve_policy(asked, has_shards=opened.has_shards, source=opened.name)


def build_from_function(
    session: Session, dataset_fn: Callable[[InputContext], Any], *, options: InputOptions
) -> DistributedDataset:
    """Call ``dataset_fn`` for each of this worker's pipelines and play what it returns."""
    from torch_distinput.engine.batch_steps import play_datasets  # noqa: PLC0415 - as in _input
    from torch_distinput.engine.streamed_input import StreamedInput  # noqa: PLC0415

    check_function("dataset_fn", dataset_fn, "an InputContext")
    topology = session.topology
    splitter = Splitter(
        topology=topology, rebatch=Rebatch.SPLIT, global_batch_size=None, shared=False
    )
    name = getattr(dataset_fn, "__name__", "dataset_fn")
    padding = _padding(options, session, splitter, name)
    per_worker = 1 if options.replication_mode == "per_worker" else topology.replicas_per_worker
    num_pipelines = topology.num_workers * per_worker
    datasets = [
        dataset_fn(
            InputContext(
                num_input_pipelines=num_pipelines,
                input_pipeline_id=topology.worker_index * per_worker + pipeline,
                num_replicas_in_sync=topology.num_replicas_in_sync,
            )
        )
        for pipeline in range(per_worker)
    ]
    for dataset in datasets:
        _check_replica_batches(session, dataset, num_pipelines)
    steps = play_datasets(datasets, splitter)
    clock = None if options.trace is False else WorkClock()
    read = state_version_1.read_streams
    return DistributedDataset(
        session,
        StreamedInput(lambda: steps, splitter, read_version_1=read, clock=clock),
        name=name,
        recipe={"source": "dataset_fn"},
        facts={"replicas per worker": topology.replicas_per_worker},
        options=options,
        padding=padding,
    )


def _check_replica_batches(session: Session, dataset: Any, num_pipelines: int) -> None:
    _check_playable(dataset)
    refuse_begun(dataset, is_dealt=False)
    split_sources.check_replica_batches(
        dataset,
        num_pipelines,
        num_workers=session.topology.num_workers,
        num_ranks=count_ranks(),
        is_alone=session.is_alone,
    )


def _facts(
    source: Source, session: Session, options: InputOptions, balance: Balance | None
) -> dict[str, object]:
    """What must be equal on all workers."""
    request = source.request
    return {
        "replicas per worker": session.topology.replicas_per_worker,
        "global_batch_size": request.size,
        "drop_last": request.drop_last,
        "rebatch": options.rebatch,
        "partial_batch": _partial_batch(options, session).value,
        **({"audit": True} if options.audit else {}),
        **({} if balance is None else balance.facts),
        **_padding_facts(source),
    }


def _padding_facts(source: Source) -> dict[str, object]:
    """Workers that pad to the longest row of a step ask each other how long it is."""
    if isinstance(source, IndexedSource):
        is_padded = source.padded_lengths is not None
    else:
        is_padded = isinstance(source, StreamSource) and source.step_padding is not None
    return {"pad_collate(longest_of=)": "step"} if is_padded else {}


def _refuse_per_replica(options: InputOptions) -> None:
    """As TensorFlow does."""
    if options.replication_mode == "per_replica":
        msg = (
            'replication_mode="per_replica" is for distribute_datasets_from_function; '
            "distribute_dataset reads once per worker. Leave replication_mode out."
        )
        raise NotImplementedError(msg)


def _with_memory(request: Request, session: Session, options: InputOptions) -> Request:
    """What is gathered here is gathered where the devices can read it; not in loader processes."""
    memory = host_memory(session.devices) if options.fetch_to_device else None
    if memory is None or request.num_workers:
        return request
    return replace(request, allocate=memory)


def _check_split(session: Session, source: Any, policy: AutoShardPolicy) -> None:
    split_sources.check_source(
        source,
        policy,
        session.topology.num_workers,
        num_ranks=count_ranks(),
        is_alone=session.is_alone,
    )


def _deal_by_shard(source: Source, policy: AutoShardPolicy) -> tuple[Source, dict[str, str]]:
    """Let shards be dealt out, or ordered, one by one, and say so; else the source as it is."""
    by_shard = source.by_shard if isinstance(source, StreamSource) else None
    if by_shard is None or not (policy is AutoShardPolicy.FILE or source.request.shuffle):
        return source, {}
    if policy is AutoShardPolicy.DATA:
        msg = (
            "shuffle=True orders the shards of a stream that are dealt out "
            f"(AutoShardPolicy.FILE) or that each worker plays (OFF), got {source.name} with "
            "AutoShardPolicy.DATA, under which it is one stream in its own order. Use FILE, or "
            "leave shuffle=True out."
        )
        raise ConfigurationError(msg)
    assert isinstance(source, StreamSource), "no other has shards"
    return replace(source, prepare=by_shard), {DEALING: BY_SHARD}


def _check_seed(seed: int) -> int:
    number = check_count("seed", seed, minimum=0)
    if number > _LARGEST_SEED:
        msg = f"seed must be below 2**64, got {number}."
        raise ValueError(msg)
    return number


def _rebatch(options: InputOptions, source: Source) -> Rebatch:
    rebatch = Rebatch(options.rebatch)
    request = source.request
    if rebatch is Rebatch.CYCLE and not isinstance(request.size, int):
        got = request.budget or f"a source of ready batches ({source.name})"
        msg = (
            'rebatch="cycle" needs global_batch_size, the number of examples of a full batch, got '
            f'{got}. Use "split" or "even", or pass examples and their number.'
        )
        raise ConfigurationError(msg)
    return rebatch


def _partial_batch(options: InputOptions, session: Session) -> PartialBatch:
    return choose_partial_batch(options, has_static_shapes=session.has_static_shapes)


def _padding(
    options: InputOptions, session: Session, splitter: Splitter, name: str
) -> Padding | None:
    """What every replica batch is filled up to; None where its rows are its examples."""
    if _partial_batch(options, session) is PartialBatch.ZERO_ROWS:
        return None
    if isinstance(splitter.global_batch_size, int):
        return Padding(num_rows=splitter.most_rows)
    if session.has_static_shapes:
        return Padding(num_rows=0, grows=True, name=name)
    msg = (
        'partial_batch="pad" needs global_batch_size, a number of examples from which the rows of '
        f"a replica batch follow, got {name}, whose batches have sizes of their own. Pass "
        "examples, or their stream, with global_batch_size= (or a DataLoader with batch_size= over "
        'a dataset with an index), or use "zero_rows".'
    )
    raise ConfigurationError(msg)


def _input(
    source: Source,
    splitter: Splitter,
    policy: AutoShardPolicy,
    seed: int,
    *,
    options: InputOptions,
    balance: Balance | None,
) -> Input:
    clock = None if options.trace is False else WorkClock()
    if isinstance(source, IndexedSource):
        if clock is not None:
            from torch_distinput.data.steps.timing.timed_steps import time_fetch  # noqa: PLC0415 - as below

            source = replace(source, fetch=time_fetch(source.fetch, clock), clock=clock)
        dealer = None
        if balance is not None:
            from torch_distinput.data.steps.balanced import ExampleDealer  # noqa: PLC0415 - as below

            dealer = ExampleDealer(balance, source)
        return IndexedInput(source, splitter, seed=seed, dealer=dealer)
    # Imported here, because columns and datasets with an index need none of it.
    from torch_distinput.engine.batch_steps import ReadySteps  # noqa: PLC0415
    from torch_distinput.engine.example_steps import find_examples  # noqa: PLC0415
    from torch_distinput.engine.streamed_input import StreamedInput  # noqa: PLC0415
    from torch_distinput.plan.progress.route import Route  # noqa: PLC0415

    route = Route(splitter=splitter, policy=policy, seed=seed, audited=options.audit)
    if isinstance(source, ReadySource):
        steps = ReadySteps(source=source, route=route)
        read = partial(state_version_1.read_flat, state_version_1.BATCHES)
        return StreamedInput(lambda: steps, splitter, read_version_1=read, clock=clock)
    find = partial(find_examples, source, route, balance)
    return StreamedInput(
        find,
        splitter,
        read_version_1=source.read_version_1,
        clock=clock,
        has_one_kind=source.request.has_one_kind,
    )


def _check_playable(dataset: Any) -> None:
    if not is_stream(dataset):
        msg = (
            "dataset_fn must return replica batches that can be iterated once per epoch (a "
            "DataLoader, an IterableDataset, a list, or a generator function), got "
            f"{type(dataset).__name__}. Return the function instead of the generator it makes."
        )
        raise TypeError(msg)
    if (part := find_part_out_of_order(dataset)) is not None:
        _log.warning(
            "dataset_fn returned batches of a %s with in_order=False, which overtake each other: "
            "after a restart from a state some would be lost and others come twice. Leave in_order "
            "out, if you save states.",
            type(part).__name__,
        )

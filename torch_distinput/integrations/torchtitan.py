"""torchtitan: a dataloader for its Trainer that ends exactly and resumes on another degree.

    config.dataloader = DistributedDataLoader.Config(source_fn=read_rows, global_batch_size=512)

The Trainer takes the micro-batches of one optimizer step and then trains on them. Where data ends
inside a step it gives the step up, with the micro-batches that it has taken. So the last step of an
epoch is filled up with micro-batches whose labels are ignored: they add nothing to the loss, which
torchtitan divides by the valid labels of all ranks. Data that repeats is no exception: a step of
two epochs would have other rows on another number of ranks.

    optimizer step         0        1        2
    micro-batch            0  1  2  3  4  5  6  -  -      3 for each step
    rows with labels       4  4  4  4  4  4  2  0  0      4 for each micro-batch

The state is that of the micro-batch given last. The Trainer saves between optimizer steps, when it
has trained on all that was given.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Annotated, Any, final

import torch
import tyro

import torch_distinput as tdi
from torch_distinput.integrations.versions import check_version

try:  # where it lies behind 0.3
    from torchtitan.components.data.loader import BaseDataLoader
except ImportError:
    from torchtitan.components.dataloader import BaseDataLoader

IGNORE_INDEX = -100
"""The label that torchtitan does not count."""
_STATE = "torch_distinput"

MicroBatch = tuple[dict[str, Any], torch.Tensor]


@final
class DistributedDataLoader(BaseDataLoader):  # type: ignore[misc] # torchtitan has no types
    """Plays a source in torchtitan's Trainer or Validator, every example once in an epoch.

    Made by ``Config.build()``, on all ranks. An example is a row of tokens: a pair of a dict with
    ``"input"`` (and more, such as ``"positions"``) and the labels, as in torchtitan's own datasets,
    or one dict in which ``"labels"`` lie beside them. What it gives is in host memory; rows without
    an example have labels of -100. Ranks that differ in tensor, context or pipeline parallelism
    only get the same.

    Torchtitan 0.3 asks for rows: tensors of shape ``(local_batch_size, seq_len)``. Later versions
    ask for tokens: shape ``(num_tokens_per_batch,)``, made of rows of ``max_context_length``.

    Args:
        config: what is read, and how.
        dp_world_size: ranks over which data is parallel.
        dp_rank: which of them this rank is.
        build: what else torchtitan passes to its dataloaders.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """What is read, and how; on the command line: numbers and flags.

        Attributes:
            source_fn: called as ``source_fn(tokenizer, seq_len)`` on every rank; returns what
                ``Strategy.distribute_dataset`` takes.
            global_batch_size: examples of an optimizer step over all ranks, as torchtitan's
                ``training.global_batch_size``, -1 included; for a Validator, of a validation
                step. Needed where data ends, so that the last step of an epoch can be filled up.
            shuffle: whether each epoch has an order of its own.
            seed: of the orders.
            num_workers: loader processes on each rank.
            num_threads: threads instead, where the work releases the interpreter lock.
            infinite: whether another epoch follows the last row; None is True. False ends the
                training with the epoch.
            repeat: the same under the name that torchtitan has given it after 0.3. Its Validators
                set the name of their version, which comes first there.
            options: how it is read; batches are padded and stay in host memory whatever it says.
        """

        source_fn: Annotated[Callable[..., Any], tyro.conf.Suppress]
        global_batch_size: int | None = None
        shuffle: bool = False
        seed: int = 0
        num_workers: int = 0
        num_threads: int = 0
        infinite: bool | None = None
        repeat: bool | None = None
        options: Annotated[tdi.InputOptions | None, tyro.conf.Suppress] = None
        _strategies: Annotated[dict[Any, tdi.Strategy], tyro.conf.Suppress] = field(
            default_factory=dict, repr=False, compare=False
        )  # shared by the copies from which a Validator builds a loader for each validation

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, **build: Any) -> None:
        check_version("torchtitan", tested="0.3", stacklevel=4)
        _refuse_dataset_name(config)
        self._shape = _Shape.requested(build)
        self._is_endless = self._shape.is_endless(config)
        micro_batch_size = self._shape.num_rows * dp_world_size
        self._group_size = _group_size(config.global_batch_size, micro_batch_size, dp_world_size)
        if self._group_size is None and not self._is_endless:
            msg = (
                "Expected global_batch_size for data that ends, got None: torchtitan abandons "
                "an optimizer step whose micro-batches run out, and the last step can be filled "
                "up only if its size is known. Say what training.global_batch_size says."
            )
            raise tdi.ConfigurationError(msg)
        options = config.options or tdi.InputOptions()
        self._dataset = _strategy(config, dp_rank, dp_world_size).distribute_dataset(
            config.source_fn(build.get("tokenizer"), self._shape.row_length),
            global_batch_size=micro_batch_size,
            shuffle=config.shuffle,
            seed=config.seed,
            num_workers=config.num_workers,
            num_threads=config.num_threads,
            options=dataclasses.replace(options, partial_batch="pad", fetch_to_device=False),
        )
        self._run = _Run()

    def __iter__(self) -> Iterator[MicroBatch]:
        """Play the rest of a loaded epoch, or the next one, from the first ``next()`` on."""
        self.close()
        self._run = run = _Run()
        play = _repeat if self._is_endless else _play
        run.micro_batches = play(self._dataset, self._shape, self._group_size or 1, run)
        return run.micro_batches

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch stands after the micro-batch given last, the same on all ranks.

        One text, so that torch.distributed.checkpoint finds it whatever the degree was.

        Raises:
            UsageError: inside an optimizer step, as ``global_batch_size`` defines it.
        """
        group_size, num_given = self._group_size or 1, self._run.num_given
        if num_given % group_size:
            msg = (
                f"Expected a checkpoint between optimizer steps of {group_size} micro-batches, got "
                f"one after {num_given}: some of them may not be trained yet. Let "
                "global_batch_size of the dataloader say what training.global_batch_size says."
            )
            raise tdi.UsageError(msg)
        return {_STATE: json.dumps(self._dataset.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next ``iter()`` go on where a state was taken, by whatever degree.

        Raises:
            ConfigurationError: a state of another dataloader or of another source.
        """
        if not state:  # torchtitan's loaders take it for a beginning
            return
        if _STATE not in state:
            msg = (
                f"Expected a state of {type(self).__name__}, got one of another dataloader, with "
                f"{sorted(map(str, state))}. Resume with the dataloader that it was saved with, or "
                'begin the epoch again with checkpoint.exclude_from_loading=["dataloader"].'
            )
            raise tdi.ConfigurationError(msg)
        self._dataset.load_state_dict(json.loads(state[_STATE]))

    def close(self) -> None:
        """End the epoch under way, and what reads ahead for it."""
        if self._run.micro_batches is not None:
            self._run.micro_batches.close()


@dataclass(slots=True)
class _Run:
    """One ``iter()``: what it gives, and how many micro-batches it has given."""

    micro_batches: Generator[MicroBatch, None, None] | None = None
    num_given: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shape:
    """What a micro-batch of one rank is like.

    Attributes:
        num_rows: rows of it.
        row_length: tokens of a row; None if torchtitan does not say.
        is_flat: whether the rows lie behind one another in one dimension of tokens.
    """

    num_rows: int
    row_length: int | None
    is_flat: bool

    @classmethod
    def requested(cls, build: dict[str, Any]) -> _Shape:
        """Read it from what torchtitan passes to a dataloader."""
        if "local_batch_size" in build:
            rows, length = build["local_batch_size"], build.get("seq_len")
            return cls(num_rows=rows, row_length=length, is_flat=False)
        if not {"num_tokens_per_batch", "max_context_length"} <= build.keys():
            msg = (
                "Expected local_batch_size and seq_len (torchtitan 0.3), or num_tokens_per_batch "
                f"and max_context_length (after it), got {sorted(build)}. Build the loader from "
                "its Config in torchtitan's Trainer, or pass these."
            )
            raise tdi.ConfigurationError(msg)
        tokens, length = build["num_tokens_per_batch"], build["max_context_length"]
        if tokens % length:
            msg = (
                f"Expected micro-batches of whole rows, got {tokens} tokens for rows of {length}. "
                "Make num_tokens_per_microbatch_per_dp_rank a multiple of max_context_length."
            )
            raise tdi.ConfigurationError(msg)
        return cls(num_rows=tokens // length, row_length=length, is_flat=True)

    def is_endless(self, config: DistributedDataLoader.Config) -> bool:
        """Whether data repeats; the name of this version of torchtitan comes first."""
        old, new = config.infinite, config.repeat
        chosen = [new, old] if self.is_flat else [old, new]
        return next((value for value in chosen if value is not None), True)

    def micro_batch(self, step: tdi.Step) -> MicroBatch:
        """Turn a padded step into what torchtitan trains on."""
        batch, mask = step.batch
        inputs, labels = _inputs_and_labels(batch)
        if step.local_counts[0] < len(mask):
            rows = mask.view(-1, *[1] * (labels.ndim - 1))
            labels = torch.where(rows, labels, IGNORE_INDEX)
        return self._flat(inputs, labels) if self.is_flat else (inputs, labels)

    def _flat(self, inputs: dict[str, Any], labels: torch.Tensor) -> MicroBatch:
        """Put rows behind one another; where each one begins is told by its positions."""
        if labels.shape[1:] != (self.row_length,):
            msg = (
                f"Expected rows of max_context_length={self.row_length} tokens, got labels of "
                f"shape {tuple(labels.shape)}. Let source_fn pack or pad rows to that length."
            )
            raise tdi.ConfigurationError(msg)
        positions = torch.arange(labels.shape[1], device=labels.device).expand(labels.shape)
        inputs = {"positions": positions, **inputs}
        for name, value in inputs.items():
            if isinstance(value, torch.Tensor) and value.shape[:2] == labels.shape:
                inputs[name] = value.flatten(0, 1)
        return inputs, labels.flatten()


def _inputs_and_labels(batch: Any) -> MicroBatch:
    """Take a batch apart, without a change to it: the Trainer writes into the dict of inputs."""
    inputs, labels = batch if isinstance(batch, tuple) and len(batch) == 2 else (batch, None)
    if isinstance(inputs, dict):
        inputs = dict(inputs)
        labels = inputs.pop("labels", None) if labels is None else labels
        is_integer = isinstance(labels, torch.Tensor) and not labels.is_floating_point()
        if "input" in inputs and is_integer:
            # Where there is no sign, a label to be ignored would be one that counts.
            return inputs, labels if labels.dtype.is_signed else labels.long()
    found = sorted(map(str, inputs)) if isinstance(inputs, dict) else type(inputs).__name__
    kind = getattr(labels, "dtype", type(labels).__name__)
    msg = (
        'Expected examples that are a pair of a dict with "input" and a tensor of integer labels, '
        f'or a dict with "input" and "labels", got inputs {found} and labels {kind}. Let source_fn '
        "return such a source."
    )
    raise tdi.ConfigurationError(msg)


def _play(
    dataset: tdi.DistributedDataset, shape: _Shape, group_size: int, run: _Run
) -> Generator[MicroBatch, None, None]:
    """One epoch, or the rest of it; it ends with a whole group."""
    with closing(dataset.steps()) as steps:
        for step in steps:
            inputs, labels = shape.micro_batch(step)
            run.num_given += 1
            yield dict(inputs), labels
    while run.num_given % group_size:
        run.num_given += 1
        yield dict(inputs), torch.full_like(labels, IGNORE_INDEX)


def _repeat(
    dataset: tdi.DistributedDataset, shape: _Shape, group_size: int, run: _Run
) -> Generator[MicroBatch, None, None]:
    """One epoch after another; the first may be the empty rest of one that was saved at its end."""
    yield from _play(dataset, shape, group_size, run)
    while True:
        before = run.num_given
        yield from _play(dataset, shape, group_size, run)
        if run.num_given == before:
            msg = (
                f"Expected data to repeat, but epoch {dataset.epoch - 1} of {dataset} has no "
                "example. Check what source_fn returns."
            )
            raise tdi.ConfigurationError(msg)


def _group_size(
    global_batch_size: int | None, micro_batch_size: int, dp_world_size: int
) -> int | None:
    """Micro-batches of one rank in an optimizer step; None if it is not said."""
    if global_batch_size is None:
        return None
    num_ranks = int(os.environ.get("WORLD_SIZE", dp_world_size))  # torchtitan needs torchrun
    if global_batch_size == -1 and num_ranks == dp_world_size:
        return 1
    is_count = isinstance(global_batch_size, int) and global_batch_size > 0
    if not is_count or global_batch_size % micro_batch_size:
        msg = (
            f"Expected global_batch_size to be a multiple of {micro_batch_size}, the rows of a "
            f"micro-batch times {dp_world_size} data-parallel ranks, got {global_batch_size} on "
            f"{num_ranks} ranks. Say what training.global_batch_size says; where the model is "
            "parallel too, -1 does not tell how many micro-batches a step has."
        )
        raise tdi.ConfigurationError(msg)
    return global_batch_size // micro_batch_size


def _strategy(
    config: DistributedDataLoader.Config, dp_rank: int, dp_world_size: int
) -> tdi.Strategy:
    """The strategy of this rank's data-parallel group, made once."""
    group = tdi.form_data_parallel_group(dp_rank, dp_world_size, compares=True)
    if group is None:
        return tdi.OneDeviceStrategy("cpu")
    made = config._strategies  # noqa: SLF001 - a field that torchtitan neither shows nor saves
    if group not in made:
        made[group] = tdi.MultiWorkerMirroredStrategy(["cpu"], process_group=group)
    return made[group]


def _refuse_dataset_name(config: DistributedDataLoader.Config) -> None:
    """Torchtitan 0.3 has names of datasets on the command line of every loader."""
    named = {name: getattr(config, name, None) for name in ("dataset", "dataset_path")}
    given = {name: value for name, value in named.items() if value}
    if given:
        msg = (
            f"Expected source_fn alone to say what is read, got {given} beside it. Leave that out: "
            "it is for torchtitan's own loaders."
        )
        raise tdi.ConfigurationError(msg)

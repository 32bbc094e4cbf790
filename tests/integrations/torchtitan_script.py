"""Runs torchtitan's Trainer on CPUs, and writes down which examples it has trained and validated.

    torchrun ... torchtitan_script.py FOLDER LEGS

A leg is ``name:steps:load_step``: a Trainer that goes on behind a checkpoint of its name, and ends
after some steps or with the data. Three stand-ins let torchtitan 0.3 run here: for the device,
which it takes for a GPU; for triton, whose kernels it defines and does not call; and for a function
that torch 2.13 lacks.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import time
import types
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import torch
import torch.distributed as dist

VOCABULARY, LENGTH = 64, 4
ROWS, VALIDATION_ROWS = 41, 5
GLOBAL_BATCH_SIZE, LOCAL_BATCH_SIZE = 12, 2


def stand_in():
    """Must come before the imports from torchtitan."""
    if importlib.util.find_spec("triton") is None:
        for asking in ("functorch.compile", "torch._inductor.compile_fx"):
            importlib.import_module(asking)  # whether there is a triton; then there is none
        sys.modules["triton"] = sys.modules["triton.language"] = MagicMock(__spec__=None)
    if not hasattr(dist, "set_timeout"):
        dist.set_timeout = lambda timeout, group: None
    from torchtitan.tools import utils

    device = types.SimpleNamespace(**vars(torch.cpu))
    device.current_device = lambda: 0
    device.get_device_name = lambda device: "cpu"
    device.get_device_properties = lambda device: types.SimpleNamespace(total_memory=1)
    device.memory_stats = lambda device: {}
    device.reset_peak_memory_stats = device.empty_cache = lambda: None
    utils.device_type, utils.device_module = "cpu", device


stand_in()

from torchtitan import trainer  # noqa: E402
from torchtitan.components.checkpointer import CheckpointManager  # noqa: E402
from torchtitan.components.loss import CrossEntropyLoss  # noqa: E402
from torchtitan.components.metrics import MetricsProcessor  # noqa: E402
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.components.validate import Validator  # noqa: E402
from torchtitan.config import ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.models.common import Embedding, Linear  # noqa: E402
from torchtitan.protocols.model import BaseModel  # noqa: E402
from torchtitan.protocols.model_spec import ModelSpec  # noqa: E402

sys.path.append(str(Path(__file__).parents[2] / "examples"))
from torchtitan_config import use_rows  # noqa: E402


class Bigrams(BaseModel):
    """The least that is a model for torchtitan."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseModel.Config):
        def update_from_config(self, *, config, **others):
            pass

        def get_nparams_and_flops(self, model, seq_len):
            return 1, 1

    def __init__(self, config):
        super().__init__()
        init = {"weight": lambda weight: torch.nn.init.constant_(weight, 0.1)}
        sizes = {"num_embeddings": VOCABULARY, "embedding_dim": 8}
        self.embedding = Embedding.Config(**sizes, param_init=init).build()
        sizes = {"in_features": 8, "out_features": VOCABULARY}
        self.output = Linear.Config(**sizes, param_init=init).build()

    def forward(self, tokens, positions=None):
        return self.output(self.embedding(tokens))


class NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, **others):
        super().__init__()

    encode = decode = get_vocab_size = None


def parallelize(model, *, parallel_dims, **others):
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=parallel_dims.get_mesh(["fsdp"]))
    model.set_gradient_divide_factor(1.0)  # torchtitan divides by the labels of all ranks itself
    model.set_force_sum_reduction_for_comms(True)  # what gloo has
    return model


def write_rows(path, count):
    """Rows that are told apart by their tokens; each rank its own file, which are all alike."""
    np.save(path, np.arange(count)[:, None].repeat(LENGTH + 1, axis=1))


def make_config(folder, steps, load_step):
    spec = ModelSpec(
        name="bigrams",
        flavor="tiny",
        model=Bigrams.Config(),
        parallelize_fn=parallelize,
        pipelining_fn=None,
        post_optimizer_build_fn=None,
        state_dict_adapter=None,
    )
    config = trainer.Trainer.Config(
        model_spec=spec,
        dump_folder=str(folder),
        tokenizer=NoTokenizer.Config(),
        loss=CrossEntropyLoss.Config(global_vocab_size=VOCABULARY),
        optimizer=default_adamw(lr=1e-2),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=0),
        metrics=MetricsProcessor.Config(log_freq=1),
        training=TrainingConfig(
            steps=steps,
            seq_len=LENGTH,
            local_batch_size=LOCAL_BATCH_SIZE,
            global_batch_size=GLOBAL_BATCH_SIZE,
            mixed_precision_param="float32",
            disable_cuda_graphs=True,
        ),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),
        checkpoint=CheckpointManager.Config(
            enable=True, interval=2, load_step=load_step, last_save_model_only=False
        ),
        validator=Validator.Config(enable=True, freq=2, steps=-1),
    )
    folder = Path(tempfile.mkdtemp(dir=folder.parent))
    paths = [folder / name for name in ("training.npy", "validation.npy")]
    for path, count in zip(paths, (ROWS, VALIDATION_ROWS), strict=True):
        write_rows(path, count)
    return use_rows(config, *paths)


def noting(loss_fn, note):
    """A loss that notes the rows whose labels count."""

    def compute(predictions, labels, *others, **options):
        note([int(row[0]) for row in labels if (row != -100).any()])
        return loss_fn(predictions, labels, *others, **options)

    return compute


def play(folder, steps, load_step):
    """What one Trainer has trained in each step, what it has validated, and its weights."""
    running = make_config(folder, steps, load_step).build()
    trained, validated = {}, {}
    running.loss_fn = noting(
        running.loss_fn, lambda rows: trained.setdefault(running.step, []).extend(rows)
    )
    running.validator.loss_fn = noting(
        running.validator.loss_fn, lambda rows: validated.setdefault(running.step, []).extend(rows)
    )
    try:
        running.train()
        (model,) = running.model_parts
        model.reshard()
        weights = model.output.weight.full_tensor().flatten().tolist()
    finally:
        running.close()
    return {"trained": trained, "validated": validated, "weights": weights}


def main(folder, legs):
    trainer.time = types.SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda seconds: None)
    told = []
    for leg in legs.split(","):
        name, steps, load_step = leg.split(":")
        told.append(play(Path(folder) / name, int(steps), int(load_step)))
    path = Path(folder) / f"{dist.get_world_size()}_{dist.get_rank()}.json"
    path.write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

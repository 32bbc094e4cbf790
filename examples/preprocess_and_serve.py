"""Analyze files, train on them, and serve a model that takes what the files have: raw values.

    torchrun --standalone --nproc-per-node 2 examples/preprocess_and_serve.py
    python examples/preprocess_and_serve.py --out FOLDER

The files are a table of the functions of Python's standard library; the model tells from a
function's module, name, size and docstring whether it returns a value. The pipeline prepares the
columns that it is trained on. The exported model has the same layers inside, and prepares the same.
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import torch_distinput as tdi
from torch_distinput import preprocessing as pp

MAX_BYTES = 400  # of a docstring, here and where the model is served
Rows = list[dict[str, Any]]


def write_table(folder: Path, max_modules: int) -> None:
    """Write seven files to train with and one to test with; each row is a function."""
    rows: Rows = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py"))[:max_modules]:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef):
                returns = [part for part in ast.walk(node) if isinstance(part, ast.Return)]
                doc = (ast.get_docstring(node) or "").encode()[:MAX_BYTES]
                rows.append({
                    "module": path.stem,
                    "name": node.name.replace("_", " "),
                    "arguments": len(node.args.args),
                    "lines": (node.end_lineno or 0) - node.lineno + 1,
                    "doc": doc.decode(errors="ignore"),
                    "returns": any(part.value is not None for part in returns),
                })  # fmt: skip
    for number, name in enumerate([*(f"train-{i}" for i in range(7)), "test"]):
        lines = [json.dumps(row) + "\n" for row in rows[number::8]]
        (folder / f"{name}.jsonl").write_text("".join(lines))


class Classifier(nn.Module):
    """From prepared columns to a score of "returns a value"."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, prepared: dict[str, torch.Tensor]) -> torch.Tensor:
        """Join the columns and score each row."""
        columns = [x.float() if x.ndim == 2 else x[:, None].float() for x in prepared.values()]
        return self.layers(torch.cat(columns, 1)).squeeze(1)


class Served(nn.Module):
    """From raw columns to scores; what was prepared in between comes along, to be compared."""

    def __init__(self, features: pp.Features, classifier: nn.Module) -> None:
        super().__init__()
        self.features, self.classifier = features, classifier

    def forward(self, raw: dict[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Prepare and score each row."""
        prepared = self.features(raw)
        return self.classifier(prepared), prepared


def analyze(strategy: tdi.Strategy, files: tdi.FileDataset, folder: Path) -> pp.Features:
    """Adapt layers to the files on all ranks; what was read is not read again another time."""
    features = pp.Features(
        module=pp.StringLookup(output_mode="one_hot"),
        name=pp.TextVectorization(max_tokens=500, output_mode="multi_hot"),
        arguments=pp.Normalization(),
        lines=pp.Discretization(num_bins=8, output_mode="one_hot"),
        doc=pp.TextVectorization(max_tokens=1000, output_mode="tf_idf"),
    )
    return pp.analyze(features, files, f"{folder}/served", cache=f"{folder}/states",
                      strategy=strategy)  # fmt: skip


def train(
    strategy: tdi.Strategy, files: tdi.FileDataset, features: pp.Features, args: argparse.Namespace
) -> nn.Module:
    """Train with the layers in the pipeline."""

    def collate(rows: Rows) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        return features.collate(rows), torch.tensor([row["returns"] for row in rows]).float()

    batches = strategy.distribute_dataset(
        files.shuffle(1000), global_batch_size=64, shuffle=True, collate_fn=collate
    )
    row = {"module": "", "name": "", "arguments": 0, "lines": 0, "doc": ""}
    torch.manual_seed(0)
    classifier = Classifier(sum(x.numel() for x in features.collate([row]).values()))
    classifier.to(strategy.device)
    model = DistributedDataParallel(classifier) if strategy.num_workers > 1 else classifier
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for epoch in range(args.epochs):
        for prepared, label in batches:
            losses = functional.binary_cross_entropy_with_logits(
                model(prepared), label, reduction="none"
            )
            loss = tdi.compute_average_loss(losses)
            optimizer.zero_grad()
            (loss * strategy.num_workers).backward()
            optimizer.step()
        loss = strategy.reduce("sum", loss)
        if strategy.worker_index == 0:
            print(f"epoch {epoch}: loss of the last step {loss:.3f}")
    return classifier.cpu()


def columns_of(rows: Rows) -> dict[str, list[Any]]:
    """Turn rows into columns."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def serve(folder: Path, rows: Rows, fingerprint: str) -> Any:
    """Load the folder as a server does, which knows neither the script nor the classifier."""
    layers = pp.load(str(folder), expect=fingerprint)
    model = torch.export.load(folder / "model.pt2").module()
    return model(layers.pack(columns_of(rows), MAX_BYTES))


def run(folder: Path, args: argparse.Namespace) -> None:
    """Write files, analyze them, train, export, serve, and compare."""
    strategy = tdi.MultiWorkerMirroredStrategy()
    if strategy.worker_index == 0:
        write_table(folder, args.max_modules)
    # Worker 0 lists the files that all of them analyze: no other has to wait before.
    files = tdi.FileDataset(f"{folder}/train-*.jsonl", reader="jsonl")
    features = analyze(strategy, files, folder)
    classifier = train(strategy, files, features, args)
    if strategy.worker_index > 0:
        return

    rows: Rows = [json.loads(row) for row in (folder / "test.jsonl").read_text().splitlines()]
    packed = features.pack(columns_of(rows[:5]), MAX_BYTES)
    shapes = (features.dynamic_shapes(packed),)
    model = torch.export.export(Served(features, classifier), (packed,), dynamic_shapes=shapes)
    pp.save(features, f"{folder}/served", model=model)

    scores, prepared = serve(folder / "served", rows, features.fingerprint())
    trained = features.collate(rows)  # as the pipeline does
    assert all(torch.equal(trained[name], prepared[name]) for name in trained)
    difference = (classifier(trained) - scores).abs().max().item()
    assert difference < 1e-4
    labels = torch.tensor([row["returns"] for row in rows])
    right, base = ((scores > 0) == labels).float().mean(), labels.float().mean()
    print(f"{right:.0%} right of {len(rows)} other functions; {base:.0%} of them return a value")
    print(f"served: the same columns to the bit; scores differ by {difference:.0e} at most")


def main() -> None:
    """Start the ranks' process group if there are ranks, run, and end it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--max-modules", type=int, default=80, help="of the standard library")
    parser.add_argument("--out", type=Path, help="a folder for files and results, kept")
    args = parser.parse_args()
    tdi.init_distributed()
    with tempfile.TemporaryDirectory() as temporary:
        folder = [args.out or Path(temporary)]
        if dist.is_initialized():
            dist.broadcast_object_list(folder)  # rank 0's, which ends last
        folder[0].mkdir(parents=True, exist_ok=True)
        run(folder[0], args)
    gc.collect()  # DistributedDataParallel must be gone before its process group is
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

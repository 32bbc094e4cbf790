"""Draw docs/pictures: what simulated ranks of this library deliver, as SVG.

Run ``python docs/make_pictures.py`` after a change of who reads what. No result is written down
here: squares are what the ranks got. A picture has a paper of its own, and light or dark colours as
the reader's system asks, also where a page shows it as an image.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import torch_distinput as tdi
from torch_distinput.testing import simulate

FOLDER = Path(__file__).with_name("pictures")
WIDTH, SQUARE, GAP = 520, 30, 4
STYLE = """
.drawn .paper { fill: #ffffff } .drawn text { fill: #1f2328; font: 14px system-ui, sans-serif }
.drawn .title { font-weight: 600; font-size: 16px } .drawn .faint { fill: #59636e }
.drawn .in { fill: #ffffff; text-anchor: middle; font-size: 13px; font-weight: 600 }
.drawn .rank0 { fill: #0b62a8 } .drawn .rank1 { fill: #b34700 } .drawn .rank2 { fill: #00755a }
.drawn .line { fill: none; stroke: #59636e; stroke-width: 2 } .drawn .head { fill: #59636e }
@media (prefers-color-scheme: dark) {
  .drawn .paper { fill: #161b22 } .drawn text { fill: #e6edf3 } .drawn .faint { fill: #9da7b3 }
  .drawn .in { fill: #ffffff } .drawn .line { stroke: #9da7b3 } .drawn .head { fill: #9da7b3 }
}
"""  # the class keeps a picture that is inlined on a page from colouring the rest of it
FILES = {"a.txt": 6, "b.txt": 4, "c.txt": 5, "d.txt": 3}
RANKS = 3
Step = list[list[int]]
"""The examples that each rank gets in one step."""


# ------------------------------------------------------------------------------ shapes


def picture(height: int, label: str, shapes: list[str], role: str = "img") -> str:
    """Return a whole picture, with words for those who do not see it; a ``group`` has links."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" class="drawn" role="{role}" aria-label="{label}">\n'
        f'<style>{STYLE}</style>\n<rect class="paper" width="{WIDTH}" height="{height}" rx="6"/>\n'
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Return a line of text that begins at x; ``in`` is centred there."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{words}</text>'


def square(x: float, y: float, ranks: list[int], words: object) -> str:
    """Return one example: a strip in the colour of each rank that got it."""
    strip = SQUARE / len(ranks)
    strips = "".join(
        f'<rect class="rank{rank}" x="{x + at * strip:g}" y="{y:g}" width="{strip:g}" '
        f'height="{SQUARE}"/>'
        for at, rank in enumerate(ranks)
    )
    return strips + text(x + SQUARE / 2, y + 20, str(words), "in")


def legend(y: float, words: str) -> Iterator[str]:
    """Yield the colours of the ranks, and what the number in a square is."""
    for rank in range(RANKS):
        x = 20 + rank * 90
        yield f'<rect class="rank{rank}" x="{x}" y="{y - 12:g}" width="14" height="14"/>'
        yield text(x + 20, y, f"rank {rank}")
    yield text(20, y + 24, words, "faint")


# ------------------------------------------------------------------------------ who reads what


def delivered(policy: str) -> list[Step]:
    """Return each step of an epoch of the files under a policy."""
    with TemporaryDirectory() as folder:
        first = 0
        for name, count in FILES.items():
            rows = range(first, first + count)
            Path(folder, name).write_text("".join(f"{row}\n" for row in rows))
            first += count

        def work(strategy: Any) -> Step:
            recipe = tdi.FileDataset([str(Path(folder, name)) for name in FILES]).map(int)
            options = tdi.InputOptions(auto_shard_policy=policy)
            dataset = strategy.distribute_dataset(recipe, global_batch_size=6, options=options)
            return [batch.tolist() for batch in dataset]

        return [list(step) for step in zip(*simulate(work, num_workers=RANKS), strict=True)]


def policies() -> str:
    """Return the picture of four files and three ranks under each policy."""
    shapes = list(legend(30, "the number in an example is the step that brings it"))
    top = 66
    for policy in ("file", "data", "off"):
        steps = delivered(policy)
        shapes.append(text(20, top + 24, f'"{policy}"', "title"))
        shapes.append(text(110, top + 24, said(steps), "faint"))
        top += 36
        row = 0
        for name, count in FILES.items():
            shapes.append(text(20, top + 20, name))
            for at in range(count):
                found = [
                    (number, rank)
                    for number, step in enumerate(steps)
                    for rank, rows in enumerate(step)
                    if row in rows
                ]
                ranks = [rank for _, rank in found]
                numbers = sorted({number for number, _ in found})
                x = 110 + at * (SQUARE + GAP)
                shapes.append(square(x, top, ranks, ",".join(map(str, numbers))))
                row += 1
            top += SQUARE + GAP
    return picture(top + 16, "Which rank reads which examples of four files", shapes)


def said(steps: list[Step]) -> str:
    """Return the counts of an epoch in words."""
    times = set(Counter(row for step in steps for rows in step for row in rows).values())
    (count,) = times
    empty = sum(not rows for step in steps for rows in step)
    often = "once" if count == 1 else f"{count} times"
    return f"{len(steps)} steps, each example {often}, {empty} batches of zero rows"


# ------------------------------------------------------------------------------ one epoch, elastic

EXAMPLES, BATCH = 29, 8
LEGS = ((2, 1), (3, 2), (1, None))
"""Ranks, and how many steps they make; None: what is left."""


def legs() -> Iterator[tuple[int, list[Step]]]:
    """Yield the ranks of each leg of an epoch, and its steps."""
    state: dict[str, Any] | None = None
    for ranks, limit in LEGS:

        def work(strategy: Any) -> tuple[Step, dict[str, Any]]:
            dataset = strategy.distribute_dataset(
                torch.arange(EXAMPLES), global_batch_size=BATCH, shuffle=True, seed=0
            )
            if state is not None:  # noqa: B023 - it runs before the next leg begins
                dataset.load_state_dict(state)  # noqa: B023
            steps: Step = []
            for step in dataset.steps():
                steps.append(step.batch.tolist())
                if len(steps) == limit:  # noqa: B023
                    break
            return steps, dataset.state_dict()

        results = simulate(work, num_workers=ranks)
        state = results[0][1]
        yield ranks, [list(step) for step in zip(*(rows for rows, _ in results), strict=True)]


def elastic() -> str:
    """Return the picture of one epoch that two ranks begin, three go on with and one ends."""
    played = list(legs())
    seen = Counter(row for _, steps in played for step in steps for rows in step for row in rows)
    once = seen == Counter(range(EXAMPLES))
    shapes = list(legend(30, "the number is the example, in shuffled order"))
    top, number = 72, 0
    for ranks, steps in played:
        shapes.append(text(20, top + 20, f"{ranks} rank{'s' * (ranks > 1)}", "title"))
        for step in steps:
            shapes.append(text(110, top + 20, f"step {number}", "faint"))
            x = 175.0
            for rank, rows in enumerate(step):
                for row in rows:
                    shapes.append(square(x, top, [rank], row))
                    x += SQUARE + GAP
                x += 3 * GAP
            top += SQUARE + GAP
            number += 1
        top += 14
    often = "each exactly once" if once else "NOT each once"
    shapes.append(text(110, top + 12, f"{sum(seen.values())} examples delivered, {often}"))
    return picture(top + 30, "One epoch on two ranks, then three, then one", shapes)


# ------------------------------------------------------------------------------ delivered, trained

AHEAD, TRAINED = 6, 3
"""Steps that a loop has taken, and those after which its optimizer has stepped."""


def numbers(state: dict[str, Any] | None, limit: int) -> tuple[list[int], list[dict[str, Any]]]:
    """Return the numbers of the steps that come after a state, and the states after each."""
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        torch.arange(2 * AHEAD), global_batch_size=2
    )
    if state is not None:
        dataset.load_state_dict(state)
    taken = [step for step, _ in zip(dataset.steps(), range(limit), strict=False)]
    return [int(step.batch[0]) // 2 for step in taken], [step.state_dict() for step in taken]


def trained() -> str:
    """Return the picture of what comes again after the state of a step, and of the dataset."""
    delivered_steps, states = numbers(None, AHEAD)
    lines = {
        "delivered": delivered_steps,
        "trained": delivered_steps[:TRAINED],
        f"after step {TRAINED - 1}": numbers(states[TRAINED - 1], AHEAD)[0],
        f"after step {AHEAD - 1}": numbers(states[-1], AHEAD)[0],
    }
    lost = set(lines["delivered"]) - set(lines["trained"]) - set(lines[f"after step {AHEAD - 1}"])
    shapes, top = [], 20
    for at, (words, steps) in enumerate(lines.items()):
        if at == 2:
            shapes.append(text(20, top + 20, "What comes again, by the state that was saved:"))
            top += SQUARE + GAP
        shapes.append(text(20, top + 20, words, "title" if at < 2 else ""))
        shapes += [square(140 + step * (SQUARE + GAP), top, [min(at, 2)], step) for step in steps]
        top += SQUARE + GAP
    never = ", ".join(map(str, sorted(lost)))
    shapes.append(text(140, top - 14, f"nothing: steps {never} would never be trained"))
    return picture(top + 16, "Steps delivered, steps trained, and what comes again", shapes)


# ------------------------------------------------------------------------------ stages

STAGES = (
    ("source", "identifies what you pass, and yields rows", 0, "sources"),
    ("shard", "selects the files or rows of this worker", 0, "policies"),
    ("batch and rebatch", "cuts a global batch for the replicas", 0, "concepts"),
    ("end of data", "agrees on the steps, ahead of use", 1, "semantics"),
    ("device prefetch", "copies batches, ahead of use", 2, "devices"),
    ("per-replica values", "fills in batches of zero rows", 2, "replicas"),
    ("run and reduce", "calls your function, joins its results", 2, "loss"),
)
"""The name of a stage, what it does, the colour of what passes it, and its page."""
PASSES = ("rows on the host", "counts of ranks", "batches for devices")


def stages() -> str:
    """Return the picture of the stages that data passes; inlined on the site, they are links."""
    top, stop = 56, 54
    end = top + len(STAGES) * stop
    shapes = [f'<path class="line" d="M35 {top}V{end}"/>']
    for colour, words in enumerate(PASSES):
        x = 20 + colour * 162
        shapes.append(f'<rect class="rank{colour}" x="{x}" y="18" width="14" height="14"/>')
        shapes.append(text(x + 20, 30, words))
    for at, (name, does, colour, page) in enumerate(STAGES):
        y = top + at * stop
        shapes += [
            f'<a href="../{page}.html">',
            f'<rect class="rank{colour}" x="20" y="{y}" width="30" height="30" rx="15"/>',
            text(35, y + 20, str(at + 1), "in"),
            text(64, y + 13, name, "title"),
            text(64, y + 32, does, "faint"),
            "</a>",
        ]
    shapes.append(f'<path class="head" d="M35 {end + 12}l-8 -14h16z"/>')
    shapes.append(text(64, end + 8, "your training loop", "title"))
    label = "The path of the data, from the source to your training loop"
    return picture(end + 30, label, shapes, "group")


# ------------------------------------------------------------------------------ which policy

QUESTIONS = (
    ("Do you shard the data yourself?", "distribute_datasets", "_from_function", 1),
    ("Should every worker read everything?", '"off"', "each reads all", 1),
    ("Has the source no files or shards?", '"auto"', 'which means "data"', 0),
    ("Full steps, or fewer files than ranks?", '"data"', "cuts each batch", 0),
)
"""A question, what to take if yes in two lines, and its colour."""


def which_policy() -> str:
    """Return the tree of questions that ends in a policy."""
    shapes, top, stop = [], 20, 76
    for at, (question, *answer, colour) in enumerate(QUESTIONS):
        y = top + at * stop
        shapes += [
            text(20, y + 25, question),
            f'<path class="line" d="M306 {y + 20}H338"/>',
            f'<path class="head" d="M346 {y + 20}l-12 -6v12z"/>',
            text(308, y + 13, "yes", "faint"),
            *conclusion(350, y, answer, colour),
            f'<path class="line" d="M40 {y + 36}V{y + 68}"/>',
            f'<path class="head" d="M40 {y + 76}l-6 -12h12z"/>',
            text(52, y + 60, "no", "faint"),
        ]
    y = top + len(QUESTIONS) * stop
    shapes += conclusion(20, y, ['"auto"', 'which means "file"'], 2)
    shapes.append(text(190, y + 25, "each worker opens only its own files", "faint"))
    return picture(y + 60, "Which policy: four questions", shapes)


def conclusion(x: int, y: int, lines: list[str], colour: int) -> Iterator[str]:
    """Yield a box with two lines in it."""
    yield f'<rect class="rank{colour}" x="{x}" y="{y - 3}" width="158" height="46" rx="6"/>'
    for at, words in enumerate(lines):
        yield text(x + 79, y + 16 + 18 * at, words, "in")


PICTURES = {
    "stages.svg": stages,
    "which-policy.svg": which_policy,
    "policies.svg": policies,
    "elastic.svg": elastic,
    "trained.svg": trained,
}

if __name__ == "__main__":
    for file, draw in PICTURES.items():
        (FOLDER / file).write_text(draw())

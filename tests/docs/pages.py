"""The pages of the documentation, and their blocks of code, by the rules below.

A ``python`` block is executed. The blocks of one page share a namespace, as one script would.

A ``text`` block that follows a ``python`` block, with nothing between them, is what it prints.

A ``python`` block that begins with a comment with a file name (``# train.py``) is that file: it is
written to the folder that the page runs in, and run: ``test_*.py`` by calling its tests, any other
as a script, once alone and, where it calls ``init_distributed``, on two ranks as well.

A ``python`` block that imports tensorflow shows what the reader comes from. It is compiled and not
run: this project does not depend on TensorFlow, and must not for the sake of its docs.

Blocks in other languages are not executed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("*/*.md"))]

FENCED = re.compile(r"^```([a-z]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# ([a-z_]+\.py)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of Python code.

    Attributes:
        code: its lines.
        line: the line of the page on which the code begins, from 1.
        printed: what it prints, where the page says so.
    """

    code: str
    line: int
    printed: str | None

    @property
    def file_name(self) -> str | None:
        """The file that the block is; None where it is no file."""
        named = _FILE_NAME.match(self.code)
        return named and named[1]

    @property
    def is_tensorflow(self) -> bool:
        """Whether the block shows code for TensorFlow."""
        return re.search("^import tensorflow", self.code, re.MULTILINE) is not None


def blocks_of(page: str) -> list[Block]:
    """Return the Python blocks of a page, in order."""
    found = list(FENCED.finditer(page))
    ends = [page[one.end() : other.start()] for one, other in pairwise(found)]
    blocks = []
    for number, fence in enumerate(found):
        if fence[1] != "python":
            continue
        shows = number < len(ends) and not ends[number].strip() and found[number + 1][1] == "text"
        line = page.count("\n", 0, fence.start(2)) + 1
        printed = found[number + 1][2] if shows else None
        blocks.append(Block(code=fence[2], line=line, printed=printed))
    return blocks


def headings(file: Path, level: str = "#+") -> set[str]:
    """The names by which GitHub links to the headings of a page."""
    lines = re.findall(rf"^{level} (.*)$", FENCED.sub("", file.read_text()), re.MULTILINE)
    return {re.sub(r"[^a-z0-9_ -]", "", line.lower()).replace(" ", "-") for line in lines}

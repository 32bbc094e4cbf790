"""What was found, as values: words and numbers for a terminal, a table for a notebook."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from html import escape
from typing import Literal, final

FindingKind = Literal[
    "repeated",
    "dropped",
    "not divided",
    "stream read several times",
    "same order in each epoch",
    "ranks end at different steps",
    "shared random numbers",
    "memory copied",
]
_WIDTH = 96


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that goes wrong, with its number, and what to write instead.

    Attributes:
        kind: which of the things that :func:`explain` knows.
        number: how many: examples, steps, reads of the data or bytes, as ``text`` says.
        text: one or two sentences.
        code: the lines that change.
    """

    kind: FindingKind
    number: int
    text: str
    code: str


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """What a loader does on so many ranks; ``print`` it, or show it in a notebook.

    Attributes:
        title: the loader, and the ranks.
        findings: what goes wrong; empty where nothing is known to.
        facts: what was counted, and how long things took.
        unseen: what could not be seen, and how to see it.
    """

    title: str
    findings: tuple[Finding, ...]
    facts: tuple[str, ...]
    unseen: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Print title, findings, facts, what was unseen, and the code that changes."""
        lines = [*_wrap(self.title), ""]
        if not self.findings:
            lines.append(self._say_nothing())
        for number, finding in enumerate(self.findings, start=1):
            lines += _wrap(f"{number}. {finding.kind}: {finding.text}", "   ")
        for heading, sentences in (("Facts", self.facts), ("Not seen", self.unseen)):
            if sentences:
                lines += ["", heading]
                lines += [line for text in sentences for line in _wrap(f"- {text}", "  ")]
        if self.findings:
            lines += ["", "With torch_distinput"]
            for code in self._codes():
                lines += [*textwrap.indent(code, "    ").splitlines(), ""]
        return "\n".join(lines).rstrip()

    def _repr_html_(self) -> str:
        """Show the same in a notebook."""
        rows = "".join(
            f"<li><b>{escape(finding.kind)}</b>: {escape(finding.text)}</li>"
            for finding in self.findings
        )
        parts = [f"<p><b>{escape(self.title)}</b></p>"]
        parts.append(f"<ol>{rows}</ol>" if rows else f"<p>{self._say_nothing()}</p>")
        for heading, sentences in (("Facts", self.facts), ("Not seen", self.unseen)):
            if sentences:
                items = "".join(f"<li>{escape(text)}</li>" for text in sentences)
                parts.append(f"<p>{heading}</p><ul>{items}</ul>")
        parts += ["<p>With torch_distinput</p>"] * bool(self.findings)
        parts += [f'<pre style="overflow-x: auto">{escape(code)}</pre>' for code in self._codes()]
        return "\n".join(parts)

    def _say_nothing(self) -> str:
        """What is not seen may still go wrong."""
        limit = ", as far as it was seen" if self.unseen else ""
        return f"Found nothing that is lost, repeated or out of step{limit}."

    def _codes(self) -> list[str]:
        """Each piece of code once, in the order of the findings."""
        return list(dict.fromkeys(finding.code for finding in self.findings))


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent)

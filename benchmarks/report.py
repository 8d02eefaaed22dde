"""Figures, and how they are printed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from fastmix.bench import machine, version_of


@dataclass(frozen=True)
class Figure:
    """A measured figure beside what it must be and what is aimed at.

    values: one a pass, or one in all.  cpu: the same from CPU times, for the reader only.  at_most: `must` is an upper
    limit.
    """

    name: str
    values: list[float]
    must: float
    aim: float | None = None
    cpu: float | None = None
    at_most: bool = False

    @property
    def value(self) -> float:
        """The median."""
        return median(self.values)

    @property
    def verdict(self) -> str:
        """aim, must or MISSED."""
        if self.at_most:
            return "must" if self.value <= self.must else "MISSED"
        if self.aim is not None and self.value >= self.aim:
            return "aim"
        return "must" if self.value >= self.must else "MISSED"

    def row(self) -> list[str]:
        """The cells of a line."""
        spread = f"{min(self.values):.2f} to {max(self.values):.2f}" if len(self.values) > 1 else ""
        sign = "≤" if self.at_most else "≥"
        aim = "" if self.aim is None else f"≥ {self.aim:g}"
        cpu = "" if self.cpu is None else f"{self.cpu:.2f}"
        return [self.name, f"{self.value:.2f}", spread, cpu, f"{sign} {self.must:g}", aim, self.verdict]

    def as_json(self) -> dict[str, Any]:
        """Everything, with the median and the verdict."""
        return {**asdict(self), "value": self.value, "verdict": self.verdict}


FIGURE_HEAD = ["figure", "measured", "lowest to highest", "by CPU time", "must", "aim", "verdict"]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool) -> str:
    """Rows of cells as aligned text, or as a Markdown table."""
    if markdown:
        lines = [head, ["---"] * len(head), *rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in (head, ["-" * width for width in widths], *rows)
    )


def circumstances() -> dict[str, Any]:
    """What figures are worth nothing without: machine, versions, commit, date, and what else the machine is doing."""
    return {
        **machine(),
        "torchvision": version_of("torchvision"),
        "commit": _commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "load before": round(os.getloadavg()[0], 2),
    }


def _commit() -> str | None:
    """The commit, with "-dirty" if files differ from it; None outside a repository."""
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()

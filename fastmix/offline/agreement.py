"""Do expanded pictures keep their labels?  What a classifier names them before and after refining, and a rule.

A refined picture has its source's label because the mask keeps the source's object and the prompt asks for it.  That is
no proof.  So a classifier that knows neither names the clean source, the composite ("before") and the refined picture
("after"), and the shares that it names as their sources' classes are compared.  It must not be the classifier whose
maps chose the masks: that one would recognise what it chose.

No classifier names every clean picture rightly, so an absolute bar measures the classifier.  Shares are given over all
records, and over those whose clean source it names rightly ("normalised"); the bar is held against the latter.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "KEPT",
    "Figures",
    "Named",
    "Rule",
    "Share",
    "add_arguments",
    "agreement",
    "facts",
    "failures",
    "kept_shares",
    "mcnemar",
    "poor_classes",
    "read_bound",
    "run",
    "table",
    "wilson",
]

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

KEPT = "kept.parquet"
_NAMES = {  # of a field of Figures -> in the table
    "clean": "clean source",
    "before": "before (composite)",
    "after": "after (refined)",
    "before_right": "before, normalised",
    "after_right": "after, normalised",
    "leak_before": "target's label before",
    "leak_after": "target's label after",
    "round_trip": "source, autoencoder",
    "plain": "source, refined",
}


@dataclass(frozen=True)
class Share:
    """`hits` of `n` records, n >= 1."""

    hits: int
    n: int

    @property
    def value(self) -> float:
        """In [0, 1]."""
        return self.hits / self.n

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's, 95 %."""
        return wilson(self.hits, self.n)


@dataclass(frozen=True)
class Named:
    """What the classifier names the pictures of each record: (n,) int64 class numbers, -1 where there is no picture.

    clean: the source.  before: the composite.  after: the refined picture.  round_trip: the source through the model's
    autoencoder alone.  plain: the source itself refined as the composite was.  The last two may be left out.
    """

    clean: Ints
    before: Ints
    after: Ints
    round_trip: Ints | None = None
    plain: Ints | None = None


@dataclass(frozen=True)
class Figures:
    """Of the records of one strength: shares that are named as their source's class; None over no records.

    before_right, after_right: of those whose clean source is named rightly.  leak_before, leak_after: that are named as
    the target's class, of those where it is another one than the source's.  loss: before - after, raw.  p: McNemar's,
    of that difference.
    """

    strength: float
    records: int
    sources: int
    clean: Share
    before: Share
    after: Share
    before_right: Share | None
    after_right: Share | None
    leak_before: Share | None
    leak_after: Share | None
    round_trip: Share | None
    plain: Share | None
    loss: float
    p: float


@dataclass(frozen=True)
class Rule:
    """Labels are kept if `loss` <= most_loss and `after_right` >= least at every strength; both in [0, 1]."""

    most_loss: float = 0.05
    least: float = 0.90

    def __post_init__(self) -> None:
        for name, value in (("most_loss", self.most_loss), ("least", self.least)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} is {value}, expected a share in 0..1, such as {getattr(Rule, name)}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `fastmix agreement`, except --quiet."""
    add = parser.add_argument
    add("data", metavar="DATA", help="the folder that the set was made of")
    add("out", metavar="OUT", help="the folder that `fastmix refine` has finished")
    add("--classifier", metavar="MODEL", help="FILE.py:FUNCTION or MODULE:FUNCTION; none: one is trained on sources")
    add("--classifier-args", type=json.loads, metavar="JSON", help="arguments of the classifier's function")
    add("--weights", metavar="FILE", help="state_dict of the classifier")
    add("--size", type=int, help="side of its pictures, px; none: 224, or 64 for the one trained here")
    for name in ("mean", "std"):
        text = f"{name} of each channel in 0..1 (default: ImageNet's)"
        add(f"--{name}", type=float, nargs=3, default=argparse.SUPPRESS, metavar="X", help=text)
    add("--held-out", type=float, default=0.5, help="share of each class that the one trained here never sees")
    add("--epochs", type=int, default=40, help="passes over the sources that it sees")
    add("--records", type=int, metavar="N", help="look at so many, drawn at random; none: all")
    add("--most-loss", type=float, default=Rule.most_loss, help="agreement may fall by so much at any strength")
    add("--least", type=float, default=Rule.least, help="agreement after refining, normalised, at any strength")
    add("--baseline", type=int, default=0, metavar="N", help="refine N sources unmixed, too; needs the set's --model")
    add("--model", metavar="DIR", help="a diffusers pipeline")
    add("--adapter", metavar="PATH", help="its LoRA weights")
    add("--tokens", metavar="DIR", help="its tokens")
    add("--finetuned", metavar="DIR", help="what `fastmix finetune` wrote, in the place of these")
    add("--maps", metavar="FILE", help="the saliency maps that the set was made with, if it was given some")
    add("--keep-if", metavar="RULE", help=f'"p>=0.5": list the records of so probable source classes in {KEPT}')
    add("-o", "--output", metavar="FILE", help="a picture of some records (.png .jpg .webp)")
    add("--batch-size", type=int, default=32, help="pictures at a time")
    add("--device", default="cpu", help="of torch, such as cuda")
    add("--dtype", help="of the diffusion model; none: the one that the set was made in")
    add("--seed", type=int, default=0, help="names the draws, and the weights that training starts from")
    add("--json", action="store_true", help="all figures as JSON on stdout, and nothing else")


def run(options: argparse.Namespace) -> None:
    """Print whether an expanded set keeps its labels, and write what was asked for.

    Raises SystemExit(1), after the report, where it does not; ValueError, OSError or FastmixError for a user's error.
    """
    from .verdict import check  # and torch with it

    check(options)


def wilson(successes: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """The interval of a share of independent trials (Wilson, JASA 1927); z: 1.959964 for 95 %.

    Raises ValueError unless 0 <= successes <= n and n >= 1.
    """
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"{successes} successes of {n}, expected 0 <= successes <= n and n >= 1")
    share, spread = successes / n, z * z / n
    centre = (share + spread / 2) / (1 + spread)
    reach = z * math.sqrt(share * (1 - share) / n + spread / (4 * n)) / (1 + spread)
    # The ends of no and of all successes are 0 and 1, but for rounding.
    return (0.0 if successes == 0 else centre - reach), (1.0 if successes == n else centre + reach)


def mcnemar(before: Any, after: Any) -> float:
    """The exact two-sided p-value of paired outcomes (McNemar, Psychometrika 1947): 1 where no pair differs.

    before, after: (n,) booleans.  The binomial test of the pairs that differ, either way being equally likely.
    Raises ValueError for other shapes.
    """
    first, second = np.asarray(before, np.bool_), np.asarray(after, np.bool_)
    if first.ndim != 1 or first.shape != second.shape:
        raise ValueError(f"before has shape {first.shape} and after {second.shape}, expected (n,) both")
    lost, won = int((first & ~second).sum()), int((second & ~first).sum())
    pairs = lost + won
    logs = [math.lgamma(pairs + 1) - math.lgamma(k + 1) - math.lgamma(pairs - k + 1) for k in range(min(lost, won) + 1)]
    return min(1.0, 2 * math.fsum(math.exp(each - pairs * math.log(2)) for each in logs))


def agreement(rows: Sequence[Mapping[str, Any]], named: Named) -> list[Figures]:
    """The figures of each strength, from the weakest.

    rows: of a manifest, (n,); "source", "source_label", "target_label" and "strength" are looked at.
    Raises ValueError for no rows, or predictions that are not one a row.
    """
    for name, values in vars(named).items():
        if values is not None and np.shape(values) != (len(rows),):
            raise ValueError(f"{name} has shape {np.shape(values)}, expected a class number for {len(rows)} records")
    if not rows:
        raise ValueError("there are no records, expected at least one that has a picture")
    strengths = np.array([row["strength"] for row in rows], np.float64)
    return [_figures(rows, named, np.flatnonzero(strengths == strength)) for strength in np.unique(strengths)]


def failures(figures: Sequence[Figures], rule: Rule) -> list[str]:
    """Which bound fails at which strength, a sentence each; none where labels are kept."""
    lines = []
    for each in figures:
        at = f"strength {each.strength:g}"
        if each.loss > rule.most_loss:
            fall = f"{each.before.value:.1%} before to {each.after.value:.1%} after"
            lines.append(f"{at}: agreement falls from {fall}, by more than {_points(rule.most_loss)} (--most-loss)")
        if each.after_right is None:
            lines.append(f"{at}: no clean source is named rightly, so nothing can be said (--least)")
        elif each.after_right.value < rule.least:
            share = f"{each.after_right.value:.1%} after, normalised"
            lines.append(f"{at}: agreement is {share}, less than {rule.least:.1%} (--least)")
    return lines


def table(figures: Sequence[Figures]) -> str:
    """A column a strength; shares in per cent, with their 95 % intervals."""
    lines = [["strength", *(f"{each.strength:g}" for each in figures)]]
    lines.append(["records", *(str(each.records) for each in figures)])
    for field, name in _NAMES.items():
        shares = [getattr(each, field) for each in figures]
        if any(shares):
            lines.append([name, *map(_cell, shares)])
    lines.append(["before - after, points", *(f"{100 * each.loss:+.1f}" for each in figures)])
    lines.append(["p (McNemar)", *(f"{each.p:.2g}" for each in figures)])
    return "\n".join(f"{line[0]:24}" + "".join(f"{text:>26}" for text in line[1:]) for line in lines)


def facts(figures: Sequence[Figures]) -> list[dict[str, Any]]:
    """All figures, for JSON; shares with their intervals."""
    return [
        {name: _told(getattr(each, name)) if name in _NAMES else value for name, value in asdict(each).items()}
        for each in figures
    ]


def read_bound(text: str) -> float:
    """The bound of "p>=BOUND".  Raises ValueError for any other text, or a bound outside (0, 1]."""
    found = re.fullmatch(r"p>=([0-9]+(?:\.[0-9]+)?|\.[0-9]+)", text)
    bound = float(found[1]) if found else math.nan
    if not 0 < bound <= 1:
        raise ValueError(f'keep-if is {text!r}, expected "p>=NUMBER" with a number above 0 and up to 1, as "p>=0.5"')
    return bound


def kept_shares(labels: Ints, kept: Bools, classes: int) -> list[Share | None]:
    """How many records of each class are kept; None for a class that has none.  labels, kept: (n,)."""
    of = np.bincount(labels, minlength=classes).tolist()
    hits = np.bincount(labels[kept], minlength=classes).tolist()
    return [Share(hit, n) if n else None for hit, n in zip(hits, of, strict=True)]


def poor_classes(shares: Sequence[Share | None]) -> list[int]:
    """Classes of which less than half as much is kept as of a class on average: the filter shifts the classes."""
    values = [share.value for share in shares if share]
    return [number for number, share in enumerate(shares) if share and share.value < np.mean(values) / 2]


def _figures(rows: Sequence[Mapping[str, Any]], named: Named, chosen: Ints) -> Figures:
    own = np.array([rows[i]["source_label"] for i in chosen], np.int64)
    target = np.array([-1 if rows[i]["target_label"] is None else rows[i]["target_label"] for i in chosen], np.int64)
    clean, before, after = (values[chosen] for values in (named.clean, named.before, named.after))
    right, leaky = clean == own, (target >= 0) & (target != own)
    kept_before, kept_after = before == own, after == own
    others = {}
    for name, values in (("round_trip", named.round_trip), ("plain", named.plain)):
        others[name] = None if values is None else _share(values[chosen] == own, values[chosen] >= 0)
    return Figures(
        strength=float(rows[chosen[0]]["strength"]),
        records=len(chosen),
        sources=len({rows[i]["source"] for i in chosen}),
        clean=Share(int(right.sum()), len(own)),
        before=Share(int(kept_before.sum()), len(own)),
        after=Share(int(kept_after.sum()), len(own)),
        before_right=_share(kept_before, right),
        after_right=_share(kept_after, right),
        leak_before=_share(before == target, leaky),
        leak_after=_share(after == target, leaky),
        **others,
        loss=(int(kept_before.sum()) - int(kept_after.sum())) / len(own),  # one rounding, so 5 of 100 are 0.05
        p=mcnemar(kept_before, kept_after),
    )


def _share(hits: Bools, among: Bools) -> Share | None:
    n = int(among.sum())
    return Share(int(hits[among].sum()), n) if n else None


def _cell(share: Share | None) -> str:
    if share is None:
        return "-"
    low, high = (100 * end for end in share.interval)
    return f"{100 * share.value:.1f} ({low:.1f} to {high:.1f})"


def _told(share: Share | None) -> dict[str, Any] | None:
    if share is None:
        return None
    low, high = share.interval
    return {"hits": share.hits, "n": share.n, "share": share.value, "low": low, "high": high}


def _points(share: float) -> str:
    return f"{100 * share:.1f} points"

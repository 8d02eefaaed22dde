"""The label check at work: the pictures of a folder that `fastmix refine` has finished, as a judge sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from ..datasets import Source
from ..images import decode
from ..kernels import U8
from ..manifest import Manifest, write_rows
from ..rng import Key
from ..show import Cell, Row, grid
from .agreement import KEPT, Ints, Named, Share, kept_shares
from .composing import Maps, composed, fitting, picture_of, resized
from .expansion import Expansion
from .folder import naming
from .judge import Judge, cut
from .sources import class_difference, classes_of, contents_of, digests_of

if TYPE_CHECKING:
    from PIL import Image

    from .generator import Generator

__all__ = ["Kept", "Seen", "Subject", "baselines", "keep", "look", "sheet", "some", "subject_of"]

_CHOSEN = 1023  # a stream of its own, after those of judge.py
_CURE = "run `fastmix refine` again as before, which makes what is missing"
_SIDE, _SHOWN = 160, 6  # px and columns of the sheet

RowOf = dict[str, Any]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Subject:
    """An expanded set and what it was made of.  labels: (n,) of the sources.  maps: those it was made with, if any."""

    source: Source
    labels: Ints
    manifest: Manifest
    expansion: Expansion
    maps: Maps | None = None


@dataclass(frozen=True)
class Seen:
    """rows: of the records that were looked at.  chance: (n,) the judge's probability of the source's class, after."""

    rows: list[RowOf]
    named: Named
    chance: F64


@dataclass(frozen=True)
class Kept:
    """What a filter left.  path: of the manifest of it.  count: of records, out of `of`.  shares: of each class."""

    path: Path
    count: int
    of: int
    shares: list[Share | None]


def subject_of(
    source: Source, manifest: Manifest, expansion: Expansion, maps: Maps | None = None, quiet: bool = True
) -> Subject:
    """Check that the set was made of these sources, to the byte.

    Raises ValueError if not, or if no picture was made, and FastmixError for a source that cannot be read.
    """
    if not manifest.made:
        raise ValueError(f"{manifest.folder} has no picture that was made, expected one: see the statuses of its rows")
    classes = classes_of(source)
    if list(classes.names) != manifest.classes:
        raise ValueError(_other(manifest, f"other classes ({class_difference(manifest.classes, classes.names)})"))
    for row in manifest.made:
        for name in ("source", "target") if row["target"] is not None else ("source",):
            number, there = row[name], (row[f"{name}_label"], row[f"{name}_path"])
            here = (int(classes.labels[number]), classes.paths[number]) if number < len(source) else "nothing"
            if here != there:
                raise ValueError(_other(manifest, f"{here} as sample {number}, not {there}"))
    known = manifest.about.get("contents")
    if known is not None and known != contents_of(digests_of(source, range(len(source)), quiet)):
        raise ValueError(_other(manifest, "other pictures under the same names"))
    return Subject(source, classes.labels, manifest, expansion, maps)


def some(rows: Sequence[RowOf], count: int | None, seed: int) -> list[RowOf]:
    """At most `count` rows, drawn by the numbers of their records; all for None."""
    if count is None or count >= len(rows):
        return list(rows)
    draws = Key(seed).uniform(np.array([row["record"] for row in rows]), _CHOSEN, 1)[:, 0]
    return [rows[i] for i in np.sort(np.argsort(draws, kind="stable")[:count])]


def look(data: Subject, rows: Sequence[RowOf], judge: Judge, batch_size: int, quiet: bool) -> Seen:
    """What the judge names the three pictures of each record.  Raises OSError or ValueError for one that is damaged."""
    names, chance = np.empty((3, len(rows)), np.int64), np.empty(len(rows))
    with tqdm(total=len(rows), desc="judging", unit="record", disable=quiet) as bar:
        for start in range(0, len(rows), batch_size):
            part = rows[start : start + batch_size]
            place = slice(start, start + len(part))
            first, of = np.unique([row["source"] for row in part], return_inverse=True)
            own = [picture_of(data.source, number) for number in first.tolist()]
            mixed = [_composite(data, own[i], row) for i, row in zip(of, part, strict=True)]
            refined = judge.probabilities([_refined(data.manifest, row) for row in part])
            names[0, place] = judge.probabilities(own).argmax(1)[of]
            names[1, place] = judge.probabilities(mixed).argmax(1)
            names[2, place] = refined.argmax(1)
            chance[place] = refined[np.arange(len(part)), [row["source_label"] for row in part]]
            bar.update(len(part))
    return Seen(list(rows), Named(*names), chance)


def baselines(
    data: Subject, seen: Seen, judge: Judge, generator: Generator, count: int, batch_size: int, quiet: bool
) -> Seen:
    """The same with what the judge names `count` sources that were not mixed: through the autoencoder, and refined.

    Strength, prompt and seed are those of the records.  Raises ValueError for another generator than made the set.
    """
    _check_same(generator, seen.rows[0])
    chosen = {row["record"] for row in some(seen.rows, count, data.expansion.seed)}
    round_trip, plain = np.full((2, len(seen.rows)), -1)
    places = [place for place, row in enumerate(seen.rows) if row["record"] in chosen]
    with tqdm(total=len(places), desc="baselines", unit="record", disable=quiet) as bar:
        for strength in sorted({seen.rows[place]["strength"] for place in places}):  # a call of the model has one
            same = [place for place in places if seen.rows[place]["strength"] == strength]
            for start in range(0, len(same), batch_size):
                part = same[start : start + batch_size]
                for found, names in zip((round_trip, plain), _unmixed(data, seen, part, judge, generator), strict=True):
                    found[part] = names
                bar.update(len(part))
    return replace(seen, named=replace(seen.named, round_trip=round_trip, plain=plain))


def keep(data: Subject, seen: Sequence[Seen], bound: float) -> Kept:
    """Write a manifest of the records whose `chance` is at least `bound`, beside the whole one."""
    rows = [row for each in seen for row in each.rows]
    good = np.concatenate([each.chance for each in seen]) >= bound
    path = data.manifest.folder / KEPT
    chosen = [row for row, is_good in zip(rows, good, strict=True) if is_good]
    with naming(path):
        write_rows(path, chosen, {**data.manifest.about, "kept if": f"p>={bound}"})
    labels = np.array([row["source_label"] for row in rows], np.int64)
    return Kept(path, len(chosen), len(rows), kept_shares(labels, good, len(data.manifest.classes)))


def sheet(data: Subject, seen: Seen, title: str) -> Image.Image:
    """A few records, a column each, those that lost their label first: source, target, composite, refined picture."""
    own = np.array([row["source_label"] for row in seen.rows])
    kept = seen.named.after == own
    lost, good = np.flatnonzero(~kept), np.flatnonzero(kept)
    first = _spread(lost, max(_SHOWN // 2, _SHOWN - len(good)))
    places = [*first, *_spread(good, _SHOWN - len(first))]
    columns = [_column(data, seen, place) for place in places]
    names = ("source", "target", "composite", "refined")
    lines = [Row(name, cells) for name, cells in zip(names, zip(*columns, strict=True), strict=True) if any(cells)]
    return grid(title, lines, [f"strength {seen.rows[place]['strength']:g}" for place in places])


def _spread(places: Ints, count: int) -> list[int]:
    """At most `count` of them, from all parts of the set."""
    count = min(count, len(places))
    return [int(places[i * len(places) // count]) for i in range(count)]


def _column(data: Subject, seen: Seen, place: int) -> list[Cell | None]:
    row, names, named = seen.rows[place], data.manifest.classes, seen.named
    own, label = picture_of(data.source, row["source"]), row["source_label"]
    pictures = [own, _composite(data, own, row), _refined(data.manifest, row)]
    pictures += [] if row["target"] is None else [picture_of(data.source, row["target"])]
    clean, before, after, *target = cut(pictures, _SIDE)
    verdict = "kept" if named.after[place] == label else "lost"
    return [
        Cell(clean, f"{names[label]}\nnamed {names[named.clean[place]]}"),
        Cell(target[0], names[row["target_label"]]) if target else None,
        Cell(before, f"named {names[named.before[place]]}"),
        Cell(after, f"named {names[named.after[place]]}: {verdict}\np({names[label]}) = {seen.chance[place]:.2f}"),
    ]


def _unmixed(data: Subject, seen: Seen, part: list[int], judge: Judge, generator: Generator) -> list[Ints]:
    """What the judge names sources that went through the autoencoder, and through all of the model."""
    rows, side = [seen.rows[place] for place in part], data.expansion.size
    own = [picture_of(data.source, row["source"]) for row in rows]
    squares = np.stack([resized(each, (side, side)) for each in own])
    how = rows[0]["strength"], rows[0]["scheduled_steps"], rows[0]["guidance"]
    refined = generator.refine(squares, [row["prompt"] for row in rows], *how, [row["seed"] for row in rows])
    return [
        judge.probabilities(
            [resized(_levels(new), fitting(old.shape, side)) for new, old in zip(made, own, strict=True)]
        ).argmax(1)
        for made in (generator.round_trip(squares), refined)
    ]


def _composite(data: Subject, own: U8, row: RowOf) -> U8:
    """What went into the model, in the shape of the finished picture: so a model that does nothing changes nothing."""
    square = composed(own, data.source, row, data.expansion, data.maps)
    return resized(square, fitting(own.shape, data.expansion.size))


def _check_same(generator: Generator, row: RowOf) -> None:
    for name, there in generator.hashes.items():
        if there != row[name]:
            raise ValueError(
                f"{name} has SHA-256 {there}, but the set was made with {row[name]}: give the one that made it, or "
                "leave out --baseline"
            )


def _refined(manifest: Manifest, row: RowOf) -> U8:
    path = manifest.folder / row["path"]
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing, though the manifest lists it: {_CURE}") from None
    except ValueError as error:
        raise ValueError(f"cannot read {path}: {error}; delete it and {_CURE}") from error


def _levels(picture: NDArray[np.float32]) -> U8:
    return np.ascontiguousarray(np.clip(np.rint(picture * 255), 0, 255).astype(np.uint8))  # a model's are NCHW inside


def _other(manifest: Manifest, what: str) -> str:
    return f"the data set has {what}: {manifest.folder} was made of another one, or of an earlier state of it"

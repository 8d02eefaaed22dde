"""`fastmix agreement`: the label check as a command, and its report."""

from __future__ import annotations

import json
import sys
import traceback
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..datasets import open_source
from ..engine import IMAGENET_MEAN, IMAGENET_STD
from ..explain import load_model
from ..manifest import MADE, read_manifest
from .agreement import Bools, Figures, Rule, Share, agreement, facts, failures, poor_classes, read_bound, table
from .check import Kept, Seen, Subject, baselines, keep, look, sheet, some, subject_of
from .composing import SPECTRAL
from .expansion import Expansion
from .folder import check_room
from .judge import Judge, Training, judge_of, load_judge, split
from .work import GivenMaps

__all__ = ["check"]

_ENDINGS = (".png", ".jpg", ".webp")
_GIVEN_SIZE = 224  # px, of a given classifier


@dataclass(frozen=True)
class _Judges:
    """held: (n,) which sources `first` has not seen.  second: has not seen the others.  told: what they are."""

    first: Judge
    second: Judge | None
    held: Bools
    told: str


@dataclass(frozen=True)
class _Report:
    data: Subject
    seen: Seen
    judges: _Judges
    rule: Rule
    figures: list[Figures]
    kept: Kept | None


def check(options: Namespace) -> None:
    """Run `fastmix agreement`; see `fastmix.offline.agreement`.  Raises SystemExit(1) where labels are not kept."""
    rule, training = Rule(options.most_loss, options.least), _training(options)
    bound = None if options.keep_if is None else read_bound(options.keep_if)
    _check_options(options)
    quiet = options.quiet or not sys.stderr.isatty()
    data = _subject(options, quiet)
    if bound is not None:
        check_room(data.manifest.folder)
    if options.output:
        check_room(Path(options.output).parent)
    judges = _judges(options, data, training, bound is not None, quiet)
    rows = some([row for row in data.manifest.made if judges.held[row["source"]]], options.records, options.seed)
    if not rows:
        raise ValueError("no record is of a source that the judge has not seen: raise --held-out, or give --classifier")
    seen = look(data, rows, judges.first, options.batch_size, quiet)
    if options.baseline:
        generator = _generator(options, options.dtype or data.manifest.about.get("dtype") or "float32")
        seen = baselines(data, seen, judges.first, generator, options.baseline, options.batch_size, quiet)
    kept = None if bound is None else _kept(options, data, seen, judges, bound, quiet)
    report = _Report(data, seen, judges, rule, agreement(seen.rows, seen.named), kept)
    if options.output:
        sheet(data, seen, f"{options.out}, judge: {judges.told}").save(options.output)
    failed = failures(report.figures, rule)
    sys.stdout.write(_json(options, report, failed) if options.json else _text(options, report, failed))
    if failed:
        raise SystemExit(1)


def _check_options(options: Namespace) -> None:
    """Refuse before the work what would fail after it."""
    for name in ("records", "batch_size"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {value}, expected at least 1")
    if options.keep_if is not None and options.records is not None:
        raise ValueError("--keep-if needs a look at every record: leave out --records")
    if options.weights and not options.classifier:
        raise ValueError("--weights are those of a classifier: give its function with --classifier")
    if options.baseline < 0 or (options.baseline and not (options.model or options.finetuned)):
        raise ValueError(f"--baseline is {options.baseline}, expected 0, or more with the --model that made the set")
    target = options.output and Path(options.output)
    if target and (not target.parent.is_dir() or target.is_dir() or target.suffix.lower() not in _ENDINGS):
        raise ValueError(
            f"cannot write {target}: expected a file in a folder that exists, named *{' or *'.join(_ENDINGS)}"
        )


def _training(options: Namespace) -> Training:
    size = options.size
    if size is None:
        size = _GIVEN_SIZE if options.classifier else Training.size
    return Training(size=size, epochs=options.epochs, held_out=options.held_out, seed=options.seed)


def _subject(options: Namespace, quiet: bool) -> Subject:
    manifest, source = read_manifest(options.out), open_source(options.data)
    expansion = Expansion.from_json(manifest.about.get("expansion", {}))
    maps, made_with = options.maps and GivenMaps(options.maps, source), manifest.about.get("saliency")
    if maps and maps.name != made_with:
        raise ValueError(f"--maps {options.maps} are {maps.name}, but the set was made with {made_with}: give these")
    if maps is None and made_with not in (None, SPECTRAL):
        raise ValueError(f"the set was made with {made_with}: give the file of these with --maps")
    return subject_of(source, manifest, expansion, maps, quiet)


def _judges(options: Namespace, data: Subject, how: Training, both: bool, quiet: bool) -> _Judges:
    """The classifier that is given, for all sources; or one trained here, and for a filter another for the others."""
    classes, device, everyone = len(data.manifest.classes), options.device, np.arange(len(data.labels))
    if options.classifier:
        model = _given(options)
        mean, std = getattr(options, "mean", IMAGENET_MEAN), getattr(options, "std", IMAGENET_STD)
        judge = judge_of(model, classes, how.size, mean, std, device)
        return _Judges(judge, None, np.ones(len(everyone), np.bool_), str(options.classifier))
    held = split(data.labels, how.held_out, how.seed)
    if not held.any():
        raise ValueError(
            f"--held-out {how.held_out} of every class leaves no source to judge: raise it, or give --classifier"
        )

    def trained(name: str, part: Bools) -> Judge:
        file = data.manifest.folder / name
        return load_judge(file, data.source, everyone[part], data.labels, classes, how, device, quiet)

    told = f"a network trained here on {int((~held).sum())} other sources, {how.epochs} epochs at {how.size} px"
    return _Judges(trained("judge.pt", ~held), trained("judge_other.pt", held) if both else None, held, told)


def _given(options: Namespace) -> Any:
    """The classifier of --classifier.  Raises ValueError where the user's function fails, in whatever way."""
    try:
        return load_model(options.classifier, options.classifier_args, options.weights)
    except (ImportError, OSError, ValueError):
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ValueError(
            f"--classifier {options.classifier} with --classifier-args {json.dumps(options.classifier_args)} fails: "
            f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
        ) from error


def _generator(options: Namespace, dtype: str) -> Any:
    from .generator import Adapted

    if options.finetuned:
        return Adapted.finetuned(options.finetuned, options.model).load(options.device, dtype)
    return Adapted(options.model, options.adapter, options.tokens).load(options.device, dtype)


def _kept(options: Namespace, data: Subject, seen: Seen, judges: _Judges, bound: float, quiet: bool) -> Kept:
    others = [row for row in data.manifest.made if not judges.held[row["source"]]]
    if not others:
        return keep(data, [seen], bound)
    assert judges.second is not None
    return keep(data, [seen, look(data, others, judges.second, options.batch_size, quiet)], bound)


def _text(options: Namespace, report: _Report, failed: Sequence[str]) -> str:
    rows, whole = report.seen.rows, _accuracy(report.seen)
    low, high = whole.interval
    lines = [
        f"{len(rows)} records of {whole.n} sources; judge: {report.judges.told}",
        f"it names {whole.value:.1%} of these sources rightly (95 %: {low:.1%} to {high:.1%})",
        "shares that are named as the class of the source, per cent (95 %):",
        table(report.figures),
        *(f"note: {note}" for note in _notes(report)),
    ]
    rule = f"before - after <= {100 * report.rule.most_loss:g} points, normalised after >= {report.rule.least:.1%}"
    lines += [f"FAILS: {reason}" for reason in failed] or [f"passes: {rule} at every strength"]
    if report.kept:
        lines += _kept_lines(report.kept, report.data.manifest.classes, options.keep_if)
    return "\n".join([*lines, *([f"wrote {options.output}"] if options.output else [])]) + "\n"


def _kept_lines(kept: Kept, names: Sequence[str], rule: str) -> list[str]:
    lines = [f"kept {kept.count} of {kept.of} records with {rule}: wrote {kept.path}"]
    width = max(map(len, names))
    for name, share in zip(names, kept.shares, strict=True):
        lines.append(
            f"  {name:{width}}  " + (f"{share.hits} of {share.n} ({share.value:.1%})" if share else "none made")
        )
    if poor := [names[number] for number in poor_classes(kept.shares)]:
        lines.append(
            f"warning: of {', '.join(poor)} less than half as much is kept as of a class on average: the filter shifts "
            "the balance of the classes"
        )
    return lines


def _notes(report: _Report) -> list[str]:
    """What a reader of the figures should know."""
    rows, sources, held = report.seen.rows, _accuracy(report.seen).n, report.judges.held
    notes = ["the rule is about the shares themselves, not the ends of their intervals"]
    if len(rows) > sources:
        notes.append(
            "intervals and p take records as independent, which copies of one source are not: they are too sure"
        )
    if _accuracy(report.seen).interval[0] <= 1 / len(report.data.manifest.classes):
        notes.append("the judge is no better than chance on clean sources, so its agreement says nothing")
    known = sum(row["target"] is not None and not held[row["target"]] for row in rows)
    if known:
        notes.append(f"the judge was trained on the targets of {known} records, whose backgrounds it may recognise")
    shared = sum(row["weight"] < 1 for row in rows)
    if shared:
        notes.append(f"{shared} records share their label with a target by design; the rule is about sources' labels")
    for status, count in _statuses(report.data).items():
        notes.append(f"{count} records have no picture: {status}")
    return notes


def _json(options: Namespace, report: _Report, failed: Sequence[str]) -> str:
    kept, names = report.kept, report.data.manifest.classes
    told = {
        "data": str(options.data),
        "out": str(options.out),
        "judge": report.judges.told,
        "judge_accuracy": asdict(_accuracy(report.seen)),
        "records": len(report.seen.rows),
        "not_made": _statuses(report.data),
        "rule": asdict(report.rule),
        "strengths": facts(report.figures),
        "failures": list(failed),
        "passed": not failed,
        "notes": _notes(report),
        "kept": kept
        and {
            "path": str(kept.path),
            "rule": options.keep_if,
            "records": kept.count,
            "of": kept.of,
            "classes": {
                name: share and share.value for name, share in zip(names, kept.shares, strict=True)
            },
            "poor_classes": [names[number] for number in poor_classes(kept.shares)],
        },
        "picture": options.output,
    }  # fmt: skip
    return json.dumps(told) + "\n"


def _accuracy(seen: Seen) -> Share:
    """Of clean sources, each counted once."""
    right = {
        row["source"]: bool(name == row["source_label"])
        for row, name in zip(seen.rows, seen.named.clean, strict=True)
    }  # fmt: skip
    return Share(sum(right.values()), len(right))


def _statuses(data: Subject) -> dict[str, int]:
    """How many records have no picture, by status."""
    names, counts = np.unique([row["status"] for row in data.manifest.rows], return_counts=True)
    return {name: count for name, count in zip(names.tolist(), counts.tolist(), strict=True) if name != MADE}

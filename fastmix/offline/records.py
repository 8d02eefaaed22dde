"""What becomes of each record, by chance or not: pure functions of the settings and the record's number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..rng import Key, integers, shuffle
from .expansion import Expansion, executed_steps

__all__ = ["Classes", "candidates_of", "decided", "fractal_of", "is_beside", "prompts_of"]

# Streams of their own: nothing else draws from them.
_STRENGTH, _PROMPT, _CLASS, _SEED, _CANDIDATES, _HALVES, _FRACTAL = range(1100, 1107)


@dataclass(frozen=True)
class Classes:
    """labels: (N,) int64, of the samples.  paths: of their files, below one folder.  names, tokens: of the classes."""

    labels: NDArray[np.int64]
    names: tuple[str, ...]
    tokens: tuple[str, ...]
    paths: Sequence[str | None]


def decided(record: int, expansion: Expansion, classes: Classes, hashes: Mapping[str, str | None]) -> dict[str, Any]:
    """The row of a record, as far as chance decides it: without a target's picture, its mask and the status.

    hashes: "model", "adapter" and "tokens".
    """
    source, copy = divmod(record, expansion.multiplier)
    key, ids = Key(expansion.seed, epoch=copy), np.array([source])
    label = int(classes.labels[source])
    strength = expansion.strengths[_choice(key, source, _STRENGTH, len(expansion.strengths))]
    other = None
    if expansion.prompt_class == "target":
        other = _choice(key, source, _CLASS, len(classes.names))
    shown = label if other is None else other
    low, high = (int(word) for word in key.bits(ids, _SEED, 2)[0])
    return {
        **dict.fromkeys(("path", "target", "target_path", "mask_area", "leak_area", "distance", "saliency")),
        "record": record,
        "source": source,
        "source_path": classes.paths[source],
        "source_label": label,
        "target_label": other,
        "weight": 1.0 if expansion.gamma is None else 1.0 - strength**expansion.gamma,
        "strength": float(strength),
        "steps": executed_steps(strength, expansion.steps),
        "scheduled_steps": expansion.steps,
        "guidance": float(expansion.guidance),
        "seed": (low | high << 32) >> 2,  # 62 bits: room for further tries
        "prompt": expansion.prompt(_prompt(expansion, source, copy), classes.tokens[shown], classes.names[shown]),
        **{name: hashes.get(name) for name in ("model", "adapter", "tokens")},
    }


def prompts_of(expansion: Expansion, classes: Classes) -> list[str]:
    """All prompts there can be, each once."""
    pairs = list(zip(classes.tokens, classes.names, strict=True))
    made = (expansion.prompt(number, *pair) for number in range(len(expansion.prompts)) for pair in pairs)
    return list(dict.fromkeys(made))


def candidates_of(record: int, expansion: Expansion, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Up to `candidates` different samples, in ascending order, that may be the record's target; never the source."""
    source, copy = divmod(record, expansion.multiplier)
    allowed = np.ones(len(labels), np.bool_)
    if expansion.same_class != "allow":
        allowed = (labels == labels[source]) == (expansion.same_class == "require")
    allowed[source] = False
    pool = np.flatnonzero(allowed)
    count = min(expansion.candidates, len(pool))
    if count == len(pool):
        return pool
    low, high = (int(word) for word in Key(expansion.seed, epoch=copy).bits(np.array([source]), _CANDIDATES, 2)[0])
    own = Key(low | high << 32)  # a permutation of the record's own; only its first numbers are worked out
    return np.sort(pool[shuffle(np.arange(count), len(pool), own, _CANDIDATES)])


def is_beside(record: int, expansion: Expansion) -> bool:
    """Whether the halves of a picture are left and right, rather than top and bottom."""
    source, copy = divmod(record, expansion.multiplier)
    return _choice(Key(expansion.seed, epoch=copy), source, _HALVES, 2) == 0


def fractal_of(record: int, expansion: Expansion, count: int) -> int:
    """Which of `count` fractals a picture gets."""
    source, copy = divmod(record, expansion.multiplier)
    return _choice(Key(expansion.seed, epoch=copy), source, _FRACTAL, count)


def _choice(key: Key, source: int, stream: int, count: int) -> int:
    return int(integers(key.uniform(np.array([source]), stream, 1)[0, 0], 0, count))


def _prompt(expansion: Expansion, source: int, copy: int) -> int:
    count = len(expansion.prompts)
    order = np.argsort(Key(expansion.seed).bits(np.array([source]), _PROMPT, count)[0], kind="stable")
    return int(order[copy % count])

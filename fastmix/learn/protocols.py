"""The class splits on which open-set recognition is compared: six protocols of five trials each, as data.

The lists are those that Vaze et al., "Open-set recognition: a good closed-set classifier is all you need" (ICLR 2022),
released and took from earlier work, number for number.  Trials 0 and 1 of "cifar10" have the same known classes in
another order, so its five trials are four partitions.

    split = PROTOCOLS["cifar10"][0]
    keep = np.isin(labels, split.known)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True)
class Split:
    """Which classes are trained on, and which ones are met only in the test.

    known: class numbers in the dataset `known_from`.  unknown: class numbers in the dataset `unknown_from`, which is
    often the same one.  Raises ValueError where there are none, or one is named twice.
    """

    known_from: str
    known: tuple[int, ...]
    unknown_from: str
    unknown: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.known or not self.unknown:
            raise ValueError(f"{len(self.known)} known and {len(self.unknown)} unknown classes, expected some of each")
        named = [(self.known_from, c) for c in self.known] + [(self.unknown_from, c) for c in self.unknown]
        if twice := sorted({name for name in named if named.count(name) > 1}):
            raise ValueError(f"classes {twice} are named twice, expected each class once, known or unknown")

    @classmethod
    def of(cls, dataset: str, known: Sequence[int], num_classes: int) -> Split:
        """All classes of one dataset that are not known are unknown.

        Raises ValueError for known classes outside 0..num_classes-1, as well.
        """
        if outside := sorted(set(known) - set(range(num_classes))):
            raise ValueError(f"known classes {outside} are outside 0..{num_classes - 1} (num_classes={num_classes})")
        unknown = tuple(c for c in range(num_classes) if c not in known)
        return cls(dataset, tuple(known), dataset, unknown)

    @property
    def openness(self) -> float:
        """1 - sqrt(K / M) with K known classes and M known and unknown ones.

        Others report 1 - sqrt(2 K / (K + M)), which is smaller (Scheirer et al., PAMI 2013, with K classes to train and
        to recognise and M to test): name the formula next to the figure.
        """
        known = len(self.known)
        return 1 - sqrt(known / (known + len(self.unknown)))


_MNIST = (
    "2 4 5 9 8 3",
    "3 2 6 9 4 0",
    "5 8 3 2 4 6",
    "3 7 8 4 0 5",
    "6 3 4 9 8 2",
)
_SVHN = (
    "5 3 7 2 8 6",
    "3 8 7 6 2 5",
    "8 9 4 7 2 1",
    "3 8 2 5 0 6",
    "4 9 2 7 1 0",
)
_CIFAR10 = (
    "0 6 4 9 1 7",
    "7 6 4 9 0 1",
    "1 5 7 3 9 4",
    "8 6 1 9 0 7",
    "2 4 1 7 9 6",
)
_CIFAR10_OF_FOUR = (
    "4 7 9 1",
    "6 7 1 9",
    "9 6 1 7",
    "6 4 9 1",
    "1 0 9 8",
)
_CIFAR100_UNKNOWN = (  # the last ten of each are those of "cifar+10"
    "27 94 29 77 88 26 69 48 75 5 59 93 39 57 45 40 78 20 98 47 66 70 91 76 41 "
    "83 99 32 53 72 2 95 21 73 84 68 35 11 55 60 30 25 1 9 8 0 46 52 49 71",
    "65 97 86 24 45 67 2 3 91 98 79 29 62 82 33 76 0 35 5 16 54 11 99 52 85 "
    "1 25 66 28 84 23 56 75 46 21 72 55 68 8 69 41 9 49 40 73 60 48 30 95 71",
    "20 83 65 97 94 2 93 16 67 29 62 33 24 98 5 86 35 54 0 91 52 66 85 84 56 "
    "11 1 76 25 55 21 99 72 41 23 75 28 68 69 46 8 9 49 40 73 60 48 95 30 71",
    "92 82 77 64 5 33 62 56 70 0 20 28 67 14 84 53 91 29 85 2 52 83 75 35 11 "
    "21 72 98 55 1 41 76 25 66 69 9 48 54 40 23 95 60 30 73 46 49 68 99 8 71",
    "47 6 19 0 62 93 59 65 54 70 34 55 23 38 72 76 53 31 78 96 77 27 92 18 82 "
    "50 98 32 1 75 83 4 51 35 80 11 74 66 36 42 33 2 3 97 46 21 64 63 88 43",
)
_TINYIMAGENET = (
    "108 147 17 58 193 123 72 144 75 167 134 14 81 171 44 197 152 66 1 133",
    "198 161 91 59 57 134 61 184 90 35 29 23 199 38 133 19 186 18 85 67",
    "177 0 119 26 78 80 191 46 134 92 31 152 27 60 114 50 51 133 162 93",
    "98 36 158 177 189 157 170 191 82 196 138 166 43 13 152 11 75 174 193 190",
    "95 6 145 153 0 143 31 23 189 81 20 21 89 26 36 170 102 177 108 169",
)


def _ids(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


def _one_dataset(name: str, trials: Sequence[str], num_classes: int) -> tuple[Split, ...]:
    return tuple(Split.of(name, _ids(known), num_classes) for known in trials)


def _cifar_plus(count: int) -> tuple[Split, ...]:
    return tuple(
        Split("cifar10", _ids(known), "cifar100", _ids(unknown)[-count:])
        for known, unknown in zip(_CIFAR10_OF_FOUR, _CIFAR100_UNKNOWN, strict=True)
    )


PROTOCOLS: dict[str, tuple[Split, ...]] = {
    "mnist": _one_dataset("mnist", _MNIST, 10),
    "svhn": _one_dataset("svhn", _SVHN, 10),
    "cifar10": _one_dataset("cifar10", _CIFAR10, 10),
    "cifar+10": _cifar_plus(10),
    "cifar+50": _cifar_plus(50),
    "tinyimagenet": _one_dataset("tinyimagenet", _TINYIMAGENET, 200),
}
"""Name of the protocol -> its trials.  TinyImageNet's numbers count its wnids in sorted order, as ImageFolder does."""

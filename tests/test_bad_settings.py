"""Bad settings, pools and batches: one clear error each, with the value, what was expected and the fix.

Whatever can be known then is refused by the constructors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import POOL, loader_of, make_arrays

import fastmix
from fastmix import AugMix, Batch, CutMix, DataLoader, IPMix, Key, LayerMix, MixUp, PixMix, Pool

NAN = float("nan")


# Arguments


IMAGES, NUMBERS = make_arrays(12)


@pytest.mark.parametrize(
    ("dataset", "kind", "words"),
    [
        (
            (IMAGES / 255, NUMBERS),
            TypeError,
            r"images are float64, expected uint8 .* normalising, so remove ToTensor\(\)",
        ),
        (
            (torch.zeros(2, 3, 8, 8), torch.zeros(2).long()),
            TypeError,
            "images are float32, expected uint8 in 0..255: mix",
        ),
        ((IMAGES.transpose(0, 3, 1, 2), NUMBERS), ValueError, r"shape \(12, 3, 32, 32\), expected \(N, H, W, 3\)"),
        ((IMAGES, NUMBERS[:5]), ValueError, r"labels have shape \(5,\) for 12 ids"),
        (
            (IMAGES, NUMBERS * 1.0),
            ValueError,
            r"\(N,\) labels are float64, expected integers; give soft labels as \(N, C",
        ),
        (None, TypeError, "dataset is a NoneType, expected a folder with one subfolder a class, an"),
        ({0: (IMAGES[0], 1)}, TypeError, "dataset is a dict, expected a folder"),
    ],
    ids=["floats", "float tensors", "NCHW", "few labels", "float labels", "None", "dictionary"],
)
def test_datasets(dataset: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        DataLoader(dataset, size=32)


SETTINGS: list[tuple[dict[str, Any], str]] = [
    *(({"batch_size": value}, f"batch_size={value}") for value in (0, -1, 2.5)),
    ({"num_workers": -1}, "num_workers option should be non-negative; use num_workers=0"),
    *(({"prefetch_factor": value, "num_workers": 1}, "prefetch_factor") for value in (0, -2)),
    ({"timeout": -1}, "timeout option should be non-negative"),
    *(
        ({"hflip": value}, rf"hflip is {value!r}, expected a probability in \[0, 1\]")
        for value in (-0.1, 1.5, NAN, "x")
    ),
    *(({"size": value}, "size is .*, expected pixels >= 1: an integer or a pair") for value in (0, -3, 2.5, "9", None)),
    *(
        ({"size": value}, rf"size is {re.escape(str(value))}, expected")
        for value in ((224,), (224, 0), (1, 2, 3), (1.5, 2))
    ),
    *(
        ({"seed": value}, rf"seed is {value!r}, expected 0 <= seed < 2\*\*64, an integer")
        for value in (-1, 2**64, 1.5, "a")
    ),
    *(({"mean": value}, "mean is .*, expected three numbers each") for value in ((0.5, 0.5), 0.5, None, (NAN, 0, 0))),
    *(
        ({"std": value}, "std is .*, expected three numbers each, .* std > 0")
        for value in ((1, 0, 1), (1, 1, -1), (1,), 1)
    ),
    *(
        ({"scale": value}, "scale is .*, expected 0 < low <= high <= 1")
        for value in ((0, 1), (0.5, 0.1), (1,), 0.5, (NAN, 1))
    ),
    *(({"ratio": value}, "ratio is .*, expected 0 < low <= high") for value in ((0, 1), (2, 1), 1, (1, float("inf")))),
    *(({"views": value}, f"views is {value}, expected 1, 2 or 3") for value in (0, 4, -1)),
    ({"views": 3, "mix": MixUp()}, "views is 3 and mix is MixUp.*: pass another, or views=1"),
    *(({"num_classes": value}, f"num_classes is {value!r}, expected an integer >= 1") for value in (0, -1, 2.5, "3")),
    ({"num_classes": 3}, r"labels run from \d to \d, expected 0\.\.2 \(num_classes=3\): pass num_classes=\d"),
    (
        {"mix": MixUp(num_classes=3)},
        r"labels run from \d to \d, expected 0\.\.2 \(num_classes=3\): pass num_classes=\d",
    ),
    *(
        ({name: "no"}, f"{name} is 'no', expected one of")
        for name in ("crop", "output", "labels", "on_error", "memory_format")
    ),
    ({"device": "mps"}, r"device is 'mps', expected None, 'cpu' or 'cuda'"),
]


@pytest.mark.parametrize(
    ("options", "words"), SETTINGS, ids=lambda value: str(value) if isinstance(value, dict) else ""
)
def test_settings(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DataLoader((IMAGES, NUMBERS), **{"size": 32, **options})


@pytest.mark.parametrize("mix", [MixUp, PixMix, "pixmix", [MixUp()]], ids=str)
def test_what_is_no_method(mix: Any) -> None:
    with pytest.raises(TypeError, match=r"mix is .*, expected a method such as fastmix.PixMix.imagenet\(\), or None"):
        DataLoader((IMAGES, NUMBERS), mix=mix)


def test_whole_numbers_of_numpy_are_numbers() -> None:
    options = {"size": np.int64(32), "seed": np.uint64(11), "hflip": np.float32(0.5), "num_classes": np.int32(10)}
    ((images, _),) = loader_of((IMAGES, NUMBERS), batch_size=12, **options)
    np.testing.assert_array_equal(images, next(iter(loader_of((IMAGES, NUMBERS), batch_size=12, size=32)))[0])


def test_classes_of_the_same_name_are_two_classes() -> None:
    dataset = fastmix.ArrayDataset(IMAGES, NUMBERS % 3, ["cat", "cat", "dog"])
    ((_, labels),) = loader_of(dataset, batch_size=12, size=32, shuffle=False, labels="soft")
    np.testing.assert_array_equal(labels, np.eye(3)[NUMBERS % 3])


@pytest.mark.parametrize("epoch", [-1, 2**32, 1.5, "2", None])
def test_epochs(epoch: Any) -> None:
    loader = loader_of((IMAGES, NUMBERS), size=32)
    for call in (loader.set_epoch, lambda epoch: loader.explain(0, epoch)):
        with pytest.raises(ValueError, match=rf"epoch is {epoch!r}, expected 0 <= epoch < 2\*\*32, an integer"):
            call(epoch)


METHOD_SETTINGS: list[tuple[Any, str, Any]] = [
    *((kind, "alpha", value) for kind in (MixUp, CutMix, AugMix) for value in (0, -1.0, NAN, None, "1")),
    *((kind, "beta", value) for kind in (PixMix, IPMix, LayerMix) for value in (0, NAN, "1")),
    *((kind, "severity", value) for kind in (AugMix, PixMix, IPMix) for value in (NAN, 0, 11, "3")),
    *((LayerMix, "magnitude", value) for value in (NAN, 0, "3")),
    *((IPMix, "patch_sizes", value) for value in (4, ())),
    (PixMix, "k", "4"),
]


@pytest.mark.parametrize(("kind", "name", "value"), METHOD_SETTINGS)
def test_settings_of_methods(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name} is {re.escape(repr(value))}, expected .*: ."):
        kind(**{name: value})


# Pools


def saved(array: Any) -> Callable[[Path], None]:
    return lambda path: np.save(path, array)


POOLS: list[tuple[str, Callable[[Path], object], str]] = [
    (
        "too small",
        saved(np.zeros((2, 20, 31, 3), np.uint8)),
        "20x31, smaller than the 32x32 .* `fastmix pool make --size",
    ),
    (
        "floats",
        saved(np.zeros((2, 40, 40, 3), np.float32)),
        r"holds float32 \(2, 40, 40, 3\), expected uint8 .*`fastmix po",
    ),
    (
        "grey",
        saved(np.zeros((2, 40, 40), np.uint8)),
        r"a pool holds uint8 \(2, 40, 40\), expected uint8 \(M, H, W, 3\): pack",
    ),
    ("empty", saved(np.zeros((0, 40, 40, 3), np.uint8)), r"a pool holds uint8 \(0, 40, 40, 3\), expected"),
    (
        "objects",
        saved(np.array([{}], object)),
        "Python objects in dtype.*; expected a .npy file that `fastmix pool make`",
    ),
    ("missing", lambda _: None, "cannot open pool .*No such file.*; expected a .npy file"),
    ("a folder", lambda path: path.mkdir(), "cannot open pool .*directory.*; expected a .npy file"),
    (
        "a picture",
        lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n0123456789"),
        "the magic string is not correct; .*; expected a .npy file that",
    ),
    ("text", lambda path: path.write_text("pool"), "EOF: reading magic string.*; expected a .npy file that"),
    ("cut off", lambda path: cut_off(path), "mmap length is greater than file size; expected a .npy file that"),
]


def cut_off(path: Path) -> None:
    np.save(path, POOL.images)
    path.write_bytes(path.read_bytes()[:5000])


@pytest.mark.parametrize(("write", "words"), [case[1:] for case in POOLS], ids=[case[0] for case in POOLS])
def test_pools(write: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    path = tmp_path / "pool.npy"
    write(path)
    with pytest.raises(ValueError, match=words):
        DataLoader((IMAGES, NUMBERS), size=32, mix=PixMix(), pool=path)


def test_archives_are_no_pools(tmp_path: Path) -> None:
    np.savez(tmp_path / "pool.npz", images=POOL.images)
    with pytest.raises(
        ValueError, match=r"the magic string is not correct; .*; expected a .npy file that `fastmix pool"
    ):
        Pool.open(tmp_path / "pool.npz")


@pytest.mark.parametrize(
    "pool", [POOL.images, 3, torch.from_numpy(POOL.images)], ids=lambda value: type(value).__name__
)
def test_other_things_are_no_pools(pool: Any) -> None:
    for options in ({"mix": PixMix(), "pool": pool}, {"mix": PixMix(pool=pool)}, {"pool": pool}):
        with pytest.raises(
            TypeError, match=rf"pool is a {type(pool).__name__}, expected the path of a pool file, or fastmix"
        ):
            DataLoader((IMAGES, NUMBERS), size=32, **options)
    with pytest.raises(TypeError, match="a pool holds a list, expected a NumPy array"):
        Pool([pool])  # type: ignore[arg-type]


# Batches


def test_labels_are_mixed_once() -> None:
    batch, key = Batch.of(IMAGES, NUMBERS), Key(1)
    mixed = fastmix.mix(MixUp(), batch, key)
    with pytest.raises(ValueError, match=r"label weights go down to 0\.\d+, expected 1, .*start from Targets.of"):
        fastmix.mix(CutMix(), mixed, key)
    assert (fastmix.mix(AugMix(), mixed, key).targets.w == mixed.targets.w).all()


def test_batches_and_keys() -> None:
    with pytest.raises(TypeError, match=r"images are float64, expected uint8 in 0\.\.255: mix before normalising"):
        Batch.of(IMAGES / 255, NUMBERS)
    with pytest.raises(ValueError, match="ids run from -11 to 0, expected 0 <= id"):
        fastmix.mix(MixUp(), Batch.of(IMAGES, NUMBERS, -np.arange(12)), Key(1))
    with pytest.raises(ValueError, match="pool is None, expected a Pool: pass pool="):
        fastmix.mix(PixMix(), Batch.of(IMAGES, NUMBERS), Key(1))
    for seed in (-1, 2**64, 0.5):
        with pytest.raises(ValueError, match=rf"seed is {seed}, expected 0 <= seed < 2\*\*64, an integer"):
            Key(seed)  # type: ignore[arg-type]

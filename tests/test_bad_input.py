"""Bad folders, files and samples: one clear error each, with the value, what was expected and the fix.

Samples are not read before they are due, so their errors come in the place of their batch.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import loader_of
from PIL import Image

from fastmix import CutMix, DataLoader, FastmixError, MixUp

NAN = float("nan")
PICTURE = np.random.default_rng(0).integers(0, 256, (60, 50, 3), dtype=np.uint8)
ONE = PICTURE[:32, :32].copy()


def encoded(kind: str, pixels: Any = PICTURE) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


JPEG, PNG = encoded("JPEG"), encoded("PNG")


def png_of(width: int, height: int) -> bytes:
    """A PNG whose header declares this size."""
    chunk = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"
    return PNG[:12] + chunk + zlib.crc32(chunk).to_bytes(4, "big") + PNG[33:]


def jpeg_of(width: int, height: int) -> bytes:
    """A JPEG whose frame header declares this size."""
    at = JPEG.index(b"\xff\xc0") + 5
    return JPEG[:at] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + JPEG[at + 4 :]


def folder(root: Path, name: str = "good.png", data: bytes = PNG) -> Path:
    """A class of two good files and one of that name."""
    (root / "cat").mkdir()
    for file, content in (("0.png", PNG), ("1.jpg", JPEG), (name, data)):
        (root / "cat" / file).write_bytes(content)
    return root


# Folders


def empty(root: Path) -> Path:
    return root


def flat(root: Path) -> Path:
    (root / "0.png").write_bytes(PNG)
    return root


def without_pictures(root: Path) -> Path:
    (root / "dog").mkdir()
    (root / "dog" / "notes.txt").write_text("no picture")
    return folder(root)


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda root: root / "none", FileNotFoundError, r"none' does not exist: expected a folder with one subfolder"),
        (lambda _: "", FileNotFoundError, "dataset folder '' does not exist"),
        (lambda root: flat(root) / "0.png", NotADirectoryError, r"0.png' is a file, expected a folder with one sub"),
        (empty, FileNotFoundError, "has no subfolders, expected one a class with pictures in it"),
        (flat, FileNotFoundError, "has no subfolders, expected one a class with pictures in it"),
        (without_pictures, FileNotFoundError, r"class folders without pictures in .*: dog; add files \(.jpg .* or rem"),
    ],
    ids=["missing", "no name", "a file", "empty", "no classes", "class without pictures"],
)
def test_folders(make: Callable[[Path], Any], kind: type[Exception], words: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=words):
        DataLoader(make(tmp_path))


def test_links_in_a_circle_are_left_alone(tmp_path: Path) -> None:
    root = folder(tmp_path)
    (root / "cat" / "again").symlink_to(root / "cat")
    (root / "loop").symlink_to(root / "loop")
    (root / "cat" / "dir.png").mkdir()
    assert len(DataLoader(root).dataset) == 3


# Files


FILES = {
    "truncated JPEG": ("z.jpg", JPEG[: len(JPEG) // 2], "decode", "truncated or damaged JPEG"),
    "truncated PNG": ("z.png", PNG[: len(PNG) // 2], "decode", "truncated or damaged PNG"),
    "JPEG without a frame": ("z.jpg", JPEG[:100], "decode", "truncated or damaged JPEG: it has no frame header"),
    "text": ("z.png", b"this is no picture", "decode", "not a picture that Pillow can read: it starts with b'this is "),
    "nothing": ("z.jpg", b"", "decode", r"the file is empty \(0 bytes\)"),
    "no width": ("z.png", png_of(0, 5), "decode", "declares 0 x 5 pixels, expected at least 1 x 1"),
    "no height": ("z.jpg", jpeg_of(50, 0), "decode", "declares 50 x 0 pixels, expected at least 1 x 1"),
    "100 Mpx PNG": ("z.png", png_of(10_000, 10_000), "decode", "10000 x 10000 pixels, more than max_pixels=89478485"),
    "100 Mpx JPEG": ("z.jpg", jpeg_of(10_000, 10_000), "decode", "10000 x 10000 pixels, more than max_pixels=894784"),
    "lying JPEG": ("z.jpg", jpeg_of(8_000, 10_000), "decode", "truncated or damaged JPEG: Corrupt JPEG data"),
    "float TIFF": ("z.tiff", encoded("TIFF", np.zeros((5, 5), np.float32)), "decode", r"float values \(mode F\), exp"),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("case", FILES)
def test_files(case: str, workers: int, tmp_path: Path) -> None:
    name, data, stage, words = FILES[case]
    loader = loader_of(folder(tmp_path, name, data), shuffle=False, num_workers=workers)
    fix = "; mend or remove the file, or pass on_error='replace'$"
    with pytest.raises(FastmixError, match=rf"^sample 2 \(.*{name}\), stage {stage}: .*{words}.*{fix}") as caught:
        next(iter(loader))
    assert (caught.value.sample_id, caught.value.path, caught.value.stage) == (2, str(tmp_path / "cat" / name), stage)


@pytest.mark.parametrize("case", FILES)
def test_bad_files_are_replaced_counted_and_listed(case: str, tmp_path: Path) -> None:
    """By another sample that a key draws: the same one each time and with any number of threads."""
    name, data, _, words = FILES[case]
    root, made = folder(tmp_path, name, data), set()
    for workers in (0, 2):
        loader = loader_of(root, shuffle=False, num_workers=workers, on_error="replace", output="uint8")
        with pytest.warns(UserWarning, match=rf"bad samples replaced in epoch 0: 1\n  2 \(.*{name}\): .*{words}"):
            ((images, _),) = loader
        ((number, path, reason),) = loader.bad
        assert (number, path) == (2, str(root / "cat" / name)) and "on_error" not in reason
        made.add(images.numpy().tobytes())
        assert loader.explain(2, 0).stand_in in (0, 1)
        np.testing.assert_array_equal(loader.explain(2, 0).pictures[0], images[2].permute(1, 2, 0))
    assert len(made) == 1


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    root = folder(tmp_path)
    (root / "cat" / "gone.png").symlink_to(root / "nowhere")
    (root / "cat" / "self.png").symlink_to(root / "cat" / "self.png")
    loader = loader_of(root, shuffle=False, batch_size=1)
    for sample, name, words in ((2, "gone", "No such file"), (4, "self", "Too many levels of symbolic links")):
        loader = loader_of(root, shuffle=False, batch_size=1, sampler=[sample])
        with pytest.raises(FastmixError, match=rf"sample {sample} \(.*{name}.png\), stage read: .*{words}.*; mend or"):
            next(iter(loader))


_UNREADABLE = """
import os, sys
from fastmix import DataLoader
list(DataLoader('set', 8, size=32))  # loads all code
loader = DataLoader('set', 8, size=32)
os.chmod(sys.argv[1], 0)
if os.geteuid() == 0:
    os.seteuid(65534)  # root may read everything
try:
    list(loader if sys.argv[1].endswith('png') else DataLoader('set'))
except Exception as error:
    sys.stdout.write(f'{type(error).__name__}: {error}')
"""


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (
            "set/cat/0.png",
            r"FastmixError: sample 0 \(set/cat/0.png\), stage read: .*Permission denied: .*; mend or remove",
        ),
        (
            "set/cat",
            r"PermissionError: 'set/cat' in the dataset folder 'set' cannot be listed: allow reading it \(chmod",
        ),
        (
            "set",
            r"PermissionError: 'set' in the dataset folder 'set' cannot be listed: allow reading it \(chmod u\+rx\)",
        ),
    ],
)
def test_unreadable(part: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    folder(tmp_path / "set")
    tmp_path.chmod(0o755)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", _UNREADABLE, part]
    try:
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    finally:
        (tmp_path / part).chmod(0o755)
    assert re.match(words, done.stdout), done.stdout


# Samples


class Dataset:
    """`count` samples, made by a function."""

    def __init__(self, make: Callable[[int], Any], count: int = 6):
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def raises(error: BaseException) -> Callable[[int], Any]:
    def make(index: int) -> Any:
        if index == 3:
            raise error
        return ONE, index

    return make


def of_picture(picture: Any) -> Callable[[int], Any]:
    return lambda index: (picture if index == 3 else ONE, index)


def of_label(label: Any) -> Callable[[int], Any]:
    return lambda index: (ONE, label if index == 3 else index)


NO_FLOATS = r"before normalising, so remove ToTensor\(\), Normalize\(\) and the like from the dataset"
SAMPLES: list[tuple[str, Callable[[int], Any], str]] = [
    ("KeyError", raises(KeyError("lost")), "stage read: KeyError: 'lost'"),
    ("StopIteration", raises(StopIteration("over")), "stage read: StopIteration: over"),
    ("MemoryError", raises(MemoryError("full")), "stage read: MemoryError: full"),
    ("shorter than its length", lambda index: ([(ONE, 0)] * 3)[index], "stage read: IndexError: list index out of r"),
    ("float array", of_picture(ONE / 255), f"the picture is a float64 ndarray: .*{NO_FLOATS}"),
    ("float tensor", of_picture(torch.zeros(3, 32, 32)), f"the picture is a float32 Tensor: .*{NO_FLOATS}"),
    ("half tensor", of_picture(torch.zeros(3, 32, 32).bfloat16()), f"torch.bfloat16 Tensor: .*{NO_FLOATS}"),
    ("integers", of_picture(ONE.astype(int)), r"the picture is a int64 ndarray, expected uint8 in 0\.\.255"),
    (
        "HWC tensor",
        of_picture(torch.zeros(32, 32, 3).byte()),
        r"shape \(32, 32, 3\), expected CHW with 1 or 3 channels",
    ),
    ("no pixels", of_picture(ONE[:0]), r"shape \(0, 32, 3\), expected HWC"),
    ("a path", of_picture("cat.jpg"), "the picture is a str, expected a PIL image, an HWC uint8 array, a CHW"),
    (
        "another size",
        of_picture(PICTURE),
        r"is 60 x 50 pixels .*, crop='pad4' expects size=\(32, 32\): pass size=\(60,",
    ),
    ("no label", lambda _: ONE, r"sample \d of the dataset is a ndarray, expected a pair \(picture, label\)"),
    ("a dictionary", lambda _: {"image": ONE}, r"sample \d of the dataset is a dict, expected a pair"),
    ("label None", of_label(None), r"the label is None, expected an integer or a \(C,\) vector"),
    ("label text", of_label("cat"), "the label is 'cat', expected an integer"),
    ("label 0.5", of_label(0.5), "the label is 0.5, expected an integer"),
]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("make", "words"), [case[1:] for case in SAMPLES], ids=[case[0] for case in SAMPLES])
def test_samples(make: Callable[[int], Any], words: str, workers: int) -> None:
    loader = loader_of(Dataset(make), shuffle=False, size=32, crop="pad4", num_workers=workers)
    with pytest.raises(FastmixError, match=rf"^sample \d, .*{words}"):
        next(iter(loader))


def test_a_dataset_that_ends_the_program() -> None:
    """In the calling thread it does; in another one, where that would end nothing, it is an error like others."""
    with pytest.raises(SystemExit, match="3"):
        list(loader_of(Dataset(raises(SystemExit(3))), size=32))
    with pytest.raises(FastmixError, match=r"^sample 3, stage read: SystemExit: 3"):
        list(loader_of(Dataset(raises(SystemExit(3))), size=32, num_workers=2))


LABELS: list[tuple[str, Callable[[int], Any], dict[str, Any], str]] = [
    (
        "changing kind",
        of_label([0.5, 0.5]),
        {},
        r"have shapes \[\(\), \(2,\)\], expected the same kind for all samples",
    ),
    ("beyond", of_label(9), {"num_classes": 6}, r"from 0 to 9, expected 0\.\.5 \(num_classes=6\): pass num_classes=10"),
    (
        "beyond the method's",
        of_label(9),
        {"mix": MixUp(num_classes=6)},
        r"to 9, expected 0\.\.5 \(num_classes=6\): pass",
    ),
    ("negative", of_label(-1), {"num_classes": 6}, r"from -1 to 5, expected 0\.\.5 \(num_classes=6\): mend the labels"),
    ("beyond 1", lambda _: (ONE, [3.0, 4.0]), {}, r"labels run from 3.0 to 4.0, expected \[0, 1\]"),
    ("not a number", lambda _: (ONE, [NAN, 0.5]), {}, r"labels run from nan to nan, expected \[0, 1\]"),
    (
        "of unknown number",
        of_label(3),
        {"mix": CutMix()},
        "num_classes is unknown, .* labels are mixed: pass num_class",
    ),
]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("make", "options", "words"), [case[1:] for case in LABELS], ids=[case[0] for case in LABELS])
def test_labels(make: Callable[[int], Any], options: dict[str, Any], words: str, workers: int) -> None:
    loader = loader_of(Dataset(make), size=32, num_workers=workers, **options)
    with pytest.raises(FastmixError, match=f"stage label: .*{words}"):
        next(iter(loader))

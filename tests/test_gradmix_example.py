"""examples/gradmix_openset.py on a tiny data set that is made here."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

ROOT = Path(__file__).parents[1]
WAYS = ["none", "mixup", "cutmix", "random", "fresh", "cached"]
FIGURES = ["auroc", "aupr_in", "aupr_out", "fpr95", "oscr", "accuracy", "auroc_maha"]
TINY = ["--epochs", "2", "--batch-size", "16", "--width", "4", "--depth", "1"]


def write_idx(path: Path, array: np.ndarray) -> None:
    """The format as its authors tell it: 0, 0, 8 for bytes, the number of axes, big-endian axes, the bytes."""
    axes = b"".join(int(length).to_bytes(4, "big") for length in array.shape)
    path.write_bytes(gzip.compress(bytes([0, 0, 8, array.ndim]) + axes + array.tobytes()))


def write_fashion(folder: Path) -> Path:
    """Ten classes, each a bright bar at a height of its own, 8 + 4 pictures a class, 28 x 28 px."""
    folder.mkdir()
    draws = np.random.default_rng(0)
    for part, count in (("train", 80), ("t10k", 40)):
        labels = np.arange(count) % 10
        images = draws.integers(0, 90, (count, 28, 28))
        for image, label in zip(images, labels, strict=True):
            image[2 * label + 2 : 2 * label + 6, 4:24] += 150
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images.astype(np.uint8))
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels.astype(np.uint8))
    return folder


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "examples" / "gradmix_openset.py"), *map(str, arguments), "--device", "cpu"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def results(*arguments: object, out: Path) -> tuple[dict[str, Any], str]:
    done = run(*arguments, "--quick", *TINY, "--out", out)
    assert done.returncode == 0, done.stderr
    return json.loads((out / "results.json").read_text(encoding="utf-8")), done.stdout


@pytest.fixture(scope="module")
def fashion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fashion(tmp_path_factory.mktemp("data") / "fashion")


@pytest.fixture(scope="module")
def all_ways(fashion: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    out = tmp_path_factory.mktemp("out")
    return out, *results("--data", fashion, "--workers", 0, out=out)


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "examples")
    return __import__(name)


def test_every_way_has_a_row_of_figures(all_ways: tuple[Path, dict[str, Any], str]) -> None:
    _, found, printed = all_ways
    assert [row["way"] for row in found["rows"]] == WAYS
    for row in found["rows"]:
        assert all(0 <= row[name] <= 1 for name in FIGURES)
        assert row["oscr"] <= min(row["auroc"], row["accuracy"])
        assert (row["n_known"], row["n_unknown"], row["steps"]) == (24, 16, 6)  # 48 pictures: 3 steps, 2 epochs
        assert math.isfinite(row["loss"]) and row["step_s"] > 0
        assert row["known"] == found["rows"][0]["known"] and len(set(row["known"])) == 6
        assert found["summary"][row["way"]]["auroc"] == {"mean": row["auroc"], "std": None}
        assert f"\n{row['way']} " in printed
    assert found["arguments"]["seeds"] == 1 and found["versions"]["torch"] == torch.__version__
    assert [line.partition(":")[0] for line in found["verdicts"]] == ["fresh - random"] * 2 + ["cached - random"] * 2


def test_shares_covered_are_those_of_the_methods(all_ways: tuple[Path, dict[str, Any], str]) -> None:
    """Windows have sides of 0.1 to 0.5, so E = 0.103; MixUp covers half, and CutMix, whose boxes are cut off, less."""
    covered = {row["way"]: row["covered"] for row in all_ways[1]["rows"]}
    assert covered["none"] == 0
    assert all(0.06 < covered[way] < 0.16 for way in ("random", "fresh", "cached"))
    assert covered["random"] == covered["fresh"]  # the same draws
    assert all(0.2 < covered[way] < 0.8 for way in ("mixup", "cutmix"))


def test_plot_and_event_files_are_written(all_ways: tuple[Path, dict[str, Any], str]) -> None:
    out = all_ways[0]
    with Image.open(out / "results.png") as image:
        assert image.size[0] > 800 and len(np.unique(np.asarray(image.convert("L")))) > 10
    code = (
        "import hashlib, io, sys\n"
        "import numpy as np\n"
        "from PIL import Image\n"
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "for path in sys.argv[1:]:\n"
        "    events = EventAccumulator(path).Reload()\n"
        "    images = events.Images(events.Tags()['images'][0])\n"
        "    views = [np.asarray(Image.open(io.BytesIO(i.encoded_image_string)))[:32].tobytes() for i in images]\n"
        "    digest = hashlib.sha256(b''.join(views)).hexdigest()\n"
        "    print(len(events.Scalars('loss/step')), *[i.height for i in images], len(set(views)), digest)\n"
    )
    command = [sys.executable, "-c", code, *(str(out / "tensorboard" / f"{way}-0") for way in WAYS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = {"none": 1, "mixup": 3, "cutmix": 3, "random": 3, "fresh": 4, "cached": 4}  # maps, windows, mixed views
    *found, digests = zip(*(line.split() for line in done.stdout.splitlines()), strict=True)
    assert list(zip(*found, strict=True)) == [("6", str(32 * n), str(32 * n), "2") for n in rows.values()]
    assert len(set(digests)) == 1  # all ways have the same clean views


def test_a_seed_gives_the_same_figures_with_other_threads(
    fashion: Path, all_ways: tuple[Path, dict[str, Any], str], tmp_path: Path
) -> None:
    again, _ = results("--data", fashion, "--ways", "random", "cached", "--workers", 2, out=tmp_path)
    before = {row["way"]: row for row in all_ways[1]["rows"]}
    for row in again["rows"]:
        same = {name: value for name, value in row.items() if name != "step_s"}
        assert same == {name: before[row["way"]][name] for name in same}
    assert len(again["rows"]) == 2


def test_idx_pictures_are_read_as_they_were_written(fashion: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = example("openset_data", monkeypatch)
    pictures = data.open_pictures(fashion)
    raw = gzip.decompress((fashion / "t10k-images-idx3-ubyte.gz").read_bytes())
    last = np.frombuffer(raw[-28 * 28 :], np.uint8).reshape(28, 28)
    image, label = pictures.source[119]
    np.testing.assert_array_equal(image, np.pad(last, 2)[..., None].repeat(3, 2))
    assert label == 9 and len(pictures.labels) == 120
    split = data.divide(pictures, 0, 6, None, None)
    assert set(split.split.known) | set(split.split.unknown) == set(range(10))
    assert data.divide(pictures, 1, 6, None, None).split != split.split
    for part, classes, count in (
        (split.train, "known", 48),
        (split.known, "known", 24),
        (split.unknown, "unknown", 16),
    ):
        rows = np.asarray(part.indices)
        assert len(rows) == count and (pictures.labels[rows] == rows % 10).all()
        assert set(pictures.labels[rows].tolist()) == set(getattr(split.split, classes))
        assert (rows < 80).all() == (part is split.train)


def test_a_folder_of_pictures_is_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cat", "dog", "fish"):
        (tmp_path / name).mkdir()
        for number in range(5):
            Image.new("L", (40, 30), 20 * number).save(tmp_path / name / f"{number}.png")
    data = example("openset_data", monkeypatch)
    found = data.divide(data.open_pictures(tmp_path), 3, 2, None, None)
    assert (len(found.train), len(found.known), len(found.unknown)) == (6, 4, 2)
    assert not set(found.train.indices) & set(found.known.indices)
    with pytest.raises(ValueError, match=r"known is 3, expected 2\.\.2"):
        data.divide(data.open_pictures(tmp_path), 3, 3, None, None)


def test_missing_data_is_told_with_the_package(tmp_path: Path) -> None:
    done = run("--data", tmp_path / "nothing")
    assert done.returncode == 2 and "apt-get install dataset-fashion-mnist" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_idx_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_fashion(tmp_path / "fashion")
    path = folder / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-1]))
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte\.gz is no IDX file"):
        example("openset_data", monkeypatch).open_pictures(folder)


def test_verdicts_weigh_differences_against_their_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh: +0.01 +0.02 +0.03, deviation 0.01; cached: -0.02 0 +0.04, deviation 0.0306; the other figure: -0.1 / 3."""
    auroc = {"random": (0.5, 0.6, 0.7), "fresh": (0.51, 0.62, 0.73), "cached": (0.48, 0.6, 0.74)}
    rows = [
        {"way": way, "seed": seed, "auroc": value, "auroc_maha": 0.8 - 0.1 * (way == "cached" and seed == 2)}
        for way, values in auroc.items()
        for seed, value in enumerate(values)
    ]
    verdicts = example("openset_report", monkeypatch).verdicts
    fresh, same, cached, less = verdicts(rows)
    assert fresh.startswith("fresh - random: +2.0 ± 1.0 points of auroc over 3 seeds: maps are better than random")
    assert same == "fresh - random: +0.0 ± 0.0 points of auroc_maha over 3 seeds: no difference beyond the spread"
    assert cached == "cached - random: +0.7 ± 3.1 points of auroc over 3 seeds: no difference beyond the spread"
    assert less == "cached - random: -3.3 ± 5.8 points of auroc_maha over 3 seeds: no difference beyond the spread"
    alone, _ = verdicts([row for row in rows if row["seed"] == 1 and row["way"] != "cached"])
    assert alone.startswith("fresh - random: +2.0 points of auroc with one seed: ") and "shows nothing" in alone
    assert verdicts([row for row in rows if row["way"] != "random"]) == []
    assert "maps are worse" in example("openset_report", monkeypatch).judgement([-0.02, -0.01])

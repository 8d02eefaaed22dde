"""An expanded set in the loader: who gives way to whom, with which label, and that nobody notices a chance of 0."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from expanding import CLASSES, COPIES, PLAIN, SIDE, N, expand, make_data, make_out, row_of, shown
from loading import digest, loader_of, make_arrays
from torchvision.datasets import ImageFolder

from fastmix import MapBank, MapFile, Synthetic
from fastmix.datasets import open_source
from fastmix.engine.extras import Extras
from fastmix.manifest import NAME, read_manifest, write_rows
from fastmix.rng import Key


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_data(tmp_path / "data")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return make_out(tmp_path / "out")


def test_a_chance_of_0_changes_no_bit(data: Path, out: Path) -> None:
    options: dict[str, Any] = {"size": 8, "crop": "random_resized", "on_error": "replace"}
    plain, with_set = loader_of(data, **options), loader_of(data, **options, synthetic=out, replace_prob=0)
    assert [digest(plain) for _ in range(2)] == [digest(with_set) for _ in range(2)]
    assert plain.state_dict() == with_set.state_dict()


def test_same_source_replaces_a_sample_by_what_was_made_of_it(data: Path, out: Path) -> None:
    loader = loader_of(data, **PLAIN, synthetic=out, replace_prob=1.0)
    copies: set[tuple[int, int]] = set()
    for _ in range(30):
        source, label, copy = shown(loader)
        assert source == list(range(N))
        assert label == [number // 4 for number in range(N)]
        assert [number for number in range(N) if copy[number] == 0] == [1]  # nothing was made of it, so it stays
        copies |= set(zip(source, copy, strict=True))
    assert {copy for source, copy in copies if source == 0} == {1, 3}  # the second one is black
    assert all({copy for source, copy in copies if source == number} == {1, 2, 3} for number in range(2, N))


def test_same_class_and_any(data: Path, out: Path) -> None:
    pairs: dict[str, set[tuple[int, int]]] = {}
    for law in ("same_class", "any"):
        loader = loader_of(data, **PLAIN, synthetic=Synthetic(out, law), replace_prob=1.0)
        pairs[law] = set()
        for _ in range(40):
            source, _, copy = shown(loader)
            assert min(copy) > 0
            pairs[law] |= set(enumerate(source))
    assert all(at // 4 == source // 4 for at, source in pairs["same_class"])
    assert {source for _, source in pairs["same_class"]} == {source for _, source in pairs["any"]} == {0, *range(2, N)}
    assert any(at // 4 != source // 4 for at, source in pairs["any"])


def test_the_label_comes_with_the_picture(data: Path, out: Path) -> None:
    loader = loader_of(data, **PLAIN, synthetic=Synthetic(out, "any"), replace_prob=0.5)
    ((images, labels),) = loader
    assert labels.dtype == torch.int64
    assert labels.tolist() == images[:, 1, 0, 0].tolist()


def test_the_chance_is_the_chance(data: Path, out: Path) -> None:
    source = open_source(data)
    taken = Extras.of(source, None, Synthetic(out), 0.3).synthetic
    assert taken is not None
    samples = np.array([0, 2, 3, 4] * 2000)
    wanted = taken.take(Key(5), np.arange(len(samples)), samples)
    replaced = wanted >= N
    assert abs(replaced.mean() - 0.3) < 4 * np.sqrt(0.3 * 0.7 / len(samples))
    made = read_manifest(out).made
    assert all(made[wanted[i] - N]["source"] == samples[i] for i in np.flatnonzero(replaced))
    counts = Counter(wanted[replaced & (samples == 2)].tolist())
    assert len(counts) == COPIES
    total = sum(counts.values())
    assert all(abs(count - total / COPIES) < 5 * np.sqrt(2 * total) / COPIES for count in counts.values())


def test_draws_are_those_of_the_sample(data: Path, out: Path) -> None:
    """The same for any threads, another one in each epoch, and the crops of the others stay as they are."""
    options: dict[str, Any] = {"size": 8, "scale": (0.2, 0.5), "output": "uint8", "synthetic": out, "replace_prob": 0.5}
    streams = [
        [digest(loader) for _ in range(3)] for loader in (loader_of(data, **options, num_workers=w) for w in (0, 2))
    ]
    assert streams[0] == streams[1]
    assert len(set(streams[0])) == 3


def test_shared_labels_sum_to_1_and_are_smoothed(data: Path, tmp_path: Path) -> None:
    rows = [row_of(record, record // COPIES // 4, weight=0.25, target_label=2) for record in range(N * COPIES)]
    expanded = expand(tmp_path / "soft", rows)
    ((images, labels),) = loader_of(data, **PLAIN, synthetic=Synthetic(expanded, smoothing=0.1), replace_prob=0.5)
    assert labels.dtype == torch.float32
    torch.testing.assert_close(labels.sum(1), torch.ones(N))
    for picture, label in zip(images[:, :, 0, 0].tolist(), labels, strict=True):
        want = np.zeros(3)
        want[picture[1]] += 0.25 if picture[2] else 1
        want[2] += 0.75 if picture[2] else 0
        np.testing.assert_allclose(label, 0.9 * want + 0.1 / 3, atol=1e-6)


def test_arrays_and_mixing_and_a_bank(out: Path, tmp_path: Path) -> None:
    images, _ = make_arrays(N, SIDE)
    labels = np.arange(N) // 4
    loader = loader_of((images, labels), **PLAIN, synthetic=out, replace_prob=1.0, num_classes=3)
    assert shown(loader)[0] == [0, int(images[1, 0, 0, 0]), *range(2, N)]
    with pytest.raises(ValueError, match=r"maps has length=12, expected 44: make it with MapBank\(44, views=1\)"):
        loader_of((images, labels), **PLAIN, synthetic=out, maps=MapBank(N))
    maps = MapFile.make(tmp_path / "maps.npy", (images, labels), size=SIDE)
    with pytest.raises(ValueError, match="maps is a MapFile, which does not know the synthetic pictures"):
        loader_of((images, labels), **PLAIN, synthetic=out, maps=maps)


def test_a_kept_part_of_a_set(data: Path, out: Path) -> None:
    manifest = read_manifest(out)
    write_rows(out / "kept.parquet", [row for row in manifest.made if row["record"] % COPIES == 2], manifest.about)
    loader = loader_of(data, **PLAIN, synthetic=out / "kept.parquet", replace_prob=1.0)
    assert shown(loader)[2] == [3, 0, *[3] * (N - 2)]


def test_bad_sets(data: Path, out: Path, tmp_path: Path) -> None:
    def refused(error: type[Exception], message: str, dataset: Any = data, **options: Any) -> None:
        with pytest.raises(error, match=message):
            loader_of(dataset, **PLAIN, **options)

    refused(
        FileNotFoundError,
        "has no manifest.parquet, expected a folder that `fastmix refine` has finished",
        synthetic=data,
    )
    refused(ValueError, r"replace_prob is 1.5, expected a probability in \[0, 1\]", synthetic=out, replace_prob=1.5)
    refused(TypeError, r"synthetic is a int, expected fastmix.Synthetic\(path\), or a path", synthetic=3)
    with pytest.raises(ValueError, match="replace is 'mine', expected one of"):
        Synthetic(out, "mine")
    with pytest.raises(ValueError, match="smoothing is 1, expected 0 <= smoothing < 1"):
        Synthetic(out, smoothing=1)
    images, _ = make_arrays(N, SIDE)
    refused(ValueError, "has label 2 for sample 0, where the set has 0", (images, 2 - np.arange(N) // 4), synthetic=out)
    refused(ValueError, "has 5 samples, the set was made of at least 12", (images[:5], np.zeros(5, int)), synthetic=out)
    nothing = [{**row_of(record, 0), "status": "black", "path": None} for record in range(3)]
    refused(ValueError, "holds no picture", synthetic=expand(tmp_path / "none", nothing))
    others = [row_of(record, record // COPIES // 4) for record in range(N * COPIES)]
    refused(ValueError, "was made of another one", synthetic=expand(tmp_path / "other", others, ["ape", "bee", "cow"]))
    (out / NAME).write_bytes(b"PAR1")
    refused(ValueError, "expected a Parquet file that `fastmix refine` wrote", synthetic=out)


def test_a_picture_that_is_gone_is_named(data: Path, out: Path) -> None:
    row = read_manifest(out).made[0]
    (out / row["path"]).unlink()
    rows = [replace_status(other, row) for other in read_manifest(out).rows]
    write_rows(out / NAME, rows, {"classes": CLASSES})
    with pytest.raises(RuntimeError, match=rf"sample 12 \(.*{row['path']}\)"):
        next(iter(loader_of(data, **PLAIN, synthetic=out, replace_prob=1.0)))


def replace_status(row: dict[str, Any], only: dict[str, Any]) -> dict[str, Any]:
    """Of sample 0 only one picture is left."""
    gone = row["source"] == only["source"] and row["record"] != only["record"]
    return {**row, "status": "black", "path": None} if gone else row


def test_a_manifest_of_another_version(out: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = read_manifest(out)
    monkeypatch.setattr("fastmix.manifest.VERSION", "0")
    write_rows(out / NAME, manifest.rows, manifest.about)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="has manifest version 0, expected 1: make the set again"):
        loader_of(data, **PLAIN, synthetic=out)


def test_rows_are_written_in_order_and_alike(out: Path, tmp_path: Path) -> None:
    manifest = read_manifest(out)
    write_rows(tmp_path / "a.parquet", manifest.rows[::-1], manifest.about)
    write_rows(tmp_path / "b.parquet", manifest.rows, manifest.about)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert replace(read_manifest(tmp_path / "a.parquet"), folder=out) == manifest


def test_samples_in_another_order_are_told(data: Path, tmp_path: Path) -> None:
    """Labels of a Subset are not known beforehand, but the names of its files are."""
    rows = [
        row_of(r, r // COPIES // 4, source_path=f"{CLASSES[r // COPIES // 4]}/{r // COPIES:02}.png") for r in range(36)
    ]
    folder = expand(tmp_path / "named", rows)
    assert shown(loader_of(data, **PLAIN, synthetic=folder, replace_prob=1.0))[0] == list(range(N))
    files = ImageFolder(data)
    same = torch.utils.data.Subset(files, range(N))
    assert shown(loader_of(same, **PLAIN, synthetic=folder, replace_prob=1.0))[0] == list(range(N))
    with pytest.raises(
        ValueError, match=r"the data set has .*ant/01.png as sample 0, where the set has ant/00.png: .* was made of"
    ):
        loader_of(torch.utils.data.Subset(files, [1, 0, *range(2, N)]), **PLAIN, synthetic=folder)

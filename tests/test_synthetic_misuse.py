"""An expanded set beside data that does not fit it, in whole or in part: what is told, taken and refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from expanding import CLASSES, COPIES, PLAIN, SIDE, N, expand, make_data, make_out, row_of, shown
from loading import digest, loader_of, make_arrays
from PIL import Image
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder

from fastmix import FastmixError, MixUp, SaliencyMix, SpectralResidual, Synthetic
from fastmix.manifest import NAME, read_manifest

LABELS = np.arange(N) // 4
LAWS = ("same_source", "same_class", "any")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_data(tmp_path / "data")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return make_out(tmp_path / "out")


class Own:
    """A data set of one's own, of the same pictures, with labels by a rule."""

    classes = CLASSES

    def __init__(self, label: Callable[[int], Any]):
        self.label = label

    def __len__(self) -> int:
        return N

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        return np.full((SIDE, SIDE, 3), (number, number // 4, 0), np.uint8), self.label(number // 4)


def batch_of(dataset: Any, **options: Any) -> tuple[Any, Any]:
    images, labels = next(iter(loader_of(dataset, **{**PLAIN, **options})))
    return images[:, :, 0, 0].tolist(), labels


# ------------------------------------------------------------------ what is told


@pytest.mark.parametrize("law", LAWS)
def test_explain_tells_of_the_picture_that_was_read(data: Path, out: Path, law: str) -> None:
    """Colours tell which file was read; those of the set are wider than the data set's."""
    for file in out.glob("pictures/*/*.png"):
        Image.open(file).resize((5 * SIDE, SIDE)).save(file)
    options: dict[str, Any] = {"crop": "random_resized", "size": 8, "scale": (0.5, 1), "ratio": (1.5, 2)}
    loader = loader_of(data, **{**PLAIN, **options}, synthetic=Synthetic(out, law), replace_prob=0.9)
    ((images, labels),) = loader
    beyond = 0
    for number in range(N):
        told = loader.explain(number, 0)
        np.testing.assert_array_equal(told.pictures[0], images[number].permute(1, 2, 0))
        assert told.id == number and told.path is not None
        with Image.open(told.path) as picture:
            assert picture.getpixel((0, 0)) == tuple(told.pictures[0][0, 0])
            left, top, width, height = told.box
            assert left + width <= picture.width and top + height <= picture.height
            beyond += left + width > SIDE
        assert told.label == labels[number] == told.pictures[0][0, 0, 1]
    assert beyond > 3


def test_explain_reads_no_other_file(data: Path, out: Path) -> None:
    (data / "ant" / "00.png").write_bytes(b"no picture")
    loader = loader_of(data, **PLAIN, synthetic=out, replace_prob=1.0)
    (red, _, blue) = loader.explain(0, 0).pictures[0][0, 0]
    assert red == 0 and blue in (1, 3)
    for file in out.glob("pictures/ant/0_*.png"):
        file.unlink()
    with pytest.raises(FastmixError, match=r"sample 1[23] \(.*/pictures/ant/0_[02]\.png\), stage read"):
        loader.explain(0, 0)


def test_what_is_told_of_a_picture_that_is_gone(data: Path, out: Path) -> None:
    """Its number lies beyond the data set's, in the manifest's order; and it is not removed from a list of files."""
    number = next(i for i, row in enumerate(read_manifest(out).made) if row["record"] == 6)  # of sample 2
    for copy in range(COPIES):
        (out / f"pictures/ant/2_{copy}.png").unlink()
    options = {**PLAIN, "synthetic": out, "replace_prob": 1.0, "sampler": [2], "shuffle": None}
    fix = "; make the set anew with fastmix refine, or mend the file, or pass on_error='replace'$"
    with pytest.raises(FastmixError, match=fix) as caught:
        next(iter(loader_of(data, **options)))
    gone = caught.value.sample_id
    assert gone is not None and N + number <= gone < N + number + COPIES
    assert caught.value.path == str(out / f"pictures/ant/2_{gone - N - number}.png")
    loader = loader_of(data, **{**options, "sampler": [2, 3]}, on_error="replace")
    with pytest.warns(UserWarning, match=rf"{gone} \({caught.value.path}\)"):
        ((images, _),) = loader
    ((bad, path, _),) = loader.bad
    assert (bad, path) == (gone, caught.value.path) and loader.delivered.ids[1] >= N + number + COPIES
    assert images[0, :, 0, 0].tolist() in ([2, 0, 0], [3, 0, 0])
    (data / "ant" / "03.png").write_bytes(b"")
    with pytest.raises(FastmixError, match="; mend or remove the file, or pass"):
        next(iter(loader_of(data, **{**options, "sampler": [3], "synthetic": expand(out, [row_of(0, 0)])})))


# ------------------------------------------------------------------ what is changed later


def test_changes_count_from_the_next_epoch_on(data: Path, out: Path) -> None:
    loader = loader_of(data, **PLAIN)
    assert set(shown(loader)[2]) == {0}
    loader.synthetic, loader.replace_prob = out, 1.0
    assert [row for row, blue in enumerate(shown(loader)[2]) if not blue] == [1]
    again = pickle.loads(pickle.dumps(loader))
    kept = again._extras.source
    loader.num_classes, loader.synthetic = 5, Synthetic(out, smoothing=0.1)
    assert next(iter(loader))[1].shape == (N, 5)
    loader.replace_prob = 0
    assert set(shown(loader)[2]) == {0}
    assert [row for row, blue in enumerate(shown(again)[2]) if not blue] == [1]
    assert again._extras.source is kept  # and not opened anew
    loader.replace_prob = 2
    with pytest.raises(ValueError, match="replace_prob is 2, expected a probability"):
        next(iter(loader))


def test_maps_that_come_later_are_looked_at(data: Path) -> None:
    loader = loader_of(data, **PLAIN)
    loader.maps, loader.mix = SpectralResidual(), SaliencyMix()
    at_once = loader_of(data, **PLAIN, maps=SpectralResidual(), mix=SaliencyMix())
    assert digest(loader) == digest(at_once) != digest(loader_of(data, **PLAIN, mix=None))


# ------------------------------------------------------------------ bad files


@pytest.mark.filterwarnings("ignore:bad samples replaced:UserWarning")
def test_stand_ins_are_samples_of_the_data_set(data: Path, out: Path) -> None:
    """Whoever takes the place of a bad file is no picture of the set: these come by their own chance alone."""
    for number in range(4):
        (data / CLASSES[0] / f"{number:02}.png").write_bytes(b"no picture")
    loader = loader_of(data, **PLAIN, synthetic=out, replace_prob=1e-12, on_error="replace")
    seen: set[int] = set()
    for _ in range(10):
        red, _, blue = shown(loader)
        assert set(blue) == {0}
        seen |= set(red[:4])
    assert seen == set(range(4, N))


# ------------------------------------------------------------------ labels


@pytest.mark.parametrize("on_error", ["raise", "replace"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_labels_of_two_numberings_are_told(data: Path, out: Path, smoothing: float, on_error: str) -> None:
    told = r"sample \d+.*, stage label: the label is (\d+), but .*out has (\d) for it: "
    about, options = Synthetic(out, smoothing=smoothing), {"replace_prob": 0.5, "on_error": on_error}
    for dataset in (ImageFolder(data, target_transform=lambda label: label + 20), Own(lambda label: 2 - label)):
        with pytest.raises(FastmixError, match=told) as caught:
            batch_of(dataset, synthetic=about, **options)
        assert caught.value.sample_id is not None and caught.value.sample_id < N
        assert str(caught.value).count("FastmixError") == 0 and "mend" not in str(caught.value)
    for shuffled in (
        ImageFolder(data, target_transform=lambda label: 2 - label),
        Own(lambda label: np.eye(3)[2 - label]),
    ):
        with pytest.raises(FastmixError, match=r"the label is \d, but .* has \d for it"):
            batch_of(shuffled, synthetic=Synthetic(out, smoothing=0.1), **options)
    colours, labels = batch_of(Own(int), synthetic=about, **options)  # the same numbering is none of these
    assert labels.shape == ((N, 3) if smoothing else (N,))
    assert (labels.argmax(1) if smoothing else labels).tolist() == [green for _, green, _ in colours]


def test_labels_of_samples_of_which_nothing_was_made_are_compared(data: Path, out: Path) -> None:
    """Sample 1 is the only one that is read when all others give way."""
    with pytest.raises(FastmixError, match=r"sample 1 \(.*01.png\), stage label: the label is 2, but .* has 0 for it"):
        batch_of(ImageFolder(data, target_transform=lambda label: 2 - label), synthetic=out, replace_prob=1.0)


def test_labels_that_are_known_are_compared_at_once(data: Path, out: Path) -> None:
    images, _ = make_arrays(N, SIDE)
    other = LABELS.copy()
    other[1] = 2  # nothing was made of it
    told = "the data set has label 2 for sample 1, where the set has 0: .* was made of another one"
    for labels in (other, np.eye(3, dtype=np.float32)[other]):
        with pytest.raises(ValueError, match=told):
            loader_of((images, labels), **PLAIN, synthetic=out)
    folder = ImageFolder(data)
    folder.samples[1] = (folder.samples[1][0], 2)
    with pytest.raises(ValueError, match=told):
        loader_of(Subset(folder, range(N)), **PLAIN, synthetic=out)


@pytest.mark.parametrize("shared", [False, True])
def test_smoothing_and_shares_use_num_classes(data: Path, out: Path, tmp_path: Path, shared: bool) -> None:
    if shared:
        rows = [row_of(record, record // COPIES // 4, weight=0.25, target_label=2) for record in range(N * COPIES)]
        out = expand(tmp_path / "soft", rows)
    about, s = Synthetic(out, smoothing=0 if shared else 0.1), 0 if shared else 0.1
    colours, labels = batch_of(data, synthetic=about, replace_prob=0.5, num_classes=5)
    want = np.zeros((N, 5))
    for row, (_, green, blue) in enumerate(colours):
        want[row, green] += 0.25 if shared and blue else 1
        want[row, 2] += 0.75 if shared and blue else 0
    np.testing.assert_allclose(labels, (1 - s) * want + s / 5, atol=1e-6)
    for options in ({"mix": MixUp()}, {"labels": "soft"}):
        assert batch_of(data, synthetic=about, num_classes=5, **options)[1].shape == (N, 5)


def test_other_numbers_of_classes_are_refused(data: Path, out: Path, tmp_path: Path) -> None:
    for wrong in (2, 0, "3", 3.0):
        with pytest.raises(ValueError, match=rf"num_classes is {wrong!r}, expected an integer >= 3, or None: "):
            loader_of(data, **PLAIN, synthetic=out, num_classes=wrong)
    images, _ = make_arrays(N, SIDE)
    with pytest.raises(ValueError, match=r"has labels of 5 numbers each, and num_classes is 4: .*pass num_classes=5"):
        loader_of((images, np.eye(5, dtype=np.float32)[LABELS]), **PLAIN, synthetic=out, num_classes=4)
    with pytest.raises(ValueError, match=r"has labels of 2 numbers each, the set has 3 classes"):
        few = expand(tmp_path / "few", [row_of(record, record // COPIES // 4) for record in range(8 * COPIES)])
        loader_of((images, np.eye(2, dtype=np.float32)[np.minimum(LABELS, 1)]), **PLAIN, synthetic=few)


@pytest.mark.parametrize("width", [3, 5])
@pytest.mark.parametrize("law", LAWS)
def test_arrays_with_one_hot_labels(out: Path, width: int, law: str) -> None:
    """The set's labels have the same form, and a class is known by its one."""
    images = np.zeros((N, SIDE, SIDE, 3), np.uint8)
    images[..., 1] = LABELS[:, None, None]
    pair = images, np.eye(width, dtype=np.float32)[LABELS]
    for smoothing in (0, 0.1):
        colours, labels = batch_of(pair, synthetic=Synthetic(out, law, smoothing), replace_prob=0.5)
        assert 0 < sum(blue > 0 for _, _, blue in colours) < N
        want = np.eye(width)[[green for _, green, _ in colours]]
        np.testing.assert_allclose(labels, (1 - smoothing) * want + smoothing / width, atol=1e-6)
        if law != "any":
            assert [green for _, green, _ in colours] == LABELS.tolist()


def test_vectors_that_nobody_expected(out: Path) -> None:
    def vectors(width: int) -> Own:
        return Own(lambda label: np.eye(width, dtype=np.float32)[label])

    told = r"the label is a vector of 3 numbers, .*: give class numbers, or .*smoothing=0.1"
    with pytest.raises(FastmixError, match=told):
        batch_of(vectors(3), synthetic=out, replace_prob=0.5)
    with pytest.raises(FastmixError, match=r"the label is a vector of 5 numbers, .* of 3: pass num_classes=5"):
        batch_of(vectors(5), synthetic=Synthetic(out, smoothing=0.1), replace_prob=0.5)
    for width in (3, 5):
        about = Synthetic(out, smoothing=0.1)
        assert batch_of(vectors(width), synthetic=about, replace_prob=0.5, num_classes=width)[1].shape == (N, width)


def test_same_class_where_labels_are_known(data: Path, out: Path) -> None:
    for dataset in (
        ImageFolder(data),
        Subset(ImageFolder(data), range(N)),
        Subset(Subset(ImageFolder(data), range(N)), range(N)),
    ):
        loader = loader_of(dataset, **PLAIN, synthetic=Synthetic(out, "same_class"), replace_prob=1.0)
        red, green, blue = shown(loader)
        assert green == LABELS.tolist() and min(blue) > 0 and red != list(range(N))
    images, _ = make_arrays(N, SIDE)
    several = np.eye(3, dtype=np.float32)[LABELS]
    several[2, 1] = 1
    unknown = Own(int), ImageFolder(data, target_transform=int), (images, several)
    for dataset in unknown:
        with pytest.raises(ValueError, match=r"replace is 'same_class', .*, but .* use 'same_source', or give"):
            loader_of(dataset, **PLAIN, synthetic=Synthetic(out, "same_class"))
        batch_of(dataset, synthetic=out, num_classes=3)


# ------------------------------------------------------------------ manifests


@pytest.mark.parametrize(
    "about",
    [
        b'{"version": ',
        b"\xff",
        b'["version"]',
        b'{"version": "1"}',
        b'{"version": "1", "classes": 3}',
        b'{"version": "1", "classes": []}',
        b'{"version": "1", "classes": [1, 2, 3]}',
    ],
)
def test_manifests_that_say_nothing_of_themselves(data: Path, out: Path, about: bytes) -> None:
    table = pq.read_table(out / NAME)
    pq.write_table(table.replace_schema_metadata({b"fastmix.manifest": about}), out / NAME)
    for read in (lambda: loader_of(data, **PLAIN, synthetic=out), lambda: read_manifest(out)):
        with pytest.raises(ValueError, match=rf"^{out / NAME} .*make the set anew with `fastmix refine`") as caught:
            read()
        assert not isinstance(caught.value, json.JSONDecodeError | UnicodeDecodeError)


@pytest.mark.parametrize("path", [None, 5, b"out", ["out"]])
def test_paths_that_are_none(path: Any) -> None:
    with pytest.raises(TypeError, match=rf"path is a {type(path).__name__}, expected a folder that `fastmix refine`"):
        Synthetic(path)

"""Two views of each sample for contrastive training, against Pillow, torchvision and `fastmix.mix`."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as F
from jittering import files, in_torchvision, ops_of
from loading import BATCH, COUNT, METHODS, SIZE, digest, digests, loader_of, make_arrays, make_photos, tensors
from PIL import Image

import fastmix
from fastmix import Batch, DataLoader, Key
from fastmix.engine.jitter import ColorJitter
from fastmix.pools import fit_pool

pytestmark = pytest.mark.filterwarnings("ignore:num_workers is:UserWarning")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"))


def levels(loader: DataLoader) -> list[tuple[Any, Any]]:
    """(views, N, H, W, 3) uint8 pictures and labels of each batch, from a loader with output="uint8"."""
    found = []
    for images, labels in loader:
        stacked = images.permute(0, 2, 3, 1).numpy()
        found.append((stacked.reshape(-1, len(labels), *stacked.shape[1:]), labels.numpy()))
    return found


def numbered(folder: Path) -> list[tuple[bytes, int]]:
    """The files, each labelled by its number."""
    return [(path.read_bytes(), number) for number, path in enumerate(files(folder))]


def test_both_views_are_crops_of_the_sample(photos: Path) -> None:
    """Pillow cuts, resizes and mirrors the boxes that were drawn; and the two boxes of a sample differ."""
    loader = loader_of(numbered(photos), views=2, size=96, output="uint8", num_workers=2)
    batches = levels(loader)
    assert [made.shape for made, _ in batches] == [(2, n, 96, 96, 3) for n in (8, 8, 5)]
    flips = Counter()
    for made, labels in batches:
        for row, number in enumerate(labels):
            crops = loader.explain(int(number), 0).crops
            assert len(crops) == 2 and crops[0].box != crops[1].box
            flips[crops[0].flip, crops[1].flip] += 1
            for view, (box, flip) in enumerate(crops):
                left, top, width, height = box
                image = Image.open(files(photos)[number]).convert("RGB")
                image = image.resize((96, 96), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))
                want = np.asarray(F.hflip(image) if flip else image).astype(np.int64)
                assert np.abs(made[view, row] - want).max() <= 1
    assert len(flips) == 4 and sum(flips.values()) == COUNT


@pytest.mark.parametrize("crop", ["random_resized", "pad4", "center", None])
@pytest.mark.parametrize("jitter", [None, ColorJitter()], ids=["plain", "jitter"])
def test_view_1_is_the_only_one_of_a_plain_loader(crop: str | None, jitter: ColorJitter | None) -> None:
    options = {"size": 32, "crop": crop, "jitter": jitter, "output": "uint8", "batch_size": 33, "hflip": 0.5}
    two, one = (levels(loader_of(make_arrays(), views=views, **options)) for views in (2, 1))
    for (both, labels), (alone, same) in zip(two, one, strict=True):
        np.testing.assert_array_equal(both[0], alone[0])
        np.testing.assert_array_equal(labels, same)
        assert (both[0] != both[1]).any()


def test_each_view_is_jittered_by_itself(photos: Path) -> None:
    """The jitter of the recipe is that of `draw` for the view's key, applied by torchvision to the view without it."""
    plain, coloured = (
        levels(loader_of(numbered(photos), views=2, output="uint8", jitter=jitter)) for jitter in (None, ColorJitter())
    )
    for (before, labels), (after, _) in zip(plain, coloured, strict=True):
        for view in (0, 1):
            program = ColorJitter().draw(Key(11, 0, view), labels, (SIZE, SIZE))
            for row in range(len(labels)):
                want = in_torchvision(before[view, row], ops_of(program, row))
                np.testing.assert_array_equal(after[view, row], want)


def test_a_file_is_decoded_once_with_what_both_crops_see(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastmix.engine import samples

    decode, calls = samples.decode, []

    def spy(data: bytes, **options: Any) -> Any:
        calls.append(options)
        return decode(data, **options)

    monkeypatch.setattr(samples, "decode", spy)
    loader = loader_of(numbered(photos), views=2, shuffle=False, batch_size=1, size=96, scale=(0.08, 0.4))
    batches, parts = iter(loader), 0
    for number in range(COUNT):
        calls.clear()
        next(batches)
        ((left, top, right, bottom),) = (options["region"] for options in calls)
        parts += (right - left) * (bottom - top) < 0.8 * calls[0]["info"].height * calls[0]["info"].width
        for box, _ in loader.explain(number, 0).crops:
            assert left <= box[0] and top <= box[1] and box[0] + box[2] <= right and box[1] + box[3] <= bottom
    assert parts > COUNT // 2


def test_a_file_is_decoded_at_the_finer_of_two_scales(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a half where both boxes are at least 6 times as wide and high as the output, else whole."""
    from fastmix.engine import samples

    decode, scales = samples.decode, []

    def spy(data: bytes, **options: Any) -> Any:
        scales.append(options["scale"])
        return decode(data, **options)

    monkeypatch.setattr(samples, "decode", spy)
    loader = loader_of(numbered(photos), views=2, shuffle=False, batch_size=COUNT, size=36, scale=(0.2, 1.0))
    list(loader)
    made, seen = list(scales), Counter()
    for number in range(COUNT):
        sides = [min(box[2:]) for box, _ in loader.explain(number, 0).crops]
        assert made[number] == (2 if min(sides) >= 6 * 36 else 1)
        seen[min(sides) >= 6 * 36, max(sides) >= 6 * 36] += 1
    assert seen[False, True] and seen[True, True]


@pytest.mark.parametrize("name", ["plain", "cutmix", "augmix", "layermix"])
def test_threads_and_prefetch_change_nothing(photos: Path, name: str) -> None:
    options = {"mix": METHODS[name], "views": 2, "jitter": ColorJitter()}
    want = digests(loader_of(photos, **options), 2)
    assert want[0] != want[1]
    for threads in (2, 4):
        for prefetch in (1, 4):
            found = digests(loader_of(photos, num_workers=threads, prefetch_factor=prefetch, **options), 2)
            assert found == want, (threads, prefetch)


def test_threads_change_nothing_in_memory() -> None:
    options = {
        "views": 2,
        "jitter": ColorJitter(),
        "size": 32,
        "batch_size": 33,
        "crop": "pad4",
        "mix": METHODS["mixup"],
    }
    streams = {digest(loader_of(make_arrays(), num_workers=threads, **options)) for threads in (0, 2, 4)}
    assert len(streams) == 1


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method])
def test_mixed_views_are_each_view_mixed(photos: Path, name: str) -> None:
    """(view 1, view 2, mixed 1, mixed 2), as `fastmix.mix` mixes a view under its key; labels stay plain."""
    method = METHODS[name]
    options = {"views": 2, "output": "uint8", "jitter": ColorJitter()}
    clean = levels(loader_of(numbered(photos), **options))
    mixed = levels(loader_of(numbered(photos), mix=method, num_workers=2, **options))
    changed = 0
    for (views, labels), (made, same) in zip(clean, mixed, strict=True):
        assert made.shape == (4, *views.shape[1:]) and same.dtype == np.int64
        np.testing.assert_array_equal(labels, same)
        np.testing.assert_array_equal(made[:2], views)
        for view in (0, 1):
            batch = Batch.of(views[view], labels, ids=labels)
            size = views.shape[2:4]
            fitted = replace(method, pool=fit_pool(method.pool, size)) if hasattr(method, "pool") else method
            want = fastmix.mix(fitted, batch, Key(11, 0, view)).images
            np.testing.assert_array_equal(made[2 + view], want)
            changed += int((want != views[view]).any(axis=(1, 2, 3)).sum())
    assert changed > COUNT


def test_a_method_that_is_off_repeats_the_views(photos: Path) -> None:
    method = replace(METHODS["cutmix"], enabled=False)
    for made, _ in levels(loader_of(photos, mix=method, views=2, output="uint8")):
        np.testing.assert_array_equal(made[2:], made[:2])


def test_labels_are_plain_whatever_their_form(photos: Path) -> None:
    options = {"views": 2, "mix": METHODS["mixup"]}
    plain = [labels for _, labels in loader_of(photos)]
    for want, (_, labels), (_, soft), (_, (a, b, w)) in zip(
        plain, *(loader_of(photos, labels=form, **options) for form in (None, "soft", "pair")), strict=True
    ):
        assert torch.equal(labels, want) and torch.equal(a, want) and torch.equal(b, want) and (w == 1).all()
        assert torch.equal(soft.argmax(1), want) and (soft.max(1).values == 1).all()


@pytest.mark.parametrize("views", [1, 3])
def test_jitter_comes_before_the_mix(photos: Path, views: int) -> None:
    method = METHODS["augmix"]
    options = {"output": "uint8", "jitter": ColorJitter()}
    clean = levels(loader_of(numbered(photos), **options))
    for ((view,), labels), (made, _) in zip(
        clean, levels(loader_of(numbered(photos), mix=method, views=views, **options)), strict=True
    ):
        for number, mixed in enumerate(made if views == 1 else made[1:]):
            want = fastmix.mix(method, Batch.of(view, labels, ids=labels), Key(11, 0, number)).images
            np.testing.assert_array_equal(mixed, want)


def test_resumes_in_the_middle(photos: Path) -> None:
    make = partial(loader_of, photos, views=2, jitter=ColorJitter(), mix=METHODS["cutmix"], num_workers=2)
    whole = [digest([batch]) for batch in make()]
    loader = make()
    first = digest([next(iter(loader))])
    again = make(num_workers=0)
    again.load_state_dict(loader.state_dict())
    assert [first, *(digest([batch]) for batch in again)] == whole


@pytest.mark.parametrize("name", ["plain", "mixup", "augmix"])
def test_explain_replays_a_row(photos: Path, name: str) -> None:
    loader = loader_of(numbered(photos), views=2, mix=METHODS[name], jitter=ColorJitter(), output="uint8")
    for made, labels in levels(loader):
        for row in (0, len(labels) - 1):
            told = loader.explain(int(labels[row]), 0)
            np.testing.assert_array_equal(told.pictures, made[:, row])
            assert (told.label, told.partner, told.weight) == (labels[row], None, 1)
            assert len(told.steps) == (0 if name == "plain" else 2)
            assert (told.box, told.flip) == told.crops[0]
            for view, words in enumerate(told.jitter):
                program = ColorJitter().draw(Key(11, 0, view), labels[row : row + 1], (SIZE, SIZE))
                assert [word.split()[0] for word in words] == [code.name.lower() for code, _ in ops_of(program, 0)]
    assert len(told.jitter) == 2 and loader_of(photos, views=2).explain(0, 0).jitter == ()


def test_a_bad_sample_is_replaced_in_both_views(photos: Path) -> None:
    dataset = numbered(photos)
    dataset[4] = (b"no picture", 4)
    loader = loader_of(dataset, views=2, on_error="replace", shuffle=False, output="uint8", mix=METHODS["cutmix"])
    with pytest.warns(UserWarning, match="bad samples replaced in epoch 0: 1"):
        (made, labels), *_ = levels(loader)
    told = loader.explain(4, 0)
    assert told.stand_in == labels[4] and told.stand_in != 4
    np.testing.assert_array_equal(told.pictures, made[:, 4])
    with pytest.raises(fastmix.FastmixError, match="sample 4, stage decode"):
        list(loader_of(dataset, views=2))


def test_memory_counts_all_pictures_of_a_sample(photos: Path) -> None:
    """4 batches of four float32 pictures a sample, and 2 of two crops; the threads' share is far below 50 MB each."""
    picture, options = 300 * 200 * 3, {"size": (300, 200), "num_workers": 2, "batch_size": 6}
    loader = loader_of(photos, views=2, mix=METHODS["cutmix"], jitter=ColorJitter(), **options)
    batches = 4 * 6 * 4 * picture * 4 + 2 * 6 * 2 * picture
    assert batches + 2 * 32 * 2**20 < loader.memory_bound() < batches + 2 * 50_000_000
    digests(loader)
    kept = loader._kept
    assert sum(array.nbytes for buffers in kept._buffers.values() for array in buffers._arrays) <= batches


def test_settings_travel(photos: Path) -> None:
    """A copy by pickle makes the same stream, and the settings are attributes under their names."""
    loader = loader_of(photos, views=2, jitter=ColorJitter(hue=0.2))
    again = pickle.loads(pickle.dumps(loader))
    assert again.jitter == ColorJitter(hue=0.2) and again.views == 2
    assert digests(again) == digests(loader)


@pytest.mark.parametrize("output", ["float32", "float16", "bfloat16", "uint8"])
def test_every_output(photos: Path, output: str) -> None:
    images, labels = tensors(next(iter(loader_of(photos, views=2, output=output, memory_format=torch.channels_last))))
    assert images.shape == (2 * BATCH, 3, SIZE, SIZE) and images.dtype == getattr(torch, output)
    assert images.is_contiguous(memory_format=torch.channels_last) and labels.shape == (BATCH,)

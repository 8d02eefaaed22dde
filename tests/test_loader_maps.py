"""Maps of one epoch steer the mixing of the next: geometry, the stream, states, and ranks."""

import copy
import json
import pickle
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from loading import BATCH, COUNT, METHODS, SIZE, digest, loader_of, make_arrays, make_photos
from PIL import Image
from ranks import join, leave, run_two_ranks
from seeing import Net, all_equal
from torch import Tensor, nn
from torch.utils.data import DistributedSampler

from fastmix import AttentiveCutMix, Batch, GradMix, Key, MapBank, Targets, mixing
from fastmix.attribution import AttributionHook
from fastmix.learn.exchange import exchange_maps
from fastmix.maps import Geometry

CELLS = (7, 7)
CUTS: list[dict[str, Any]] = [
    {"crop": "random_resized", "scale": (0.2, 0.9)},
    {"crop": "pad4", "size": 56},
    {"crop": "center", "hflip": 0.5},
    {"crop": None, "size": 56, "hflip": 0.5},
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"))


def bank_for(length: int, views: int = 1, path: Path | None = None) -> MapBank:
    return MapBank(length, CELLS, views, path)


def looked_at(images: Tensor) -> Tensor:
    """A map that any model could have made: the mean of each cell."""
    return F.adaptive_avg_pool2d(images.float().mean(1, keepdim=True), CELLS)[:, 0]


def fed(loader: Any, epochs: int, delay: float = 0) -> Iterator[Any]:
    """The batches of some epochs, whose maps go back into the bank."""
    for _ in range(epochs):
        for batch in loader:
            yield batch
            time.sleep(delay)
            loader.put_maps(looked_at(batch[0][: len(loader.delivered.ids) * loader.maps.views]))


# ------------------------------------------------------------------ where a map belongs


@pytest.mark.parametrize("options", CUTS, ids=lambda options: str(options["crop"]))
@pytest.mark.parametrize("channel", [0, 1])
def test_a_map_of_places_finds_its_places(options: dict[str, Any], channel: int) -> None:
    """A picture whose levels are x and y: what the bank says of a new crop is what the new crop shows."""
    level = np.arange(56, dtype=np.uint8) * 4
    one = np.zeros((56, 56, 3), np.uint8)
    one[..., 0], one[..., 1], one[..., 2] = level, level[:, None], 255
    n = 32
    bank = bank_for(n)
    loader = loader_of((np.stack([one] * n), np.zeros(n, int)), batch_size=n, maps=bank, output="uint8", **options)

    def cells() -> Any:
        ((images, _),) = loader
        means = F.adaptive_avg_pool2d(images.float(), CELLS)
        return torch.where(means[:, 2] == 255, means[:, channel], torch.nan).numpy()  # not of what is padded

    loader.put_maps(cells())
    shown, now = cells(), loader.delivered
    known = bank.take(now.ids, now.geometries[0], now.epoch)
    there = np.isfinite(known) & np.isfinite(shown)
    assert there.mean() > 0.3
    # At its border a map goes on as it ends, half a cell of 8 pixels far, of 4 levels each.
    error = np.abs(known - shown)[there]
    assert np.median(error) < 1.5 and error.max() < 18
    upside_down = shown[:, :, ::-1] if channel == 0 else shown[:, ::-1]
    assert np.nanquantile(np.abs(known - upside_down)[there], 0.75) > 20


def test_covered_is_what_differs() -> None:
    arrays = make_arrays(40, 48)
    bank = bank_for(40)
    loader = loader_of(arrays, crop=None, maps=bank, mix=GradMix(num_classes=10, fallback="random"), output="uint8")
    clean = loader_of(arrays, crop=None, output="uint8")
    for (images, _), (before, _) in zip(loader, clean, strict=True):
        for row, (left, top, width, height) in enumerate(loader.delivered.geometries[0].covered * SIZE):
            changed = (images[row] != before[row]).any(0).numpy()
            rows, columns = np.nonzero(changed.any(1))[0], np.nonzero(changed.any(0))[0]
            got = (columns[0], rows[0], columns[-1] + 1 - columns[0], rows[-1] + 1 - rows[0])
            np.testing.assert_allclose((left, top, width, height), got, atol=2)  # an edge may be equal by chance
            assert loader.delivered.weights[row] == pytest.approx(1 - width * height / SIZE**2)


# ------------------------------------------------------------------ the stream


@pytest.mark.parametrize("method", [GradMix(num_classes=10), AttentiveCutMix(num_classes=10)], ids=["gradmix", "cells"])
def test_is_what_the_pieces_do_by_hand(method: Any) -> None:
    arrays = make_arrays(40, 64)
    bank, twin = bank_for(40), bank_for(40)
    common: dict[str, Any] = {"output": "uint8", "hflip": 0.5}
    loader, clean = loader_of(arrays, mix=method, maps=bank, **common), loader_of(arrays, maps=twin, **common)
    for epoch in range(3):
        mixed = 0.0
        for (images, labels), (crops, classes) in zip(loader, clean, strict=True):
            now = clean.delivered
            known = twin.take(now.ids, now.geometries[0], epoch)
            pixels = crops.permute(0, 2, 3, 1).contiguous().numpy()
            batch = Batch(pixels, Targets.of(now.ids, classes.numpy()), known)
            params = method.draw(Key(11, epoch), batch)
            made = mixing.apply(batch, params, None, np.empty_like(pixels))
            np.testing.assert_array_equal(images.permute(0, 2, 3, 1).numpy(), made.images)
            np.testing.assert_array_equal(labels.numpy(), made.targets.soft(10))
            np.testing.assert_array_equal(loader.delivered.ids, now.ids)
            np.testing.assert_array_equal(loader.delivered.weights, made.targets.w)
            mixed += float((made.targets.w < 1).sum())
            maps = looked_at(images)
            loader.put_maps(maps)
            twin.put(now.ids, maps.numpy(), loader.delivered.geometries[0], epoch)
        assert (mixed == 0) == (epoch == 0)


@pytest.mark.parametrize("views", [1, 2])
def test_one_digest_whatever_the_schedule(photos: Path, views: int) -> None:
    found = set()
    for workers, prefetch, delay in ((0, None, 0), (2, 1, 0.02), (2, 4, 0), (4, 1, 0), (4, 4, 0.02)):
        method = GradMix.paper(num_classes=10)
        with pytest.warns(UserWarning, match="more threads") if workers == 4 else nullcontext():
            loader = loader_of(
                photos,
                num_workers=workers,
                prefetch_factor=prefetch,
                mix=method,
                maps=bank_for(COUNT, views),
                views=views,
                output="uint8",
            )
        found.add(digest(fed(loader, 3, delay)))
    assert len(found) == 1
    assert digest(fed(loader_of(photos, mix=GradMix.repo(num_classes=10), maps=bank_for(COUNT, views), views=views,
                                output="uint8"), 3)) not in found  # fmt: skip


def test_two_views_are_mixed_by_maps_of_both() -> None:
    arrays = make_arrays(24, 64)
    loader = loader_of(arrays, mix=GradMix(), maps=bank_for(24, 2), views=2, output="uint8")
    for epoch in range(2):
        for images, labels in loader:
            n = len(labels)
            assert images.shape == (4 * n, 3, SIZE, SIZE) and loader.delivered.weights.shape == (2 * n,)
            changed = (images[: 2 * n] != images[2 * n :]).flatten(1).any(1).numpy()
            np.testing.assert_array_equal(changed, loader.delivered.weights < 1)
            assert changed.any() == (epoch == 1)
            loader.put_maps(looked_at(images[: 2 * n]))


def test_a_sample_in_the_place_of_a_bad_one_has_its_own_map(tmp_path: Path) -> None:
    """The good picture's levels say who is shown; the bank must have the map under that number."""
    for number in range(8):
        (tmp_path / "c").mkdir(exist_ok=True)
        Image.fromarray(np.full((50, 50, 3), 20 * number + 10, np.uint8)).save(tmp_path / "c" / f"{number}.png")
    (tmp_path / "c" / "3.png").write_bytes(b"no picture")
    bank = bank_for(8)
    loader = loader_of(tmp_path, maps=bank, on_error="replace", output="uint8", batch_size=8)
    with pytest.warns(UserWarning, match="bad samples replaced"):
        for images, _ in loader:
            loader.put_maps(looked_at(images))
    maps = bank.take(np.arange(8), Geometry.whole(8), 1)
    assert np.isnan(maps[3]).all()
    for number in set(range(8)) - {3}:
        assert np.nanmax(np.abs(maps[number] - (20 * number + 10))) < 0.5


def test_without_maps_nothing_changes(photos: Path) -> None:
    plain = digest(loader_of(photos, mix=METHODS["cutmix"], num_classes=10))
    assert digest(loader_of(photos, mix=METHODS["cutmix"], num_classes=10, maps=bank_for(COUNT))) == plain


# ------------------------------------------------------------------ states


@pytest.mark.parametrize("stop", [0, 2, 5, 6, 8])
def test_goes_on_in_the_middle(tmp_path: Path, stop: int) -> None:
    arrays, batches = make_arrays(24, 64), 24 // BATCH

    def make(path: Path | None) -> Any:
        bank = bank_for(24, path=path)
        return loader_of(arrays, mix=GradMix(num_classes=10), maps=bank, output="uint8", num_workers=2)

    whole = [digest([batch]) for batch in fed(make(None), 3)]
    first, seen = make(tmp_path / "maps.npy"), []
    for batch in fed(first, 3):
        if len(seen) == stop:
            break
        seen.append(digest([batch]))
    state = json.loads(json.dumps(first.state_dict()))
    ahead = int(stop < len(whole))  # that batch was handed out and is counted, but its maps were not kept
    assert state["epoch"] * batches + state["batch"] in (stop + ahead, stop)
    del first
    second = make(tmp_path / "maps.npy")
    second.load_state_dict(state)
    left = len(whole) - state["epoch"] * batches - state["batch"]
    rest = [digest([batch]) for batch in fed(second, 3 - state["epoch"])]
    assert len(rest) == left
    same = rest == whole[len(whole) - left :]
    # What depends on the lost maps differs: nothing in the same epoch.
    assert rest[: batches - state["batch"]] == whole[len(whole) - left :][: batches - state["batch"]]
    assert same or ahead


def test_refuses_a_state_of_another_bank() -> None:
    arrays = make_arrays(24, 64)
    loader = loader_of(arrays, maps=bank_for(24), output="uint8")
    list(fed(loader, 1))
    state = loader.state_dict()
    with pytest.raises(ValueError, match="the state was saved with 24: give the bank of that run"):
        loader_of(arrays, maps=bank_for(24)).load_state_dict(state)
    with pytest.raises(ValueError, match=r"the state has \[.*'maps'.*\], expected"):
        loader_of(arrays).load_state_dict(state)
    plain = loader_of(arrays).state_dict()
    with pytest.raises(ValueError, match="the state of the maps is None, expected"):
        loader_of(arrays, maps=bank_for(24)).load_state_dict(plain)


def test_a_state_that_is_refused_changes_nothing() -> None:
    loader = loader_of(make_arrays(24, 64), maps=bank_for(24), seed=None)
    before = loader.state_dict()
    with pytest.raises(ValueError, match="the state of the maps is"):
        loader.load_state_dict({**before, "epoch": 7, "seed": 1234, "maps": {"x": 1}})
    assert loader.state_dict() == before


@pytest.mark.parametrize("file", [False, True])
def test_copies(tmp_path: Path, file: bool) -> None:
    arrays = make_arrays(24, 64)
    bank = bank_for(24, path=tmp_path / "maps.npy" if file else None)
    loader = loader_of(arrays, mix=GradMix(num_classes=10), maps=bank, output="uint8")
    list(fed(loader, 1))
    copies = pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)
    want = digest(loader)
    for other in copies:
        assert other.maps is not bank and other.maps.state() == bank.state() and digest(other) == want
    copies[0].maps.put(np.arange(24), np.ones((24, *CELLS)), Geometry.whole(24), 5)
    assert (np.nanmin(bank.take(np.arange(24), Geometry.whole(24), 6)) == 1) == file


# ------------------------------------------------------------------ ranks


def train_on_a_rank(rank: int, folder: Path) -> None:
    join(rank, folder)
    images, labels = make_arrays(80, 48)
    arrays, bank = (images, labels % 5), bank_for(80)
    sampler: Any = DistributedSampler(range(80), 2, rank, shuffle=True, seed=4)
    loader = loader_of(arrays, shuffle=None, sampler=sampler, mix=GradMix(num_classes=5), maps=bank, num_workers=1)
    net = Net(seed=rank)
    model = nn.parallel.DistributedDataParallel(net)
    optimiser, shares = torch.optim.SGD(model.parameters(), 0.05), []
    for epoch in range(4):  # of 5 steps
        loader.set_epoch(epoch)
        for pictures, targets in loader:
            with AttributionHook(model, ["body.2"]) as hook:
                loss = F.cross_entropy(model(pictures), targets)
                loader.put_maps(hook.maps(loss, size=CELLS))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            shares.append(float(loader.delivered.weights.min()))
        exchange_maps(bank, epoch)
    maps = torch.from_numpy(bank.take(np.arange(80), Geometry.whole(80), 4))
    state = {"parameters": [p.detach() for p in net.parameters()], "maps": maps, "shares": shares}
    torch.save(state, folder / f"{rank}.pt")
    leave()


def test_two_ranks_agree(tmp_path: Path) -> None:
    run_two_ranks(train_on_a_rank, tmp_path)
    one, two = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert all_equal(one["parameters"], two["parameters"])
    np.testing.assert_array_equal(one["maps"].numpy(), two["maps"].numpy())
    assert np.isfinite(one["maps"].numpy()).any((1, 2)).mean() > 0.9
    for state in (one, two):
        assert len(state["shares"]) == 20 and set(state["shares"][:5]) == {1.0} and max(state["shares"][5:]) < 1


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mix": GradMix()}, ValueError, r"mix is GradMix, which needs maps: pass .* maps=fastmix.MapBank"),
        ({"mix": AttentiveCutMix()}, ValueError, "mix is AttentiveCutMix, which needs maps"),
        ({"maps": MapBank(9)}, ValueError, r"maps has length=9, expected 24: make it with MapBank\(24, views=1\)"),
        ({"maps": MapBank(24), "views": 2}, ValueError, r"maps has views=1, expected 2"),
        ({"maps": MapBank(24, views=2)}, ValueError, r"maps has views=2, expected 1: make it with .*views=1"),
        ({"maps": MapBank(24, views=2), "views": 3, "mix": METHODS["augmix"]}, ValueError, r"MapBank\(24, views=1\)"),
        (
            {"maps": "maps.npy"},
            TypeError,
            "maps is a str, expected a fastmix.MapBank, fastmix.MapFile or fastmix.SpectralResidual",
        ),
        ({"maps": MapBank(24), "mix": GradMix(), "views": 3}, ValueError, "expected a method that keeps labels"),
    ],
)
def test_bad_settings(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        loader_of(make_arrays(24), **options)


def test_bad_maps() -> None:
    arrays = make_arrays(24, SIZE)
    loader = loader_of(arrays, maps=bank_for(24), crop=None)
    with pytest.raises(RuntimeError, match="no batch has been handed out"):
        loader.put_maps(torch.zeros(8, 7, 7))
    next(iter(loader))
    with pytest.raises(ValueError, match=r"maps have shape \(7, 7, 7\), expected \(8, 7, 7\): one for each picture"):
        loader.put_maps(torch.zeros(7, 7, 7))
    with pytest.raises(ValueError, match=r"maps have shape \(8, 7\)"):
        loader.put_maps(np.zeros((8, 7)))
    with pytest.raises(ValueError, match=r"make them with size=\(7, 7\)"):
        loader.put_maps(torch.zeros(8, 5, 7))
    with pytest.raises(ValueError, match="maps are complex64"):
        loader.put_maps(torch.zeros(8, 7, 7, dtype=torch.complex64))
    loader.put_maps(torch.ones(8, 7, 7, dtype=torch.bfloat16, requires_grad=True))
    loader.put_maps(torch.ones(8, 7, 7, dtype=torch.int32))
    plain = loader_of(arrays, crop=None)
    next(iter(plain))
    with pytest.raises(ValueError, match="the loader has no bank"):
        plain.put_maps(torch.zeros(8, 7, 7))


def test_maps_that_say_nothing_leave_pictures_alone() -> None:
    arrays = make_arrays(24, 64)
    loader = loader_of(arrays, mix=GradMix(num_classes=10), maps=bank_for(24))
    for bad in (torch.nan, torch.inf, 0.5):
        for _ in loader:
            loader.put_maps(torch.full((8, *CELLS), bad))
            assert (loader.delivered.weights == 1).all()


def test_explains_a_picture_of_the_epoch_under_way() -> None:
    arrays = make_arrays(24, 64)
    loader = loader_of(arrays, mix=GradMix(num_classes=10), maps=bank_for(24), output="uint8")
    list(fed(loader, 1))
    for images, _ in loader:
        now = loader.delivered
        for row in range(0, BATCH, 3):
            told = loader.explain(int(now.ids[row]), now.epoch)
            np.testing.assert_array_equal(told.pictures[0], images[row].permute(1, 2, 0).numpy())
            assert told.weight == pytest.approx(float(now.weights[row])) and told.partner is not None

"""Stops and starts: a stream goes on where it stood, and epochs are counted once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import METHODS, POOL, digest, digests, loader_of, make_arrays, make_photos
from torch.utils.data import (
    SubsetRandomSampler,
)

import fastmix
from fastmix.engine import keyed_batches
from fastmix.rng import Key, Stream, shuffle

pytestmark = pytest.mark.filterwarnings("ignore:num_workers is:UserWarning")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"))


def rest(loader: fastmix.DataLoader, batches: int) -> list[str]:
    """The digest of each of the next batches, over epochs."""
    found: list[str] = []
    while len(found) < batches:
        found += [digest([batch]) for batch in loader]
    return found[:batches]


@pytest.mark.parametrize("shuffle", [True, False])
def test_resume_after_every_batch(shuffle: bool) -> None:
    options = {"size": 32, "mix": METHODS["mixup"], "num_classes": 10, "shuffle": shuffle}
    whole = rest(loader_of(make_arrays(), **options), 27)
    for stop in range(18):
        loader = loader_of(make_arrays(), num_workers=2, **options)
        stopped = []
        while len(stopped) < stop:
            for batch in loader:
                stopped.append(digest([batch]))
                if len(stopped) == stop:
                    break
        assert stopped == whole[:stop]
        state = json.loads(json.dumps(loader.state_dict()))
        assert len(json.dumps(state)) < 4096
        again = loader_of(make_arrays(), num_workers=stop % 3, **options)
        again.load_state_dict(state)
        assert again.state_dict() == state
        assert rest(again, 6) == whole[stop : stop + 6], stop


def test_resume_several_times_in_an_epoch(photos: Path) -> None:
    options = {"batch_size": 2, "mix": METHODS["pixmix"]}
    whole = rest(loader_of(photos, **options), 8)
    found, state = [], None
    for threads in (0, 2, 4, 1):
        loader = loader_of(photos, num_workers=threads, **options)
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        found += [digest([next(batches)]) for _ in range(2)]
        state = loader.state_dict()
        assert (state["epoch"], state["batch"]) == (0, len(found))
    assert found == whole


def test_resume_at_the_end_starts_the_next_epoch() -> None:
    loader = loader_of(make_arrays(), size=32)
    digests(loader)
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (1, 0)


def test_resume_adopts_the_seed_of_the_state() -> None:
    torch.manual_seed(7)
    loader = loader_of(make_arrays(), size=32, seed=None)
    whole = rest(loader_of(make_arrays(), size=32, seed=7), 30)
    next(iter(loader))
    torch.manual_seed(8)
    again = loader_of(make_arrays(), size=32, seed=None)
    again.load_state_dict(loader.state_dict())
    assert rest(again, 20) == whole[1:21]


def test_resume_is_quick_deep_in_a_large_epoch() -> None:
    """The batch is found without drawing those before it."""
    key = Key(1)
    batch = next(keyed_batches(10_000_000, 10, False, key, 900_000))
    np.testing.assert_array_equal(batch, shuffle(np.arange(9_000_000, 9_000_010), 10_000_000, key, Stream.SHUFFLE))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stream_version": 0}, "stream_version=0"),
        ({"seed": 12}, "seed=12"),
        ({"length": 71}, "length=71"),
        ({"batch_size": 9}, "batch_size=9"),
        ({"batches": 8}, "batches=8"),
        ({"batch": 10}, "batch 10 of 9"),
        ({"epoch": "1"}, "epoch is '1'"),
        ({"epoch": 1 << 32}, "epoch is 4294967296"),
        ({"batch": -1}, "batch is -1"),
        ({"more": 1}, "expected .*batch_size"),
    ],
)
def test_states_that_do_not_fit(change: dict[str, Any], words: str) -> None:
    loader = loader_of(make_arrays(), size=32)
    with pytest.raises(ValueError, match=words):
        loader.load_state_dict({**loader.state_dict(), **change})
    with pytest.raises(ValueError, match="expected"):
        loader.load_state_dict(None)  # type: ignore[arg-type]


def test_a_state_of_another_order_is_refused() -> None:
    loader = loader_of(make_arrays(), size=32, shuffle=False, sampler=SubsetRandomSampler(range(70)))
    next(iter(loader))
    with pytest.raises(ValueError, match="other samples than when the state was saved"):
        loader.load_state_dict(loader.state_dict())
        next(iter(loader))


def test_epochs_are_counted_once() -> None:
    arrays = make_arrays()
    want = digests(loader_of(arrays, size=32), 4)
    assert len(set(want)) == 4
    loader, found = loader_of(arrays, size=32), []
    for epoch in range(4):
        if epoch != 2:
            loader.set_epoch(epoch)
        iter(loader)  # dropped unused
        found += digests(loader)
    assert found == want
    loader.set_epoch(1)
    assert digests(loader, 2) == want[1:3]
    loader.sampler.set_epoch(3)  # what Lightning does
    assert digests(loader) == want[3:]


def test_set_epoch_after_load_state_dict() -> None:
    loader = loader_of(make_arrays(), size=32)
    want = digests(loader, 3)
    loader.set_epoch(1)
    next(iter(loader))
    state = loader.state_dict()
    again = loader_of(make_arrays(), size=32)
    again.load_state_dict(state)
    again.set_epoch(1)  # the same epoch: the state counts
    assert len(list(again)) == 8
    again.load_state_dict(state)
    again.set_epoch(2)  # another one: it does not
    assert digests(again) == want[2:]


def test_an_epoch_keeps_the_method_it_started_with() -> None:
    arrays = make_arrays()
    loader = loader_of(arrays, size=32, mix=fastmix.PixMix(pool=POOL))
    mixed, plain = digests(loader), digests(loader_of(arrays, size=32))
    loader.set_epoch(0)
    batches = iter(loader)
    loader.mix.enabled = False
    assert [digest(batches)] == mixed
    loader.set_epoch(0)
    assert digests(loader) == plain
    loader.set_epoch(0)
    loader.mix = None
    assert digests(loader) == plain

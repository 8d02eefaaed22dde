"""The stream of a loader depends on seed, epoch and order alone: not on threads, time, prefetching or stops."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import BATCH, COUNT, METHODS, SIZE, digest, digests, loader_of, make_arrays, make_photos, tensors
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import fastmix

pytestmark = pytest.mark.filterwarnings("ignore:num_workers is:UserWarning")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding takes 0 to 10 ms more, at random."""
    from fastmix.engine import samples

    naps, decode = np.random.default_rng(), samples.decode

    def sleepy(*args: Any, **options: Any) -> Any:
        time.sleep(naps.uniform(0, 0.01))
        return decode(*args, **options)

    monkeypatch.setattr(samples, "decode", sleepy)


@pytest.mark.parametrize("name", METHODS)
def test_threads_and_prefetch_change_nothing(photos: Path, name: str) -> None:
    want = digests(loader_of(photos, mix=METHODS[name]), 2)
    assert want[0] != want[1]
    for threads in (1, 2, 4):
        for prefetch in (1, 2, 4):
            options = {"prefetch_factor": prefetch, "persistent_workers": prefetch == 2, "in_order": prefetch != 4}
            loader = loader_of(photos, mix=METHODS[name], num_workers=threads, **options)
            assert digests(loader, 2) == want, (threads, prefetch)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("crop", ["pad4", "random_resized"])
def test_threads_change_nothing_in_memory(name: str, crop: str) -> None:
    options = {"mix": METHODS[name], "size": 32, "batch_size": 33, "crop": crop, "num_classes": 10}
    want = digests(loader_of(make_arrays(), **options), 2)
    for threads in (1, 2, 4):
        assert digests(loader_of(make_arrays(), num_workers=threads, **options), 2) == want, threads


@pytest.mark.usefixtures("slow")
def test_timing_changes_nothing(photos: Path) -> None:
    streams = {
        digest(loader_of(photos, mix=METHODS[name], num_workers=threads, labels="pair"))
        for threads in (0, 3, 3, 3)
        for name in ("mixup",)
    }
    assert len(streams) == 1


def test_memory_and_files_give_the_same(tmp_path: Path) -> None:
    """Arrays go through the kernels in chunks, files one by one."""
    from PIL import Image

    pictures, labels = make_arrays(40)
    labels = np.sort(labels)
    for i, (pixels, label) in enumerate(zip(pictures, labels, strict=True)):
        (tmp_path / str(label)).mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / str(label) / f"{i:02d}.png")
    labels = np.unique(labels, return_inverse=True)[1]
    for name, crop in (("plain", "pad4"), ("pixmix", "pad4"), ("cutmix", "random_resized"), ("layermix", "center")):
        options = {"mix": METHODS[name], "size": 32, "crop": crop, "num_classes": 10}
        assert digests(loader_of(tmp_path, **options)) == digests(loader_of((pictures, labels), **options)), name


def test_seeds(photos: Path) -> None:
    streams = {
        digest(loader_of(photos, seed=seed, num_workers=threads)) for seed in (0, 1, 12345) for threads in (0, 2)
    }
    assert len(streams) == 3


def test_no_seed_follows_torch_without_moving_it(photos: Path) -> None:
    torch.manual_seed(5)
    first = digests(loader_of(photos, seed=None))
    assert first == digests(loader_of(photos, seed=5))
    torch.manual_seed(6)
    assert first != digests(loader_of(photos, seed=None))


@pytest.mark.parametrize("name", ["plain", "layermix", "mixup"])
def test_global_generators_are_neither_read_nor_moved(photos: Path, name: str) -> None:
    import random  # noqa: TID251

    def states() -> list[bytes]:
        generators = (random.getstate(), np.random.get_state())  # noqa: NPY002
        return [pickle.dumps(state) for state in generators] + [torch.get_rng_state().numpy().tobytes()]

    made = set()
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        before = states()
        made.update(digests(loader_of(photos, mix=METHODS[name], num_workers=2)))
        assert states() == before
    assert len(made) == 1


def numbers(loader: fastmix.DataLoader) -> list[list[int]]:
    """The samples of each batch, read from labels."""
    return [labels.tolist() for _, labels in loader]


def all_numbers(loader: fastmix.DataLoader) -> list[int]:
    """The samples of an epoch."""
    return [sample for batch in numbers(loader) for sample in batch]


def counted(count: int = 37) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((count, 4, 4, 3), np.uint8), np.arange(count)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_generator_gives_the_order_of_torch(threads: int, drop_last: bool) -> None:
    def order(kind: Any, dataset: Any, **options: Any) -> list[list[int]]:
        loader = kind(
            dataset, 8, shuffle=True, drop_last=drop_last, generator=torch.Generator().manual_seed(3), **options
        )
        return [batch[-1].tolist() for _ in range(3) for batch in loader]

    want = order(torch.utils.data.DataLoader, TensorDataset(torch.arange(37)))
    assert order(fastmix.DataLoader, counted(), size=4, num_workers=threads) == want


def test_orders() -> None:
    options = {"size": 4, "batch_size": 8}
    assert all_numbers(loader_of(counted(), shuffle=False, **options)) == list(range(37))
    shuffled = all_numbers(loader_of(counted(), **options))
    assert sorted(shuffled) == list(range(37)) and shuffled != list(range(37))
    assert [len(batch) for batch in numbers(loader_of(counted(), **options, drop_last=True))] == [8] * 4
    batches = [[3, 1], [36], [0, 1, 2, 5, 7]]
    loader = fastmix.DataLoader(counted(), size=4, batch_sampler=batches, num_workers=2)
    assert numbers(loader) == batches and len(loader) == 3
    assert numbers(fastmix.DataLoader(counted(), 2, sampler=[5, 4, 3], size=4)) == [[5, 4], [3]]
    own = BatchSampler(SequentialSampler(range(37)), 5, False)
    assert all_numbers(fastmix.DataLoader(counted(), size=4, batch_sampler=own)) == list(range(37))


def test_the_keyed_order_survives_foreign_hands() -> None:
    """Frameworks wrap batch samplers in classes of their own, or iterate the sampler themselves."""

    class Wrapped(BatchSampler):
        pass

    loader = loader_of(counted(3000), size=4, batch_size=100)
    want = [all_numbers(loader) for _ in range(3)]
    fresh = loader_of(counted(3000), size=4, batch_size=100).sampler
    assert list(fresh) == want[0] and len(fresh) == 3000
    fresh.set_epoch(2)
    assert list(fresh) == want[2]
    fresh.set_epoch(0)
    wrapped = loader_of(counted(3000), size=4, shuffle=None, batch_size=1, batch_sampler=Wrapped(fresh, 100, False))
    assert [all_numbers(wrapped) for _ in range(3)] == want


def test_distributed_sampler_advances_by_itself_and_follows_its_user() -> None:
    dataset = range(37)
    sampler = DistributedSampler(dataset, num_replicas=2, rank=1, seed=1)
    loader = fastmix.DataLoader(counted(), 8, sampler=sampler, size=4)
    want = []
    for epoch in (0, 1, 2, 7, 8):
        reference = DistributedSampler(dataset, num_replicas=2, rank=1, seed=1)
        reference.set_epoch(epoch)
        want.append(list(reference))
    found = [all_numbers(loader) for _ in range(3)]
    sampler.set_epoch(7)
    found += [all_numbers(loader) for _ in range(2)]
    assert found == want


def test_a_sample_that_comes_again_is_drawn_anew() -> None:
    arrays = make_arrays(6, 64)
    loader = loader_of(arrays, shuffle=False, sampler=[2, 2, 2, 3], batch_size=3, output="uint8", size=16)
    (first, _), (last, _) = loader
    assert len({row.numpy().tobytes() for row in first}) == 3
    plain = loader_of(arrays, shuffle=False, output="uint8", size=16)
    wanted = next(iter(plain))[0]
    np.testing.assert_array_equal(first[0], wanted[2])
    np.testing.assert_array_equal(last[0], wanted[3])
    weighted = WeightedRandomSampler([1.0] * 6, 30, generator=torch.Generator().manual_seed(0))
    rows = torch.cat([images for images, _ in loader_of(arrays, shuffle=False, sampler=weighted, size=16)])
    assert len({row.numpy().tobytes() for row in rows}) == 30
    replaced = RandomSampler(range(6), replacement=True, num_samples=12)
    assert len(list(loader_of(arrays, shuffle=False, sampler=replaced, batch_size=5, size=16))) == 3


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["plain", "mixup", "pixmix"])
def test_few_samples_and_many_threads(count: int, name: str) -> None:
    pictures, labels = make_arrays(3)
    options = {"mix": METHODS[name], "size": 32, "batch_size": 4, "num_classes": 10, "num_workers": 8}
    loader = loader_of((pictures[:count], labels[:count]), **options)
    for _ in range(2):
        batches = list(loader)
        assert [len(images) for images, _ in batches] == ([count] if count else [])
    assert len(loader) == (count > 0)


@pytest.mark.parametrize("name", METHODS)
def test_batches_of_one(name: str) -> None:
    pictures, labels = make_arrays(3)
    loader = loader_of((pictures, labels), mix=METHODS[name], size=32, batch_size=1, num_classes=10, labels="soft")
    for images, soft in loader:
        assert images.shape == (1, 3, 32, 32) and torch.isfinite(images).all()
        assert soft.sum() == 1 and soft.max() == 1


def test_the_stream_is_the_same_in_another_process(photos: Path, tmp_path: Path) -> None:
    """And so is what is left of it when it was stopped."""
    loader = loader_of(photos, mix=METHODS["layermix"], num_workers=2)
    batches = iter(loader)
    next(batches)
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    want = digest(batches)
    code = (
        "import json, sys; from pathlib import Path; import loading\n"
        "loader = loading.loader_of(Path(sys.argv[1]), mix=loading.METHODS['layermix'], num_workers=1)\n"
        "loader.load_state_dict(json.loads(Path(sys.argv[2]).read_text()))\n"
        "sys.stdout.write(loading.digest(loader))"
    )
    tests = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", code, str(photos), str(tmp_path / "state.json")],
        cwd=tests.parent,
        env={**os.environ, "PYTHONPATH": f"{tests}:{tests.parent}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == (want, "")


def test_shapes(photos: Path) -> None:
    loader = loader_of(photos, num_workers=2)
    sizes = [[tuple(tensor.shape) for tensor in tensors(batch)] for batch in loader]
    full = [(BATCH, 3, SIZE, SIZE), (BATCH,)]
    assert sizes == [full, full, [(COUNT % BATCH, 3, SIZE, SIZE), (COUNT % BATCH,)]]

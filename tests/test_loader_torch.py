"""The loader as a torch DataLoader: its arguments, what frameworks do to it, and what it refuses."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import METHODS, POOL, SIZE, digests, loader_of, make_arrays, make_photos
from torch.utils.data import default_collate
from torchvision.datasets import ImageFolder
from tqdm import tqdm

import fastmix
from fastmix import DataLoader, FastmixError, Pool


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"))


# A torch DataLoader.


def test_signature_begins_with_torchs() -> None:
    theirs = list(inspect.signature(torch.utils.data.DataLoader.__init__).parameters.values())
    ours = list(inspect.signature(DataLoader.__init__).parameters.values())[: len(theirs)]
    assert [(p.name, p.kind, p.default) for p in ours] == [(p.name, p.kind, p.default) for p in theirs]


def test_torchs_own_checks_hold() -> None:
    images, labels = make_arrays(8)
    for options in (
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"shuffle": True, "sampler": [1]},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_sampler": [[1]], "shuffle": True},
        {"batch_size": 0},
        {"batch_size": None, "drop_last": True},
        {"drop_last": 1},
    ):
        with pytest.raises(ValueError) as ours:
            DataLoader((images, labels), **options)  # type: ignore[arg-type]
        with pytest.raises(ValueError) as theirs:
            torch.utils.data.DataLoader(images, **options)  # type: ignore[arg-type]
        assert str(ours.value) == str(theirs.value)
    loader = loader_of((images, labels))
    for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"):
        with pytest.raises(ValueError, match=f"{name} attribute should not be set"):
            setattr(loader, name, None)


def reinstantiated(loader: DataLoader, **changes: Any) -> DataLoader:
    """What Lightning does: the arguments whose attributes are not the defaults, and a sampler."""
    parameters = inspect.signature(type(loader).__init__).parameters
    attributes = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    assert set(attributes) <= set(parameters)
    given = {
        name: attributes[name] for name, p in parameters.items() if attributes.get(name, p.default) is not p.default
    }
    given |= {"dataset": loader.dataset, "multiprocessing_context": loader.multiprocessing_context}
    given |= {"sampler": loader.sampler, "shuffle": False, "batch_sampler": None}
    given |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    return type(loader)(**{**given, **changes})


def test_frameworks_may_make_it_again(photos: Path) -> None:
    for dataset in (photos, ImageFolder(photos)):
        options = {"mix": METHODS["cutmix"], "num_workers": 1, "hflip": 0.3, "output": "float16", "drop_last": True}
        want = digests(loader_of(dataset, **options), 2)
        assert digests(reinstantiated(loader_of(dataset, **options)), 2) == want
    sampler = torch.utils.data.DistributedSampler(loader_of(photos).dataset, num_replicas=2, rank=0)
    assert len(reinstantiated(loader_of(photos), sampler=sampler)) == 2
    plain = reinstantiated(DataLoader(photos))
    defaults = {name: p.default for name, p in inspect.signature(DataLoader.__init__).parameters.items()}
    mine = (
        "mix",
        "crop",
        "size",
        "scale",
        "ratio",
        "hflip",
        "seed",
        "mean",
        "std",
        "output",
        "memory_format",
        "labels",
    )
    assert all(getattr(plain, name) is defaults[name] for name in mine)


def test_pickled_and_copied(photos: Path) -> None:
    loader = loader_of(photos, mix=METHODS["pixmix"], num_workers=2)
    want = digests(pickle.loads(pickle.dumps(loader)), 3)
    assert digests(loader) == want[:1]
    again = pickle.loads(pickle.dumps(loader))
    assert digests(again, 2) == want[1:]
    assert len(pickle.dumps(again)) < 400_000  # neither batches nor decoded pictures


def test_small_conveniences(photos: Path) -> None:
    loader = loader_of(photos)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert len(loader) == len(list(tqdm(loader, disable=True))) == 3
    assert iter(loader) is not iter(loader)
    assert loader_of(photos, collate_fn=default_collate, device="cpu", pin_memory=True).collate_fn is default_collate
    assert type(next(iter(loader))) is list
    assert not torch.cuda.is_initialized()


def test_names_of_the_package() -> None:
    assert set(fastmix.__all__) <= set(dir(fastmix))
    assert fastmix.DataLoader is DataLoader
    with pytest.raises(AttributeError, match="no attribute 'Loader'"):
        fastmix.Loader  # noqa: B018


# Refusals.

SMALL = Pool(np.zeros((2, 16, 16, 3), np.uint8))


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        (
            {"mix": fastmix.PixMix},
            TypeError,
            r"mix is <class .*>, expected a method such as fastmix.PixMix.imagenet\(\)",
        ),
        ({"mix": "pixmix"}, TypeError, "mix is 'pixmix', expected a method"),
        ({"crop": "five"}, ValueError, "crop is 'five', expected one of"),
        ({"size": 0}, ValueError, r"size is \(0, 0\), expected pixels >= 1"),
        ({"size": (3, 4, 5)}, ValueError, r"size is \(3, 4, 5\)"),
        ({"scale": (0.0, 1.0)}, ValueError, r"scale is \(0.0, 1.0\), expected 0 < low"),
        ({"ratio": (2.0, 1.0)}, ValueError, r"ratio is \(2.0, 1.0\), expected 0 < low"),
        ({"hflip": 1.5}, ValueError, "hflip is 1.5, expected a probability"),
        ({"seed": -1}, ValueError, "seed is -1, expected 0 <= seed"),
        ({"std": (1.0, 0.0, 1.0)}, ValueError, r"std is \(1.0, 0.0, 1.0\), expected three numbers"),
        ({"mean": (0.5,)}, ValueError, r"mean is \(0.5,\)"),
        ({"output": "float64"}, ValueError, "output is 'float64', expected one of"),
        ({"memory_format": torch.preserve_format}, ValueError, "memory_format is torch.preserve_format"),
        ({"labels": "hard"}, ValueError, "labels is 'hard', expected one of"),
        ({"on_error": "skip"}, ValueError, "on_error is 'skip', expected one of"),
        ({"device": "mps"}, ValueError, "device is 'mps', expected None, 'cpu' or 'cuda'"),
        ({"views": 4}, ValueError, "views is 4, expected 1, 2 or 3"),
        ({"views": 3}, ValueError, "views is 3 and mix is None, expected a method that keeps labels"),
        ({"views": 3, "mix": fastmix.MixUp()}, ValueError, "views is 3 and mix is MixUp"),
        ({"collate_fn": list}, ValueError, "collate_fn is <class 'list'>, expected None"),
        ({"multiprocessing_context": "fork", "num_workers": 1}, ValueError, "multiprocessing_context is 'fork'"),
        ({"batch_size": None}, ValueError, "batch_size is None, expected an integer"),
    ],
)
def test_bad_arguments(options: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        DataLoader(make_arrays(4), **options)


def test_bad_datasets(tmp_path: Path) -> None:
    class Endless(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter([1])

    with pytest.raises(TypeError, match="dataset is a Endless, expected"):
        DataLoader(Endless())
    with pytest.raises(FileNotFoundError, match="does not exist"):
        DataLoader(tmp_path / "none")


@pytest.mark.parametrize(
    ("pool", "words"),
    [(SMALL, "pool pictures are 16x16, smaller than the 48x48"), ("no.npy", r"cannot open pool no\.npy")],
)
def test_bad_pools(pool: Any, words: str, photos: Path) -> None:
    with pytest.raises(ValueError, match=words):
        next(iter(loader_of(photos, mix=fastmix.PixMix(), pool=pool)))


def test_pools_of_the_loader(photos: Path, tmp_path: Path) -> None:
    """A pool of the loader goes before the method's, may be a file, and is brought to the size of the pictures."""
    large = np.random.default_rng(1).integers(0, 256, (3, 90, 90, 3), dtype=np.uint8)
    np.save(tmp_path / "pool.npy", large)
    want = digests(loader_of(photos, mix=fastmix.PixMix(pool=fastmix.pools.fit_pool(Pool(large), (SIZE, SIZE)))))
    for mix in (fastmix.PixMix(), METHODS["pixmix"]):
        mix = fastmix.PixMix(pool=mix.pool)
        assert digests(loader_of(photos, mix=mix, pool=tmp_path / "pool.npy")) == want
    assert digests(loader_of(photos, mix=fastmix.PixMix(), pool=POOL)) != want


@pytest.mark.parametrize("threads", [0, 2])
def test_pictures_of_another_size(threads: int, photos: Path) -> None:
    words = r"the picture is 16 x 16 pixels .*crop='pad4' expects size=\(20, 20\): pass size=\(16, 16\)"
    with pytest.raises(FastmixError, match=words):
        next(iter(loader_of(make_arrays(9, 16), crop="pad4", size=20, num_workers=threads)))
    with pytest.raises(FastmixError, match=r"stage decode: the picture is \d+ x \d+ pixels .*crop=None expects"):
        next(iter(loader_of(photos, crop=None, num_workers=threads)))


def test_wrong_numbers_from_a_sampler() -> None:
    with pytest.raises(IndexError, match=r"batch 0 of the sampler has samples 4 to 8, expected 0\.\.3"):
        next(iter(DataLoader(make_arrays(4), 2, sampler=[4, 8], size=32)))


def test_float_pictures_are_refused() -> None:
    dataset = [(torch.zeros(3, 8, 8), 0)]
    with pytest.raises(FastmixError, match=r"sample 0, stage read: .*float32 .*remove ToTensor"):
        next(iter(DataLoader(dataset, size=8)))


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 3})
    with pytest.warns(UserWarning, match=r"num_workers is 3, more threads than this process has cores \(2\)") as told:
        DataLoader(make_arrays(4), 2, size=32, num_workers=3)
    assert len(told) == 1 and told[0].filename == __file__
    DataLoader(make_arrays(4), 2, size=32, num_workers=2)

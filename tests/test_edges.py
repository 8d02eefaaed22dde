"""Uses that look odd and are not: each was found by trying to break the library."""

import os
import pickle
import signal
from typing import Any

import numpy as np
import pytest
import torch
from loading import METHODS, loader_of, make_arrays

import fastmix
from fastmix import ArrayDataset, Batch, FastmixError, Key, Pool
from fastmix.engine import Crew


def arrays(count: int = 20) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(3)
    return rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8), np.arange(count)


def test_a_crew_that_was_interrupted_while_starting_can_be_closed() -> None:
    crew = Crew(3)
    crew._threads[0].start()  # as far as an interrupt let it come
    crew.close()
    assert not crew._threads[0].is_alive()


def test_an_epoch_does_not_go_on_in_a_forked_process() -> None:
    batches = iter(loader_of(make_arrays(64), size=32, num_workers=2))
    next(batches)
    child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            next(batches)
        except RuntimeError as error:
            os._exit(7 if "fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(list(batches)) > 0


def test_pools_and_batches_in_any_memory_order() -> None:
    images, labels = arrays()
    pool = np.random.default_rng(4).integers(0, 256, (3, 9, 9, 3), dtype=np.uint8)
    turned, straight = Pool(pool[:, ::-1]), Pool(pool[:, ::-1].copy())
    method = fastmix.PixMix(k=3, pool=turned)
    want = fastmix.mix(fastmix.PixMix(k=3, pool=straight), Batch.of(images, labels), Key(1)).images
    np.testing.assert_array_equal(fastmix.mix(method, Batch.of(images, labels), Key(1)).images, want)
    strided = Batch(np.asfortranarray(images), Batch.of(images, labels).targets)
    np.testing.assert_array_equal(fastmix.mix(method, strided, Key(1)).images, want)


def test_mix_wants_a_batch_and_a_key() -> None:
    images, labels = arrays()
    with pytest.raises(TypeError, match=r"batch is a ndarray .* expected Batch\.of"):
        fastmix.mix(fastmix.MixUp(), images, Key(0))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="key a int"):
        fastmix.mix(fastmix.MixUp(), Batch.of(images, labels), 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_an_empty_batch_stays_empty(name: str) -> None:
    method: Any = METHODS[name]
    if method is not None:
        images = np.zeros((0, 32, 32, 3), np.uint8)
        assert fastmix.mix(method, Batch.of(images, np.zeros(0, np.int64)), Key(0)).images.shape == images.shape


def test_subsets_count_from_the_end_and_take_no_mask() -> None:
    images, labels = arrays()
    data = ArrayDataset(images, labels)
    subset = torch.utils.data.Subset(data, [-1, 3])
    assert torch.cat([y for _, y in loader_of(subset, size=8, crop=None, shuffle=False)]).tolist() == [19, 3]
    with pytest.raises(TypeError, match="flatnonzero"):
        loader_of(torch.utils.data.Subset(data, labels > 15), size=8)
    with pytest.raises(IndexError, match="run from 2 to 20"):
        loader_of(torch.utils.data.Subset(data, [2, 20]), size=8)


def test_errors_survive_pickling() -> None:
    error = FastmixError("x", sample_id=7, path="p.jpg", stage="decode")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.sample_id, again.path, again.stage) == (str(error), 7, "p.jpg", "decode")


def test_a_mean_of_levels_is_refused() -> None:
    with pytest.raises(ValueError, match="divide it, and std, by 255"):
        loader_of(make_arrays(8), size=32, mean=(123.7, 116.3, 103.5), std=(58.4, 57.1, 57.4))


def test_the_labels_of_a_pair_are_two_arrays() -> None:
    (_, (a, b, _)), *_ = loader_of(make_arrays(8), size=32, labels="pair")
    a.zero_()
    assert b.sum() > 0


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("steps.right", 40, "left and right of its steps that the method drew run from .*, expected 0..32"),
        ("steps.left", -40, "left and right of its steps"),
        ("steps.top", -40, "top and bottom of its steps"),
        ("steps.bottom", 40, "top and bottom of its steps"),
        ("steps.layer", 1, "layers of its steps that the method drew run from 0 to 1, expected 0..0"),
        ("layers.index", 16, "mates that the method drew"),
        ("layers.source", 1, "pool pictures that the method drew"),
        ("partner", -16, "mates that the method drew run from -16"),
    ],
)
def test_a_method_that_looks_beyond_the_batch_is_refused(field: str, change: int, message: str) -> None:
    """Kernels write where a program says: an odd box would be somebody else's memory."""

    class Odd(fastmix.CutMix):
        def draw(self, key: Key, batch: Batch) -> Any:
            params = super().draw(key, batch)
            part, _, name = field.partition(".")
            changed = getattr(params.program, part)[name] if name else params.partner
            changed += change
            return params

    arrays = make_arrays(16)
    method = Odd(num_classes=10)
    with pytest.raises(ValueError, match=message):
        fastmix.mix(method, Batch.of(*arrays), Key(0, 0))
    with pytest.raises(FastmixError, match=message):
        next(iter(loader_of(arrays, size=32, mix=method, batch_size=16)))


def test_a_pool_window_beyond_its_picture_is_refused() -> None:
    class Odd(fastmix.PixMix):
        def draw(self, key: Key, batch: Batch) -> Any:
            params = super().draw(key, batch)
            params.program.layers["left"] += 60
            return params

    pool = Pool(np.zeros((2, 40, 50, 3), np.uint8))
    with pytest.raises(ValueError, match=r"lefts of pool windows that the method drew run from .*, expected 0..18"):
        fastmix.mix(Odd.cifar(pool=pool), Batch.of(*make_arrays(16)), Key(0, 0))

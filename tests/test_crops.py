"""Crop boxes, compared with torchvision and closed forms."""

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import ks_2samp
from sklearn.datasets import load_sample_image
from torchvision.transforms import CenterCrop, RandomResizedCrop, Resize

from fastmix.images import CROP_DRAWS, center_box, pad4, random_resized_crop


def test_random_resized_crop_follows_torchvisions_distribution():
    count, (height, width) = 20_000, (375, 500)
    blank, theirs = torch.empty(3, height, width), np.empty((count, 4))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for i in range(count):
            theirs[i] = RandomResizedCrop.get_params(blank, [0.08, 1.0], [3 / 4, 4 / 3])
    draws = np.random.default_rng(3).random((count, CROP_DRAWS)).tolist()
    left, top, w, h = np.array([random_resized_crop(draw, height, width) for draw in draws]).T
    for ours, reference in (
        (w * h, theirs[:, 2] * theirs[:, 3]),
        (w / h, theirs[:, 3] / theirs[:, 2]),
        (left, theirs[:, 1]),
        (top, theirs[:, 0]),
    ):
        assert ks_2samp(ours, reference).pvalue > 1e-3


def test_random_resized_crop_lies_inside_and_keeps_its_ranges():
    rng = np.random.default_rng(4)
    sizes = rng.integers(1, 400, (5000, 2))
    draws = rng.random((5000, CROP_DRAWS)).tolist()
    boxes = np.array([random_resized_crop(draw, *size) for draw, size in zip(draws, sizes.tolist(), strict=True)])
    assert boxes.dtype == np.int64
    left, top, w, h = boxes.T
    assert (left >= 0).all() and (top >= 0).all() and (w >= 1).all() and (h >= 1).all()
    assert (left + w <= sizes[:, 1]).all() and (top + h <= sizes[:, 0]).all()
    large = sizes.min(axis=1) > 100
    assert (w / h)[large].max() < 4 / 3 * 1.03 and (w / h)[large].min() > 3 / 4 / 1.03


def test_random_resized_crop_keeps_the_ranges_it_is_given():
    draws = np.random.default_rng(5).random((2000, CROP_DRAWS)).tolist()
    w, h = np.array([random_resized_crop(draw, 1000, 1000, (0.2, 0.3), (1.5, 2.0))[2:] for draw in draws]).T
    assert 0.199 < (w * h).min() / 1e6 < 0.205 and 0.295 < (w * h).max() / 1e6 < 0.301
    assert 1.495 < (w / h).min() < 1.52 and 1.98 < (w / h).max() < 2.005


def test_random_resized_crop_falls_back_to_the_centre():
    draws = [0.5] * CROP_DRAWS  # area 0.54, ratio 1: too large for the long ones
    assert random_resized_crop(draws, 10, 1000) == (493, 0, 13, 10)  # int(round(10 * 4 / 3)) wide, (1000 - 13) // 2
    assert random_resized_crop(draws, 1000, 10) == (0, 493, 10, 13)
    # sqrt(5400) = 73.48 wide, floor(0.5 * 28) from the left
    assert random_resized_crop(draws, 100, 100) == (14, 14, 73, 73)


def test_random_resized_crop_takes_the_first_try_that_fits():
    draws = [0.5] * CROP_DRAWS
    draws[:6] = [0.99, 0.01, 0.99, 0.99, 0.01, 0.5]  # too high, too wide, then area 0.0892 and ratio 1
    draws[-2:] = [0.0, 0.999]
    assert random_resized_crop(draws, 100, 100) == (0, 70, 30, 30)  # floor(0.999 * 71)


@pytest.mark.parametrize(
    ("height", "width", "size", "box"),
    [
        (256, 256, (224, 224), (16, 16, 224, 224)),
        (512, 1024, (224, 224), (288, 32, 448, 448)),
        (300, 400, (224, 224), (68.75, 18.75, 262.5, 262.5)),
        (36, 32, (224, 224), (2, 4, 28, 28)),
        (36, 32, (32, 32), (16 - 128 / 9, 18 - 128 / 9, 256 / 9, 256 / 9)),
        (100, 400, (56, 112), (112.5, 6.25, 175, 87.5)),
        (100, 100, (56, 112), (0, 25, 100, 50)),  # 175 wide before it shrinks
    ],
)
def test_center_box_in_closed_form(height, width, size, box):
    np.testing.assert_allclose(center_box(height, width, size), box)


def test_center_box_is_torchvisions_validation_crop():
    photo = Image.fromarray(load_sample_image("china.jpg")).crop(
        (0, 0, 480, 384)
    )  # 320 x 256 after the resize, so that torchvision rounds nothing
    theirs = np.asarray(CenterCrop(224)(Resize(256)(photo)), int)
    left, top, width, height = center_box(384, 480, (224, 224))
    box = (left, top, left + width, top + height)
    ours = np.asarray(photo.resize((224, 224), Image.Resampling.BILINEAR, box=box), int)
    np.testing.assert_allclose(ours[1:-1, 1:-1], theirs[1:-1, 1:-1], atol=1)  # the border sees no neighbours


def test_pad4_is_uniform_over_nine_offsets():
    offsets = pad4(np.random.default_rng(5).random((90_000, 3)))
    assert offsets.shape == (90_000, 2) and offsets.dtype == np.int64
    for column in offsets.T:
        counts = np.bincount(column, minlength=9)
        assert len(counts) == 9 and np.abs(counts - 10_000).max() < 450

"""Crop boxes, compared with torchvision and closed forms."""

import numpy as np
import torch
from PIL import Image
from scipy.stats import ks_2samp
from sklearn.datasets import load_sample_image
from torchvision.transforms import CenterCrop, RandomResizedCrop, Resize

from fastmix.images import CROP_DRAWS, center_box, pad4, random_resized_crop

RNG = np.random.default_rng(0)


def test_random_resized_crop_follows_torchvisions_distribution():
    count, (height, width) = 20_000, (375, 500)
    blank, theirs = torch.empty(3, height, width), np.empty((count, 4))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for i in range(count):
            theirs[i] = RandomResizedCrop.get_params(blank, [0.08, 1.0], [3 / 4, 4 / 3])
    u = np.random.default_rng(3).random((count, CROP_DRAWS))
    left, top, w, h = random_resized_crop(u, np.tile([height, width], (count, 1))).T
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
    boxes = random_resized_crop(rng.random((5000, CROP_DRAWS)), sizes)
    np.testing.assert_array_equal(boxes, np.rint(boxes))
    left, top, w, h = boxes.T
    assert (left >= 0).all() and (top >= 0).all() and (w >= 1).all() and (h >= 1).all()
    assert (left + w <= sizes[:, 1]).all() and (top + h <= sizes[:, 0]).all()
    large = sizes.min(axis=1) > 100
    assert (w / h)[large].max() < 4 / 3 * 1.03 and (w / h)[large].min() > 3 / 4 / 1.03


def test_random_resized_crop_falls_back_to_the_centre():
    u = np.full((3, CROP_DRAWS), 0.5)  # area 0.54, ratio 1: too large for the long ones
    boxes = random_resized_crop(u, np.array([[10, 1000], [1000, 10], [100, 100]]))
    np.testing.assert_array_equal(boxes[0], [493, 0, 13, 10])  # int(round(10 * 4 / 3)) wide, (1000 - 13) // 2
    np.testing.assert_array_equal(boxes[1], [0, 493, 10, 13])
    np.testing.assert_array_equal(boxes[2], [14, 14, 73, 73])  # sqrt(5400) = 73.48 wide, floor(0.5 * 28) from the left


def test_random_resized_crop_is_one_row_a_sample():
    u, sizes = RNG.random((50, CROP_DRAWS + 2)), RNG.integers(20, 500, (50, 2))
    order = RNG.permutation(50)
    boxes = random_resized_crop(u, sizes, (0.3, 0.9), (0.5, 2.0))
    np.testing.assert_array_equal(boxes[order], random_resized_crop(u[order], sizes[order], (0.3, 0.9), (0.5, 2.0)))


def test_center_box_in_closed_form():
    sizes = np.array([[256, 256], [512, 1024], [300, 400], [36, 32]])
    expected = [[16, 16, 224, 224], [288, 32, 448, 448], [68.75, 18.75, 262.5, 262.5], [2, 4, 28, 28]]
    np.testing.assert_allclose(center_box(sizes, (224, 224)), expected)
    np.testing.assert_allclose(center_box(sizes[3:], (32, 32)), [[16 - 128 / 9, 18 - 128 / 9, 256 / 9, 256 / 9]])
    np.testing.assert_allclose(center_box(sizes[:1], (224, 224), resize=224), [[0, 0, 256, 256]])
    np.testing.assert_allclose(center_box(np.array([[100, 400]]), (50, 100), resize=80), [[137.5, 18.75, 125, 62.5]])
    np.testing.assert_allclose(center_box(np.array([[100, 100]]), (50, 100), resize=50), [[0, 25, 100, 50]])


def test_center_box_is_torchvisions_validation_crop():
    photo = Image.fromarray(load_sample_image("china.jpg")).crop(
        (0, 0, 480, 384)
    )  # 320 x 256 after the resize, so that torchvision rounds nothing
    theirs = np.asarray(CenterCrop(224)(Resize(256)(photo)), int)
    ((left, top, width, height),) = center_box(np.array([[384, 480]]), (224, 224))
    box = (left, top, left + width, top + height)
    ours = np.asarray(photo.resize((224, 224), Image.Resampling.BILINEAR, box=box), int)
    np.testing.assert_allclose(ours[1:-1, 1:-1], theirs[1:-1, 1:-1], atol=1)  # the border sees no neighbours


def test_pad4_is_uniform_over_nine_offsets():
    offsets = pad4(np.random.default_rng(5).random((90_000, 3)))
    assert offsets.shape == (90_000, 2) and offsets.dtype == np.int64
    for column in offsets.T:
        counts = np.bincount(column, minlength=9)
        assert len(counts) == 9 and np.abs(counts - 10_000).max() < 450

"""The decoder of parts of a JPEG: the pixels and the verdicts of libjpeg-turbo, whatever the file."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import simplejpeg
import skimage.data
from jpegs import CHINA, EOI, FULL, GREY, NOT_PLAIN, PLAIN, SMALL, by_hand, damaged, encode, flat, wild
from PIL import Image
from sklearn.datasets import load_sample_image

from fastmix.images import center_box, decode, header, reach
from fastmix.kernels import decode_jpeg

PHOTOS = [CHINA, load_sample_image("flower.jpg"), skimage.data.astronaut(), skimage.data.coffee()]
KINDS = ["4:4:4", "4:2:2", "4:2:0", "grey"]


def whole(data):
    """The definition."""
    return simplejpeg.decode_jpeg(data, "RGB", strict=True)


def check_part(data, region, expected):
    """The region is as expected, and the rest of the memory as it was."""
    left, top, right, bottom = region
    height, width, _ = expected.shape
    guarded = np.full((height + 2, width, 3), 77, np.uint8)
    out, after = guarded[1:-1], np.full_like(guarded, 77)
    assert decode_jpeg(data, header(data).scan, region, out)
    after[1 + top : 1 + bottom, left:right] = expected[top:bottom, left:right]
    np.testing.assert_array_equal(guarded, after)


def random_region(rng, height, width):
    (left, right), (top, bottom) = (sorted(rng.choice(n + 1, 2, replace=False).tolist()) for n in (width, height))
    return left, top, right, bottom


# the pixels


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_photographs_are_libjpegs(kind, optimize):
    rng = np.random.default_rng(0)
    for quality in (5, 30, 60, 75, 85, 95, 100):
        photo = PHOTOS[quality % 4]
        height, width, _ = photo.shape
        data = encode(photo, kind, quality=quality, optimize=optimize)
        expected = whole(data)
        check_part(data, (0, 0, width, height), expected)
        for _ in range(3):
            check_part(data, random_region(rng, height, width), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_every_size(kind):
    rng = np.random.default_rng(1)
    for width in range(1, 41):
        for height in range(1 + width % 3, 41, 3):
            data = encode(CHINA[100 : 100 + height, 200 : 200 + width], kind, quality=90)
            expected = whole(data)
            np.testing.assert_array_equal(decode(data), expected)
            if width >= 6:
                check_part(data, random_region(rng, height, width), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_every_pixel_row_and_column_by_itself(kind):
    height, width = 35, 37
    data = encode(CHINA[200 : 200 + height, 300 : 300 + width], kind, quality=90)
    expected = whole(data)
    for y in range(height):
        check_part(data, (0, y, width, y + 1), expected)
        for x in range(width):
            check_part(data, (x, y, x + 1, y + 1), expected)
    for x in range(width):
        check_part(data, (x, 0, x + 1, height), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_and_flat_pictures(kind):
    rng = np.random.default_rng(2)
    noise = rng.integers(0, 256, (75, 83, 3), np.uint8)
    extremes = rng.choice(np.array([0, 255], np.uint8), (75, 83, 3))
    flat = [np.full((75, 83, 3), colour, np.uint8) for colour in ([0, 0, 0], [255, 255, 255], [200, 13, 77])]
    for pixels in (noise, extremes, *flat):
        for quality in (100, 50):
            data = encode(pixels, kind, quality=quality)
            check_part(data, (0, 0, 83, 75), whole(data))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_region_of_a_turned_picture_counts_in_the_result(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(CHINA[:40, :50], exif=exif)
    expected = decode(data)
    part = decode(data, region=(3, 5, 31, 37))
    np.testing.assert_array_equal(part[5:37, 3:31], expected[5:37, 3:31])


def test_a_region_outside_of_the_picture_is_refused():
    data = encode(CHINA[:40, :50])
    for region in ((-1, 0, 9, 9), (0, -1, 9, 9), (0, 0, 51, 9), (0, 0, 9, 41), (9, 9, 9, 12), (9, 9, 12, 8)):
        with pytest.raises(ValueError, match="region"):
            decode(data, region=region)


def test_threads_do_not_disturb_each_other():
    rng = np.random.default_rng(3)
    files = [encode(PHOTOS[i % 4], KINDS[i % 3], quality=60 + 5 * i, optimize=i % 2 > 0) for i in range(8)]
    expected = [whole(data) for data in files]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            order = rng.permutation(np.repeat(np.arange(8), 4)).tolist()
            for i, made in zip(order, pool.map(lambda i: decode(files[i]), order), strict=True):
                np.testing.assert_array_equal(made, expected[i])


def verdict(data, region=None, *, alone=True):
    """The picture, or None for an error; `alone` is False where there is to be no decoder of parts."""
    try:
        info = header(data, 1 << 20)
        return decode(data, region=region, info=info if alone else info._replace(scan=None))
    except ValueError:
        return None


def check_verdict(data, rng):
    """The whole and a region come out as by libjpeg-turbo; returns whether there is a picture."""
    made, expected = verdict(data), verdict(data, alone=False)
    if expected is None:
        assert made is None
        return False
    np.testing.assert_array_equal(made, expected)
    left, top, right, bottom = region = random_region(rng, *expected.shape[:2])
    np.testing.assert_array_equal(verdict(data, region)[top:bottom, left:right], expected[top:bottom, left:right])
    return True


def test_values_far_out_of_range():
    rng, taken = np.random.default_rng(4), 0
    for _ in range(1000):
        data = wild(rng)
        expected = whole(data)
        np.testing.assert_array_equal(decode(data), expected)
        region = random_region(rng, *expected.shape[:2])
        if decode_jpeg(data, header(data).scan, region, np.zeros_like(expected)):
            check_part(data, region, expected)
            taken += 1
    assert taken > 200


def test_levels_that_wrap_and_saturate():
    for size in range(1, 16):
        for value in (0, 1, (1 << size) - 1):
            for step in (1, 3, 255):
                values = [(size, value), (size, value), (0, 0), (3, 5), (size, 0)]
                data = flat(8, 40, values, step, 9 + size // 2)
                np.testing.assert_array_equal(decode(data), whole(data))


def test_sums_beyond_16_bits():
    for level in range(3800, 8400, 50):
        size = level.bit_length()
        for first in (level, (1 << size) - 1 - level):
            for second in (level, (1 << size) - 1 - level):  # the fourteenth of the zigzag is the fifth of its row
                data = by_hand(8, 8, [(size, first), (13 * 16 + size, second), (0, 0)], bytes([1] * 64))
                np.testing.assert_array_equal(decode(data), whole(data))


def test_the_longest_side():
    for height, width in ((1, 65500), (65500, 6), (1, 65501), (65501, 6), (6, 65535)):
        count = -(-height // 8) * -(-width // 8)
        data = flat(height, width, [(3, 5), (3, 2)] * (count // 2) + [(0, 0)] * (count % 2), 8)
        assert (verdict(data) is None) == (max(height, width) > 65500)  # libjpeg's JPEG_MAX_DIMENSION
        check_verdict(data, np.random.default_rng(0))


# what is not plain


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_what_is_not_plain_is_left_to_others(name):
    data, rng = NOT_PLAIN[name], np.random.default_rng(5)
    scan, out = header(data).scan, np.zeros((*header(data)[:2], 3), np.uint8)
    assert scan is None or not decode_jpeg(data, scan, (0, 0, 1, 1), out)
    check_verdict(data, rng)


@pytest.mark.parametrize("name", PLAIN)
def test_what_is_odd_but_plain(name):
    data = PLAIN[name]
    check_part(data, (5, 3, 18, 20), whole(data))


# damage


def test_damaged_files_get_libjpegs_verdict():
    rng = np.random.default_rng(6)
    sound = [check_verdict(data, rng) for data in damaged()]
    assert sound.count(True) > 1000 and sound.count(False) > 1000


def test_mutations_get_libjpegs_verdict():
    rng = np.random.default_rng(7)
    for number in range(3000):
        data = bytearray((SMALL, FULL, GREY)[number % 3])
        for _ in range(rng.integers(1, 4)):
            at, length = int(rng.integers(2, len(data))), int(rng.integers(1, 5))
            kind = rng.integers(4)
            if kind == 0:
                data[at] ^= 1 << int(rng.integers(8))
            elif kind == 1:
                data[at : at + length] = rng.bytes(length)
            elif kind == 2:
                del data[at : at + length]
            else:
                data[at:at] = (b"\xff", b"\0", EOI, rng.bytes(length), data[at : at + 20])[rng.integers(5)]
        check_verdict(bytes(data), rng)


# what a crop looks at


def test_a_crop_looks_at_nothing_beyond_its_reach(backend):
    rng = np.random.default_rng(8)
    for number in range(400):
        height, width = rng.integers(1, 60, 2).tolist()
        size = tuple(rng.integers(1, (12, 80)[number % 2], 2).tolist())
        extent = np.array([width, height])
        sides = (rng.random(2) * 0.98 + 0.02) * extent
        corner = rng.choice([0, rng.random(), 1], 2) * (extent - sides)
        if number % 4 == 0:
            corner, sides = np.floor(corner), np.maximum(np.floor(sides), 1)
        box = (*corner, *sides) if number % 3 else center_box(height, width, size)
        left, top, right, bottom = reach(box, size, height, width)
        picture, spoilt = rng.integers(0, 256, (2, height, width, 3), np.uint8)
        spoilt[top:bottom, left:right] = picture[top:bottom, left:right]
        made = np.zeros((2, *size, 3), np.uint8)
        backend.crop_resize([picture, spoilt], np.array([box, box]), np.zeros(2, bool), made, 0, 2)
        np.testing.assert_array_equal(made[0], made[1])

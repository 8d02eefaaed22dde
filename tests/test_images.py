"""Every odd file by one rule, compared with Pillow."""

import io
import struct
import zlib

import numpy as np
import pytest
import skimage.data
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_image

from fastmix.images import Header, decode, decode_scale, header

RNG = np.random.default_rng(0)
NOISE = Image.fromarray(RNG.integers(0, 256, (37, 53, 3), np.uint8))
PHOTO = Image.fromarray(load_sample_image("china.jpg"))
FORMATS = ["PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM"]


def encode(image, kind="JPEG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def by_pillow(data):
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def oriented(orientation):
    exif = Image.Exif()
    exif[0x010F], exif[0x0112] = "Maker", orientation
    return exif


def png(depth, colour, levels):
    """A PNG of (H, W, channels) levels; depth 16 is beyond what Pillow writes."""

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    height, width = levels.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2" if depth == 16 else "u1").tobytes() for row in levels)
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def bomb(width, height):
    """The first bytes of a JPEG whose frame header declares that size."""
    return b"\xff\xd8\xff\xc0" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9) + b"\xff\xda" + bytes(50)


# decoding


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (33, 31), (101, 57)])
def test_jpeg_is_pillows(size, subsampling, progressive):
    image = PHOTO.crop((200, 100, 200 + size[1], 100 + size[0]))
    data = encode(image, quality=85, subsampling=subsampling, progressive=progressive)
    assert header(data)[:4] == (*size, 1, True)
    # equal with libjpeg-turbo 3.1 (simplejpeg) against 3.2 (Pillow); other pairs of versions are held to 2 levels
    np.testing.assert_allclose(decode(data).astype(int), by_pillow(data), atol=2)


def test_grey_jpeg_is_replicated():
    data = encode(PHOTO.convert("L"))
    made = decode(data)
    assert header(data)[:4] == (427, 640, 1, True)
    np.testing.assert_array_equal(made[..., 0], made[..., 2])
    np.testing.assert_allclose(made.astype(int), by_pillow(data), atol=2)


def test_cmyk_jpeg_is_pillows_conversion_of_either_polarity():
    data = encode(PHOTO.convert("CMYK"), quality=95)  # Pillow writes Adobe's inverted polarity
    assert header(data)[:4] == (427, 640, 1, False)
    np.testing.assert_array_equal(decode(data), by_pillow(data))
    assert np.abs(decode(data).astype(int) - np.asarray(PHOTO)).mean() < 6
    at = data.index(b"\xff\xee")  # without the Adobe segment the values count as they are
    plain = data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]
    np.testing.assert_array_equal(decode(plain), by_pillow(plain))


@pytest.mark.parametrize("kind", FORMATS)
def test_other_formats_are_pillows(kind):
    data = encode(NOISE, kind)
    assert header(data)[:4] == (37, 53, 1, False)
    np.testing.assert_array_equal(decode(data), by_pillow(data))
    assert decode(data).flags.writeable and decode(data).flags.c_contiguous


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied(kind, orientation):
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encode(NOISE, kind, exif=oriented(orientation), **options)
    expected = by_pillow(data)
    made = decode(data)
    assert header(data)[:2] == made.shape[:2] == ((53, 37) if orientation >= 5 else (37, 53))
    np.testing.assert_allclose(made.astype(int), expected, atol=2 if kind == "JPEG" else 0)
    assert made.flags.c_contiguous


def test_orientation_of_a_cmyk_jpeg_and_of_a_scaled_one():
    data = encode(PHOTO.convert("CMYK"), exif=oriented(6))
    np.testing.assert_array_equal(decode(data), by_pillow(data))
    data = encode(PHOTO, exif=oriented(8))
    np.testing.assert_array_equal(decode(data, scale=4), np.rot90(decode(encode(PHOTO), scale=4)))


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_meaningless_orientation_is_ignored(orientation):
    assert header(encode(NOISE, exif=oriented(orientation)))[:4] == (37, 53, 1, True)


@pytest.mark.parametrize("order", ["<", ">"])
def test_exif_of_either_byte_order(order):
    mark = b"II*\0" if order == "<" else b"MM\0*"
    tiff = mark + struct.pack(order + "IHHHIHH", 8, 1, 0x0112, 3, 1, 6, 0)
    assert header(encode(NOISE, exif=b"Exif\0\0" + tiff))[:4] == (53, 37, 6, True)
    for cut in range(len(tiff) - 4):  # a damaged EXIF block says nothing
        assert header(encode(NOISE, exif=b"Exif\0\0" + tiff[:cut])).orientation == 1
    endless = mark + struct.pack(order + "IH", 8, 65535)
    assert header(encode(NOISE, exif=b"Exif\0\0" + endless)).orientation == 1


def test_sixteen_bits_keep_the_high_byte():
    grey = RNG.integers(0, 65536, (5, 7)).astype(np.uint16)
    expected = np.repeat((grey >> 8)[..., None], 3, axis=2)
    big_endian = b"P5 7 5 65535\n" + grey.astype(">u2").tobytes()
    for data in (encode(Image.fromarray(grey), "PNG"), encode(Image.fromarray(grey), "TIFF"), big_endian):
        np.testing.assert_array_equal(decode(data), expected)
    colour = RNG.integers(0, 65536, (5, 7, 4)).astype(np.uint16)
    np.testing.assert_array_equal(decode(png(16, 2, colour[..., :3])), colour[..., :3] >> 8)
    np.testing.assert_array_equal(decode(png(16, 6, colour)), colour[..., :3] >> 8)
    np.testing.assert_array_equal(decode(png(16, 4, colour[..., :2])), np.repeat(colour[..., :1] >> 8, 3, axis=2))


def test_one_bit_is_black_and_white():
    bits = RNG.integers(0, 2, (9, 11)).astype(bool)
    np.testing.assert_array_equal(
        decode(encode(Image.fromarray(bits), "PNG")), np.repeat(bits[..., None], 3, axis=2) * 255
    )


def test_alpha_is_dropped_without_a_warning():
    rgba = RNG.integers(0, 256, (6, 5, 4), np.uint8)
    np.testing.assert_array_equal(decode(png(8, 6, rgba)), rgba[..., :3])
    np.testing.assert_array_equal(decode(png(8, 4, rgba[..., :2])), np.repeat(rgba[..., :1], 3, axis=2))
    grey = Image.fromarray(rgba[..., 0])
    np.testing.assert_array_equal(
        decode(encode(grey, "PNG", transparency=int(rgba[0, 0, 0]))), np.repeat(rgba[..., :1], 3, axis=2)
    )


@pytest.mark.parametrize("transparency", [None, 3, bytes([0, 128, 255, 7])])
@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_palette_is_looked_up_whatever_its_transparency(kind, transparency):
    image = NOISE.quantize(16)
    palette = np.reshape(image.getpalette(), (-1, 3))
    options = (
        {} if transparency is None or (kind, type(transparency)) == ("GIF", bytes) else {"transparency": transparency}
    )
    expected = palette[np.asarray(image)]
    np.testing.assert_array_equal(decode(encode(image, kind, **options)), expected)


def test_the_first_frame_of_an_animation():
    frames = [Image.new("RGB", (4, 3), colour) for colour in ("red", "lime")]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(decode(data), np.broadcast_to([255, 0, 0], (3, 4, 3)))


def test_buffer_is_used_where_it_is_large_enough():
    data, buffer = encode(PHOTO), np.zeros(640 * 427 * 3 + 5, np.uint8)
    made = decode(data, buffer=buffer)
    assert np.shares_memory(made, buffer)
    np.testing.assert_array_equal(made, decode(data))
    small = decode(data, buffer=buffer[:100])
    assert not np.shares_memory(small, buffer)
    np.testing.assert_array_equal(small, made)
    np.testing.assert_array_equal(decode(data, scale=8, buffer=buffer[: 80 * 54 * 3]), decode(data, scale=8))
    turned = decode(encode(PHOTO, exif=oriented(6)), buffer=buffer)
    np.testing.assert_array_equal(turned, np.rot90(made, -1))


# scaled decoding


@pytest.mark.parametrize("scale", [2, 4, 8])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_scaled_size_is_rounded_up(kind, scale):
    data = encode(NOISE, kind)
    assert decode(data, scale=scale).shape == (-(-37 // scale), -(-53 // scale), 3)


def test_decode_scale_is_the_largest_with_three_times_the_output():
    info = Header(4000, 4000, 1, True)
    for side, expected in ((100, 1), (599, 1), (600, 2), (1199, 2), (1200, 4), (2399, 4), (2400, 8), (4000, 8)):
        assert decode_scale(info, (0, 0, side, 4000.0), (100, 100)) == expected
        assert decode_scale(info, (0, 0, 4000.0, side), (100, 100)) == expected
    assert decode_scale(info, (0, 0, 1200.0, 600.0), (100, 200)) == 2
    assert decode_scale(info._replace(is_jpeg=False), (0, 0, 4000.0, 4000.0), (10, 10)) == 1


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:0"])
def test_scaled_decoding_stays_within_the_stated_tolerance(subsampling):
    photos = [PHOTO, Image.fromarray(load_sample_image("flower.jpg")), Image.fromarray(skimage.data.astronaut())]
    rng = np.random.default_rng(1)
    for photo in (*photos, Image.fromarray(skimage.data.coffee()), Image.fromarray(skimage.data.chelsea())):
        data = encode(photo, quality=95, subsampling=subsampling)
        info, full = header(data), Image.fromarray(decode(data))
        for out in (16, 32, 60):
            side = int(rng.integers(6 * out, min(photo.size)) if 6 * out < min(photo.size) else min(photo.size))
            left, top = rng.integers(0, photo.width - side + 1), rng.integers(0, photo.height - side + 1)
            scale = decode_scale(info, (left, top, side, side), (out, out))
            box = np.array([left, top, left + side, top + side])
            small = Image.fromarray(decode(data, scale=scale))
            made = np.asarray(small.resize((out, out), Image.Resampling.BILINEAR, box=tuple(box / scale)), int)
            exact = np.asarray(full.resize((out, out), Image.Resampling.BILINEAR, box=tuple(box)), int)
            error = np.abs(made - exact)
            assert error.mean() <= 0.6 and np.quantile(error, 0.999) <= 5, (scale, out, error.mean(), error.max())
            assert (scale > 1) == (side >= 6 * out)


# refusals


@pytest.mark.parametrize("cut", [0.25, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("kind", ["JPEG", "progressive", "CMYK", *FORMATS])
def test_truncated_files_are_refused(kind, cut):
    image = PHOTO.convert("CMYK") if kind == "CMYK" else PHOTO
    data = encode(
        image, kind if kind in FORMATS else "JPEG", **({"progressive": True} if kind == "progressive" else {})
    )
    with pytest.raises(ValueError, match=r"truncated|damaged"):
        decode(data[: int(len(data) * cut)])


def test_damaged_jpeg_is_refused_though_pillow_takes_it():
    data = bytearray(encode(PHOTO))
    data[len(data) // 2 : len(data) // 2 + 8] = bytes(8)
    assert by_pillow(bytes(data)).shape == (427, 640, 3)
    with pytest.raises(ValueError, match="damaged JPEG"):
        decode(bytes(data))


def test_what_is_no_picture_is_refused():
    for data, words in (
        (b"", r"empty \(0 bytes\)"),
        (b"once upon a time", r"not a picture.*b'once upo'"),
        (b"\xff\xd8\xff", "no frame header"),
        (b"\xff\xd8\xff\xe1\x00\x04ab", "no frame header"),
        (b"\xff\xd8\xff\xe1\x00\x00", "no frame header"),
        (bomb(0, 10), "declares 0 x 10 pixels, expected at least 1 x 1"),
    ):
        with pytest.raises(ValueError, match=words):
            decode(data)
        with pytest.raises(ValueError, match=words):
            header(data)


def test_huge_pictures_are_refused_by_their_header():
    for data in (bomb(10000, 10000), png(8, 2, np.zeros((0, 0, 3)))[:16] + struct.pack(">II", 10000, 10000) + bytes(9)):
        with pytest.raises(ValueError, match=r"10000 x 10000 pixels, more than max_pixels=89478485: shrink"):
            decode(data)
    gif = bytearray(encode(NOISE.quantize(4), "GIF"))
    gif[6:10] = b"\xff\xff\xff\xff"
    with pytest.raises(ValueError, match="bomb"):
        decode(bytes(gif))
    for data in (encode(NOISE), encode(NOISE, "BMP")):
        with pytest.raises(ValueError, match="53 x 37 pixels, more than max_pixels=1960"):
            decode(data, max_pixels=1960)
        assert decode(data, max_pixels=1961).shape == (37, 53, 3)


def test_float_and_wide_integer_pictures_are_refused():
    with pytest.raises(ValueError, match="float"):
        decode(encode(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF"))
    with pytest.raises(ValueError, match=r"run from 0 to 65536, expected 0\.\.65535"):
        decode(encode(Image.fromarray(np.array([[0, 65536]], np.int32)), "TIFF"))


def test_unknown_scale_is_refused():
    with pytest.raises(ValueError, match="scale is 3, expected 1, 2, 4 or 8"):
        decode(encode(NOISE), scale=3)


def test_random_bytes_never_raise_anything_but_value_error():
    rng = np.random.default_rng(2)
    for kind in ("JPEG", "PNG", "GIF", "BMP"):
        good = encode(NOISE, kind)
        for _ in range(60):
            data = bytearray(good)
            for at in rng.integers(0, len(data), 4):
                data[at] = rng.integers(256)
            try:
                assert decode(bytes(data), max_pixels=1 << 20).dtype == np.uint8
            except ValueError as error:
                assert str(error)

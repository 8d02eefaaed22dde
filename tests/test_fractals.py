"""Fractal pictures and pool files: the chaos game, the systems, what is refused, and the files."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from scipy import stats

from fastmix import fractals
from fastmix.fractals import default_pool, fit_pool, fractal, make_pool, pack_pool, sample_system
from fastmix.kernels import backend_for
from fastmix.rng import Key
from fastmix.types import Pool

SIERPINSKI = np.array([[0.5, 0, 0, 0, 0.5, 0], [0.5, 0, 0.5, 0, 0.5, 0], [0.5, 0, 0, 0, 0.5, 0.5]])
UNIT = np.array([0.0, 0.0, 1.0, 1.0])


def play(maps, chances, points, words, box, shape):
    counts = np.full(shape, 7, np.uint32)
    words = np.array(words, np.uint32)
    backend_for(counts).attractor(maps, np.asarray(chances, float), points, words, box, counts)
    return counts


def plain_game(maps, chances, points, words, box, shape):
    """The chaos game, one point after the other, with the draws of the host."""
    draws = Key(words[0] | words[1] << 32).bits(np.array([words[2]]), words[3], points)[0] / 2.0**32
    a, b, c, d, e, f = maps[0]
    x, y = np.linalg.solve(np.array([[1 - a, -b], [-d, 1 - e]]), np.array([c, f]))
    counts = np.zeros(shape, np.uint32)
    left, top, right, bottom = box
    for draw in draws:
        a, b, c, d, e, f = maps[next(k for k, chance in enumerate(chances) if draw < chance)]
        x, y = a * x + b * y + c, d * x + e * y + f
        column, row = (
            int(np.floor((x - left) / (right - left) * shape[1])),
            int(np.floor((y - top) / (bottom - top) * shape[0])),
        )
        if 0 <= column < shape[1] and 0 <= row < shape[0]:
            counts[row, column] += 1
    return counts


@pytest.mark.parametrize("points", [0, 1, 3, 4, 997])
@pytest.mark.parametrize("words", [(0, 0, 0, 0), (5, 9, 123, 2050), (2**32 - 1, 2**32 - 1, 2**32 - 1, 4095)])
def test_attractor_is_the_plain_loop(points, words):
    maps, chances = sample_system(iter(Key(3).uniform(np.array([points]), 9, 64)[0]))
    box = np.array([-0.7, -1.1, 0.9, 0.6])
    expected = plain_game(maps, chances, points, words, box, (19, 31))
    np.testing.assert_array_equal(play(maps, chances, points, words, box, (19, 31)), expected)
    assert points < 900 or 0 < expected.sum() < points  # some points fall inside, some outside


def test_attractor_fills_the_sierpinski_triangle():
    """In 8 x 8 cells the triangle meets those whose row and column share no bit; each gets 1/27 of the visits."""
    counts = play(SIERPINSKI, [1 / 3, 2 / 3, 1], 90_000, (1, 0, 0, 0), UNIT, (8, 8))
    row, column = np.indices((8, 8))
    inside = row & column == 0
    assert counts.sum() == 90_000 and counts[~inside].sum() == 0
    assert stats.chisquare(counts[inside]).pvalue > 1e-3


def test_attractor_takes_maps_by_their_chances():
    counts = play(SIERPINSKI, [0.5, 0.75, 1], 40_000, (2, 0, 0, 0), UNIT, (2, 2))
    assert stats.chisquare(counts.ravel()[:3], [20_000, 10_000, 10_000]).pvalue > 1e-3
    assert play(SIERPINSKI, [1, 1, 1], 50, (2, 0, 0, 0), UNIT, (2, 2)).tolist() == [[50, 0], [0, 0]]


def test_attractor_survives_what_is_not_finite():
    assert play(SIERPINSKI * 1e200, [1 / 3, 2 / 3, 1], 500, (2, 0, 0, 0), UNIT, (4, 4)).sum() <= 1
    assert play(SIERPINSKI, [1 / 3, 2 / 3, 1], 500, (2, 0, 0, 0), np.array([0.0, 0, 0, 0]), (4, 4)).sum() == 0


def test_systems_keep_the_constraints():
    draws = Key(1).uniform(np.arange(3000), 9, 48)
    sizes, alphas = [], []
    for row in draws:
        maps, chances = sample_system(iter(row[:41]))
        n = len(maps)
        linear = maps[:, [0, 1, 3, 4]].reshape(n, 2, 2)
        large, small = np.linalg.svd(linear, compute_uv=False).T
        assert large.max() <= 1 + 1e-12 and small.min() >= 0 and np.abs(maps[:, [2, 5]]).max() < 1
        np.testing.assert_allclose((large + 2 * small).sum(), (5 + n + row[1]) / 2, rtol=1e-12)
        areas = np.abs(np.linalg.det(linear))
        np.testing.assert_allclose(np.diff(chances, prepend=0), areas / areas.sum(), atol=1e-12)
        sizes.append(n)
        alphas.append(2 * (large + 2 * small).sum() - 5 - n)
    assert stats.chisquare(np.bincount(sizes)[2:]).pvalue > 1e-3 and len(np.bincount(sizes)) == 5
    assert stats.kstest(alphas, "uniform").pvalue > 1e-3


def test_fractals_are_keyed():
    first = fractal(Key(0), 3, 48, True)
    assert first.shape == (48, 48, 3) and first.dtype == np.uint8
    np.testing.assert_array_equal(first, fractal(Key(0, epoch=2, view=1), 3, 48, True))
    others = [fractal(Key(0), 4, 48, True), fractal(Key(1), 3, 48, True), fractal(Key(1 << 40), 3, 48, True)]
    assert all((first != other).mean() > 0.5 for other in others)


def test_grey_is_the_luma_of_the_colour():
    color, grey = (fractal(Key(0), 5, 40, color) for color in (True, False))
    np.testing.assert_array_equal(grey, np.asarray(Image.fromarray(color).convert("L").convert("RGB")))
    assert np.ptp(color, axis=2).mean() > 10  # levels between the channels: the colour one has colours


@pytest.mark.parametrize("size", [16, 33, 96])
def test_fractals_are_rich(size, monkeypatch):
    seen = []
    density = fractals._density

    def record(system, key, number, stream, *rest):
        seen.append((stream // 4, density(system, key, number, stream, *rest)))
        return seen[-1][1]

    monkeypatch.setattr(fractals, "_density", record)
    tries = set()
    for number in range(25):
        seen.clear()
        gray = np.asarray(Image.fromarray(fractal(Key(7), number, size, True)).convert("L"), float)
        assert gray.std() > 23.9 and 47.9 < gray.mean() < 208.1
        assert all((levels > 0).mean() > 0.05 for attempt, levels in seen if attempt == seen[-1][0])
        tries.add(seen[-1][0])
    assert len(tries) > 1  # some were drawn anew


def test_empty_systems_are_refused(monkeypatch):
    point = np.array([[0.01, 0, 0, 0, 0.01, 0], [0.01, 0, 0.5, 0, 0.01, 0.5]])
    monkeypatch.setattr(fractals, "sample_system", lambda _draws: (point, np.array([0.5, 1.0])))
    with pytest.raises(RuntimeError, match="seed 3, picture 8: use another seed"):
        fractal(Key(3), 8, 64, True)


def test_poor_pictures_are_refused():
    ramp = np.linspace(0, 255, 64, dtype=np.uint8)
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)
    pictures = [np.broadcast_to(ramp, (64, 64)), np.full((64, 64), 128), noise, np.broadcast_to(ramp // 3, (64, 64))]
    rgb = [np.repeat(picture.astype(np.uint8)[..., None], 3, axis=2) for picture in pictures]
    assert [fractals._is_rich(picture) for picture in rgb] == [True, False, False, False]


@pytest.mark.parametrize(
    ("number", "size", "message"),
    [
        (0, 15, "size is 15, expected 16..2048"),
        (0, 2049, "is 2049"),
        (-1, 32, "number is -1"),
        (1 << 32, 32, "4294967296"),
    ],
)
def test_fractal_arguments(number, size, message):
    with pytest.raises(ValueError, match=message):
        fractal(Key(0), number, size, True)


def test_recipe():
    """Means of the channels as first drawn.  If they change on purpose, raise `_RECIPE`: it names the cached pool."""
    means = [fractal(Key(0), number, 32, True).mean(axis=(0, 1)) for number in range(3)]
    expected = [[99.8, 111.4, 95.6], [95.2, 113.2, 46.2], [84.4, 144.1, 131.1]]
    assert fractals._RECIPE == 1
    np.testing.assert_allclose(means, expected, atol=0.5)


def test_pool_file(tmp_path):
    made = [make_pool(tmp_path / f"{threads}.npy", 7, 32, 5, True, threads) for threads in (1, 2, 4)]
    assert isinstance(made[0].images, np.memmap) and not made[0].images.flags.writeable
    for number, picture in enumerate(made[0].images):
        np.testing.assert_array_equal(picture, fractal(Key(5), number, 32, True))
    assert len({(tmp_path / f"{threads}.npy").read_bytes() for threads in (1, 2, 4)}) == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["1.npy", "2.npy", "4.npy"]
    np.testing.assert_array_equal(np.load(tmp_path / "1.npy", allow_pickle=False), made[0].images)
    np.testing.assert_array_equal(Pool.open(tmp_path / "2.npy").images, made[0].images)


def test_pool_file_is_whole_or_absent(tmp_path, monkeypatch):
    def break_down(_key, number, size, **_color):
        if number == 40:
            raise KeyboardInterrupt
        return np.zeros((size, size, 3), np.uint8)

    (tmp_path / "old.npy").write_bytes(b"old")
    monkeypatch.setattr(fractals, "fractal", break_down)
    for name in ("new.npy", "old.npy"):
        with pytest.raises(KeyboardInterrupt):
            make_pool(tmp_path / name, 50, 16, threads=2)
    assert [file.name for file in tmp_path.iterdir()] == ["old.npy"]
    assert (tmp_path / "old.npy").read_bytes() == b"old"


def test_progress_goes_to_stderr(tmp_path, capsys):
    make_pool(tmp_path / "quiet.npy", 2, 16)
    assert capsys.readouterr() == ("", "")
    make_pool(tmp_path / "bar.npy", 2, 16, progress=True)
    out, err = capsys.readouterr()
    assert out == "" and "bar.npy: 100%" in err and "2/2" in err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 0}, "count is 0, expected at least 1"),
        ({"size": 8}, "size is 8, expected 16..2048"),
        ({"seed": -1}, "seed is -1"),
        ({"threads": 0}, "threads is 0, expected at least 1"),
        (
            {"path": "missing/a.npy"},
            "cannot write pool .*missing/a.npy: expected the name of a file in a folder that exists",
        ),
        ({"path": "."}, "cannot write pool"),
    ],
)
def test_pool_arguments(tmp_path, change, message):
    arguments = {"path": "a.npy", "count": 1, "size": 16} | change
    with pytest.raises(ValueError, match=message):
        make_pool(tmp_path / arguments.pop("path"), **arguments)
    assert list(tmp_path.iterdir()) == []


def photograph(height, width):
    """A smooth colour picture."""
    y, x = np.mgrid[:height, :width] / max(height, width)
    return Image.fromarray((255 * np.stack([x, y, (1 + np.sin(9 * x * y)) / 2], axis=2)).astype(np.uint8))


def test_pack(tmp_path):
    folder = tmp_path / "pictures"
    (folder / "b" / "c").mkdir(parents=True)
    base = photograph(50, 70)
    turned = Image.Exif()
    turned[0x0112] = 6
    base.save(folder / "z.PNG")
    base.convert("L").save(folder / "b" / "grey.png")
    base.convert("RGBA").save(folder / "b" / "c" / "alpha.webp", lossless=True)
    base.convert("P").save(folder / "b" / "palette.gif")
    base.convert("CMYK").save(folder / "b" / "cmyk.jpg", quality=95)
    base.save(folder / "a.png", exif=turned)
    photograph(3, 200).save(folder / "b" / "thin.bmp")
    (folder / ".hidden.png").write_bytes(b"no picture")
    (folder / "notes.txt").write_text("no picture")
    pool = pack_pool(folder, tmp_path / "pool.npy", 24)
    order = ["a.png", "b/c/alpha.webp", "b/cmyk.jpg", "b/grey.png", "b/palette.gif", "b/thin.bmp", "z.PNG"]
    assert pool.images.shape == (7, 24, 24, 3) and isinstance(pool.images, np.memmap)
    for picture, name in zip(pool.images, order, strict=True):
        with Image.open(folder / name) as image:
            upright = ImageOps.exif_transpose(image).convert("RGB")
        short = min(upright.size)
        left, top = (upright.width - short) / 2, (upright.height - short) / 2
        box = (left, top, left + short, top + short)
        expected = np.asarray(upright.resize((24, 24), Image.Resampling.BILINEAR, box), int)
        assert np.abs(picture - expected).max() <= 1, name


def test_pack_refuses(tmp_path):
    folder = tmp_path / "pictures"
    with pytest.raises(ValueError, match=r"no pictures in .*pictures: expected a folder with files that end in .bmp"):
        pack_pool(folder, tmp_path / "pool.npy", 24)
    folder.mkdir()
    with pytest.raises(ValueError, match="no pictures in"):
        pack_pool(folder, tmp_path / "pool.npy", 24)
    photograph(30, 30).save(folder / "good.png")
    with pytest.raises(ValueError, match="pool size is 0"):
        pack_pool(folder, tmp_path / "pool.npy", 0)
    for data in (b"", b"not a picture", (folder / "good.png").read_bytes()[:200]):
        (folder / "bad.png").write_bytes(data)
        with pytest.raises(ValueError, match=r"cannot read picture .*bad\.png: .*; mend it or take it out"):
            pack_pool(folder, tmp_path / "pool.npy", 24)
    assert not (tmp_path / "pool.npy").exists()


@pytest.mark.parametrize(
    ("pool", "size", "fitted"),
    [
        ((256, 256), (224, 224), (256, 256)),
        ((36, 36), (32, 32), (36, 36)),
        ((256, 256), (32, 32), (36, 36)),
        ((64, 64), (32, 20), (36, 36)),
        ((256, 256), (256, 256), (256, 256)),
        ((240, 240), (224, 224), (240, 240)),
        ((32, 32), (32, 32), (32, 32)),
        ((60, 90), (28, 28), (32, 48)),
        ((90, 61), (28, 28), (47, 32)),
        ((40, 60), (30, 60), (40, 60)),
        ((32, 32), (1, 1), (1, 1)),
    ],
)
def test_fit_pool(pool, size, fitted):
    images = np.stack([np.asarray(photograph(*pool)), np.asarray(photograph(*pool))[::-1]])
    result = fit_pool(Pool(images), size)
    assert result.images.shape[1:3] == fitted
    if fitted == pool:
        assert result.images is images
    for picture, image in zip(result.images, images, strict=True):
        expected = Image.fromarray(image).resize(fitted[::-1], Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(picture, np.asarray(expected))


@pytest.mark.parametrize(
    ("pool", "size", "side"),
    [((31, 31), (32, 32), 36), ((40, 31), (32, 32), 36), ((31, 40), (32, 32), 36), ((8, 8), (9, 1), 16)],
)
def test_fit_pool_refuses(pool, size, side):
    sizes = f"are {pool[0]}x{pool[1]}, smaller than the {size[0]}x{size[1]} pictures to mix"
    with pytest.raises(ValueError, match=f"{sizes}: make larger ones with `fastmix pool make --size {side}`"):
        fit_pool(Pool(np.zeros((1, *pool, 3), np.uint8)), size)


@pytest.fixture
def small_default(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(fractals, "_COUNT", 3)
    monkeypatch.setattr(fractals, "_SIDE", 32)
    monkeypatch.setattr(fractals, "user_cache_dir", lambda name: str(tmp_path / "cache" / name))
    return tmp_path / "cache"


def test_default_pool_is_made_once(small_default, capsys):
    first = default_pool()
    assert capsys.readouterr().err.count("\n") == 1
    second = default_pool()
    assert capsys.readouterr().err == ""
    assert first.images.shape == (3, 32, 32, 3) and isinstance(second.images, np.memmap)
    np.testing.assert_array_equal(first.images, second.images)
    np.testing.assert_array_equal(first.images[1], fractal(Key(0), 1, 32, True))
    assert stat.S_IMODE((small_default / "fastmix").stat().st_mode) == 0o700


def test_default_pool_by_many_at_once(small_default):
    with ThreadPoolExecutor(4) as executor:
        pools = list(executor.map(lambda _: default_pool(), range(4)))
    for pool in pools:
        np.testing.assert_array_equal(pool.images, pools[0].images)
    assert len(list((small_default / "fastmix").iterdir())) == 1


def test_default_pool_without_a_cache(small_default):
    small_default.write_bytes(b"a file where the folder would be")
    np.testing.assert_array_equal(default_pool().images[2], fractal(Key(0), 2, 32, True))


def test_the_default_pool_fits_imagenet_crops():
    assert fractals._SIDE == 8 * 224 // 7 and fractals._COUNT >= 100

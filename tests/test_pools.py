"""Pool files: fractals and folders written to them, the default pool, and pools brought to a size."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from fastmix import pools
from fastmix.fractals import fractal
from fastmix.pools import default_pool, fit_pool, make_pool, pack_pool
from fastmix.rng import Key
from fastmix.types import Pool


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
    monkeypatch.setattr(pools, "fractal", break_down)
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
    monkeypatch.setattr(pools, "_COUNT", 3)
    monkeypatch.setattr(pools, "_SIDE", 32)
    monkeypatch.setattr(pools, "user_cache_dir", lambda name: str(tmp_path / "cache" / name))
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
        made = list(executor.map(lambda _: default_pool(), range(4)))
    for pool in made:
        np.testing.assert_array_equal(pool.images, made[0].images)
    assert len(list((small_default / "fastmix").iterdir())) == 1


def test_default_pool_without_a_cache(small_default):
    small_default.write_bytes(b"a file where the folder would be")
    np.testing.assert_array_equal(default_pool().images[2], fractal(Key(0), 2, 32, True))


def test_the_default_pool_fits_imagenet_crops():
    assert pools._SIDE == 8 * 224 // 7 and pools._COUNT >= 100

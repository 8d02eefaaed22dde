"""The pictures of mixing: captions say what happened, rows show what went in, and nothing is cut off."""

import re

import numpy as np
import pytest
from PIL import Image, ImageFont, ImageOps

from fastmix import show
from fastmix.methods.augmix import AugMix
from fastmix.methods.cutmix import CutMix
from fastmix.methods.ipmix import IPMix
from fastmix.methods.layermix import LayerMix
from fastmix.methods.mixup import MixUp
from fastmix.methods.pixmix import PixMix
from fastmix.mixing import mix
from fastmix.rng import Key
from fastmix.show import Cell, Row, batch_of, explain, grid, pick
from fastmix.types import Batch, Pool

SIZE, COUNT, SEED = 24, 12, 4


def pictures(count, size, seed):
    """Smooth pictures with all levels, so that wrong arithmetic shows."""
    coarse = np.random.default_rng(seed).integers(0, 256, (count, 4, 4, 3), np.uint8)
    return np.stack([np.asarray(Image.fromarray(picture).resize((size, size))) for picture in coarse])


BATCH = Batch.of(pictures(COUNT, SIZE, 1), np.arange(COUNT))
POOL = Pool(pictures(5, SIZE + 6, 2))
NAMES = [f"{number}.jpg" for number in range(COUNT)]
METHODS = [
    MixUp(),
    CutMix(mode="elem"),
    AugMix(),
    PixMix(pool=POOL),
    IPMix(pool=POOL, patch_source="either", overflow="clip"),
    LayerMix(pool=POOL),
]
NUMBER = r"(-?[\d.]+)"


def column(rows, number):
    """Original, {"A": picture, ...}, result and the lines of its caption."""
    cells = {row.name.removeprefix("layer "): row.cells[number] for row in rows if row.cells[number]}
    original, result = cells.pop("original"), cells.pop("result")
    layers = {name: cell.picture.astype(float) for name, cell in cells.items()}
    return original.picture.astype(float), layers, result.picture.astype(float), result.caption.split("\n")


def follow(lines, original, layers):
    """Do what a caption says, in float; None if it tells of chance or of operations."""
    x, total = original, 0
    for line in lines:
        words, _, box = line.partition(", ")[0], *line.partition(" px at ")[1:]
        if " in " in line or ">" in line:
            return None
        if match := re.match(rf"x = add\({NUMBER} x, {NUMBER} (\w+)\)", line):
            a, b, y = float(match[1]), float(match[2]), layers[match[3]]
            new = np.clip(a * x + b * y + 127.5 * (1 - a - b), 0, 255)
        elif match := re.match(rf"x = multiply\(x\^{NUMBER}, (\w+)\^{NUMBER}\)", line):
            base = np.maximum(layers[match[2]] / 127.5, 1e-37)
            new = np.clip(127.5 * (x / 127.5) ** float(match[1]) * base ** float(match[3]), 0, 255)
        elif match := re.match(rf"x = {NUMBER} x \+ {NUMBER} (\w+)", line):
            new = float(match[1]) * x + float(match[2]) * layers[match[3]]
        elif match := re.match(rf"total \+= {NUMBER} x", line):
            total = total + float(match[1]) * x
            continue
        elif line == "x = total":
            new = total
        elif line.startswith("label") or line == "unchanged":
            continue
        else:
            new = layers[words.removeprefix("x = ")]
        if box:
            wide, high, left, top = map(int, re.search(r"(\d+)x(\d+) px at \((\d+),(\d+)\)", line).groups())
            part = np.s_[top : top + high, left : left + wide]
            x = x.copy()
            x[part] = new[part]
        else:
            x = new
    return x


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_captions_and_layers_give_the_result(method):
    rows = explain(method, BATCH, NAMES, SEED)
    mixed = mix(method, BATCH, Key(SEED)).images
    followed = 0
    for number in range(COUNT):
        original, layers, result, lines = column(rows, number)
        np.testing.assert_array_equal(result, mixed[number])
        made = follow(lines, original, {"original": original, **layers})
        if made is not None:
            # coefficients are shown to three decimals, exponents too: (v / 127.5) ** 0.0005 is 0.1 % at most levels
            np.testing.assert_allclose(np.percentile(np.abs(made - result), 99), 0, atol=4)
            followed += 1
    assert followed >= 3


def test_captions_tell_labels_partners_and_chance():
    last = explain(MixUp(), BATCH, NAMES, SEED)[-1].cells
    made = mix(MixUp(), BATCH, Key(SEED)).targets
    for number, cell in enumerate(last):
        share, partner = re.search(rf"label: {NUMBER}% own, .* of picture (\d+)", cell.caption).groups()
        assert float(share) == pytest.approx(100 * made.w[number], abs=0.06)
        assert int(partner) == made.b[number] + 1
    text = "\n".join(cell.caption for cell in explain(LayerMix(pool=POOL), BATCH, NAMES, SEED)[-1].cells)
    assert re.search(r"in \d+% of the (pixels|values)", text)


def test_pool_layers_are_windows_of_the_picture_that_is_named():
    rows = explain(PixMix(pool=POOL), BATCH, NAMES, SEED)
    fractals = [cell for row in rows[1:-1] for cell in row.cells if cell and cell.caption.startswith("pool picture")]
    for cell in fractals:
        source = POOL.images[int(cell.caption.split()[-1])]
        windows = np.lib.stride_tricks.sliding_window_view(source, (SIZE, SIZE, 3)).reshape(-1, SIZE, SIZE, 3)
        assert (windows == cell.picture).all(axis=(1, 2, 3)).any()
    assert len(fractals) > 3


def test_chains_of_operations_are_told_in_order():
    pillow = {
        "posterize": lambda image, bits: ImageOps.posterize(image, int(bits)),
        "solarize": lambda image, threshold: ImageOps.solarize(image, int(threshold)),
        "equalize": ImageOps.equalize,
        "autocontrast": ImageOps.autocontrast,
    }
    longest = 0
    for row in explain(AugMix(width=6, severity=8), BATCH, NAMES, SEED)[1:-1]:
        for number, cell in enumerate(row.cells):
            chain = [words.split() for words in cell.caption.split(" > ")[1:]] if cell else []
            if chain and all(name in pillow for name, *_ in chain):
                image = Image.fromarray(BATCH.images[number])
                for name, *value in chain:
                    image = pillow[name](image, *value)
                np.testing.assert_array_equal(cell.picture, np.asarray(image))
                longest = max(longest, len({name for name, *_ in chain}))
    assert longest >= 2


def test_a_switched_off_method_changes_nothing():
    rows = explain(AugMix(enabled=False), BATCH, NAMES, SEED)
    assert [row.name for row in rows] == ["original", "result"]
    assert {cell.caption for cell in rows[1].cells} == {"unchanged"}


def test_one_picture_has_no_mates():
    same = Batch.of(np.repeat(BATCH.images[:1], 3, axis=0), [0, 1, 2])
    with pytest.raises(ValueError, match=r"CutMix mixes a picture with another one, and there is only a\.jpg"):
        explain(CutMix(), same, ["a.jpg"] * 3, 0)
    assert len(explain(AugMix(), same, ["a.jpg"] * 3, 0)[0].cells) == 3


def save(path, size=(30, 20), value=90):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).save(path)


def test_pick(tmp_path):
    for number in range(9):
        save(tmp_path / f"{number % 2}" / f"{number}.png")
    save(tmp_path / ".hidden.png")
    (tmp_path / "notes.txt").write_text("no picture")
    first = pick(tmp_path, 9, 0)
    assert sorted(file.name for file in first) == [f"{number}.png" for number in range(9)]
    assert pick(tmp_path, 20, 0) == [*first, *first, *first[:2]] and pick(tmp_path, 9, 1) != first
    assert pick(first[0], 2, 5) == [first[0]] * 2


def test_pick_and_batch_refuse(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no picture or folder .*missing"):
        pick(tmp_path / "missing", 1, 0)
    with pytest.raises(ValueError, match=r"no pictures in .*: expected files that end in \.bmp"):
        pick(tmp_path, 1, 0)
    save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="count is 0, expected at least 1"):
        pick(tmp_path, 0, 0)
    with pytest.raises(ValueError, match="size is 0, expected at least 1"):
        batch_of([tmp_path / "a.png"], 0)
    (tmp_path / "b.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"cannot read picture .*b\.png: not a picture"):
        batch_of([tmp_path / "b.png"], 8)


def test_batch_is_the_centre(tmp_path):
    picture = np.zeros((20, 40, 3), np.uint8)
    picture[:, 10:30] = 200  # the centre square and nothing else, but for the 1/8 that is cut off on all sides
    Image.fromarray(picture).save(tmp_path / "a.png")
    batch = batch_of([tmp_path / "a.png"] * 2, 16)
    np.testing.assert_array_equal(batch.images, np.full((2, 16, 16, 3), 200))
    np.testing.assert_array_equal(batch.targets.ids, [0, 1])


def test_grid_shows_pictures_as_they_are():
    large = pictures(2, 200, 3)
    page = np.asarray(grid("title", [Row("first", [Cell(large[0]), Cell(large[1])])]))
    found = np.lib.stride_tricks.sliding_window_view(page, (200, 200, 3))[:, :, 0]
    for picture in large:
        corners = (found[..., 0, 0, :] == picture[0, 0]).all(-1) & (found[..., -1, -1, :] == picture[-1, -1]).all(-1)
        assert any((found[y, x] == picture).all() for y, x in np.argwhere(corners))


def test_grid_enlarges_small_pictures():
    small = pictures(1, 32, 3)
    page = grid("", [Row("", [Cell(small[0])])])
    assert page.width == 160 + 2 * show._GAP
    inside = np.asarray(page)[:, show._GAP : -show._GAP]
    enlarged = np.repeat(np.repeat(small[0], 5, axis=0), 5, axis=1)
    assert any((inside[top : top + 160] == enlarged).all() for top in range(len(inside) - 159))


def test_captions_fit(monkeypatch):
    """Every line of text ends inside of its column and of its strip, and no two share a place."""
    drawn = []
    write = show._write

    def record(draw, at, lines, height, ink):
        drawn.extend((draw, at[0], at[1] + show._lines_px(i, height), line, height) for i, line in enumerate(lines))
        write(draw, at, lines, height, ink)

    monkeypatch.setattr(show, "_write", record)
    rows = explain(IPMix(pool=POOL), BATCH, NAMES, SEED)
    grid(f"{IPMix(pool=POOL)} on a folder with a long name", rows, [f"column {i}" for i in range(COUNT)])
    assert len({(id(draw), x, y) for draw, x, y, _, _ in drawn}) == len(drawn) > 60
    wide = 7 * SIZE  # shown at seven times their size
    for draw, x, y, line, height in drawn:
        page_wide, page_high = draw.im.size
        room = page_wide - x if height == show._TITLE else wide + show._GAP
        assert show._font(height).getlength(line) <= room and y + height < page_high


def test_wrap():
    font = ImageFont.load_default(12)
    lines = show._wrap("one two three four five\nsix averyveryverylongword", 60, font)
    assert " ".join(lines) == "one two three four five six averyveryverylongword"
    assert all(font.getlength(line) <= 60 for line in lines[:-1]) and lines[-1] == "averyveryverylongword"
    assert len(lines) > 3

"""Pictures of mixing: what a method drew for a few samples, taken apart, and grids of pictures with captions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from . import words
from .images import center_box, decode
from .kernels import U8, Program, Source, backend_for
from .mixing import apply
from .pools import ENDINGS
from .rng import Key, Stream, shuffle
from .types import Batch, Method, Params

__all__ = ["Cell", "Row", "batch_of", "explain", "grid", "pick"]

_GAP, _TEXT, _TITLE = 8, 12, 16  # px: between cells, height of captions, height of the title
_SMALLEST = 160  # px: smaller pictures are shown in whole multiples of their size
_INK, _PALE, _PAPER = (20, 20, 20), (110, 110, 110), (255, 255, 255)

Font = ImageFont.FreeTypeFont
Color = tuple[int, int, int]


@dataclass(frozen=True)
class Cell:
    """A picture (H, W, 3) uint8 and the text below it, line by line."""

    picture: U8
    caption: str = ""


@dataclass(frozen=True)
class Row:
    """Cells side by side, None for an empty place, and the name to their left."""

    name: str
    cells: Sequence[Cell | None]


def pick(path: str | Path, count: int, seed: int) -> list[Path]:
    """`count` picture files: `path` itself, or some of a folder, of all its depths, in a random order keyed by `seed`.

    Few files come over and over.  Raises FileNotFoundError for a missing path, ValueError for a bad number or a folder
    without pictures.
    """
    if count < 1:
        raise ValueError(f"count is {count}, expected at least 1 picture")
    files = _files(Path(path))
    places = shuffle(np.arange(len(files)), len(files), Key(seed), Stream.SHUFFLE)
    return [files[places[number % len(files)]] for number in range(count)]


def batch_of(files: Sequence[Path], size: int) -> Batch:
    """The files' centres, cut to `size` px, each labelled with its row.

    Raises ValueError for an unreadable picture or a size below 1.
    """
    if size < 1:
        raise ValueError(f"size is {size}, expected at least 1 pixel")
    pictures = [_read(file) for file in files]
    boxes = np.array([center_box(len(picture), len(picture[0]), (size, size)) for picture in pictures])
    images = np.empty((len(files), size, size, 3), np.uint8)
    backend_for(images).crop_resize(pictures, boxes, np.zeros(len(files), np.bool_), images, 0, len(files))
    return Batch.of(images, np.arange(len(files)))


def explain(method: Method, batch: Batch, names: Sequence[str], seed: int) -> list[Row]:
    """Rows of a grid, a column a sample: the originals, the layers that its program uses, and the mixed pictures.

    Raises ValueError if a single picture would have to be mixed with another one.
    """
    params = method.draw(Key(seed), batch)
    program, pool = params.program, getattr(method, "pool", None)
    if len(set(names)) == 1 and (program.layers["source"] == Source.MATE).any():
        raise ValueError(
            f"{type(method).__name__} mixes a picture with another one, and there is only {names[0]}: pass a folder"
        )
    pictures = pool.images if pool is not None else np.empty((0, *batch.images.shape[1:]), np.uint8)
    mixed = apply(batch, params, pool, np.empty_like(batch.images)).images
    samples = range(len(names))
    used = [words.used_layers(program, i) for i in samples]
    layers = [[_cell(batch.images, pictures, program, i, layer) for layer in used[i]] for i in samples]
    rows = [Row("original", [Cell(batch.images[i], f"{i + 1}: {names[i]}") for i in samples])]
    for number in range(max(map(len, used))):
        cells = [layers[i][number] if number < len(used[i]) else None for i in samples]
        rows.append(Row(f"layer {_letter(number)}", cells))
    rows.append(Row("result", [Cell(mixed[i], _recipe(params, i, used[i], batch.images.shape[1:3])) for i in samples]))
    return rows


def grid(title: str, rows: Sequence[Row], columns: Sequence[str] = ()) -> Image.Image:
    """Draw rows of equally large pictures under a title and, if given, names of the columns."""
    side = min(next(cell for row in rows for cell in row.cells if cell).picture.shape[:2])
    scale = -(-_SMALLEST // side) if side < _SMALLEST else 1
    margin = _GAP + max(math.ceil(_font(_TEXT).getlength(row.name)) + _GAP if row.name else 0 for row in rows)
    strips = [_strip(row, margin, scale) for row in rows]
    strips.insert(0, _heading(title, columns, margin, strips[0].width))
    page = Image.new("RGB", (strips[0].width, sum(strip.height for strip in strips) + _GAP), _PAPER)
    top = 0
    for strip in strips:
        page.paste(strip, (0, top))
        top += strip.height
    return page


def _heading(title: str, columns: Sequence[str], margin: int, width: int) -> Image.Image:
    lines = _wrap(title, width - 2 * _GAP, _font(_TITLE))
    below = 2 * _GAP + _lines_px(len(lines), _TITLE)
    strip = Image.new("RGB", (width, below + (_lines_px(1, _TEXT) if columns else 0)), _PAPER)
    draw = ImageDraw.Draw(strip)
    _write(draw, (_GAP, _GAP), lines, _TITLE, _INK)
    for number, name in enumerate(columns):
        _write(draw, (margin + number * (width - margin) // len(columns), below), [name], _TEXT, _INK)
    return strip


def _strip(row: Row, margin: int, scale: int) -> Image.Image:
    """A row: its name in the margin, its pictures side by side, and their captions below them."""
    high, wide = (side * scale for side in next(cell for cell in row.cells if cell).picture.shape[:2])
    texts = [_wrap(cell.caption, wide, _font(_TEXT)) if cell and cell.caption else [] for cell in row.cells]
    longest = max(map(len, texts))
    below = high + _GAP + (_GAP + _lines_px(longest, _TEXT) if longest else 0)
    strip = Image.new("RGB", (margin + len(row.cells) * (wide + _GAP), below), _PAPER)
    draw = ImageDraw.Draw(strip)
    _write(draw, (_GAP, high // 2 - _TEXT), [row.name], _TEXT, _INK)
    for number, (cell, lines) in enumerate(zip(row.cells, texts, strict=True)):
        left = margin + number * (wide + _GAP)
        if cell:
            strip.paste(Image.fromarray(cell.picture).resize((wide, high), Image.Resampling.NEAREST), (left, 0))
        _write(draw, (left, high + 2), lines, _TEXT, _PALE)
    return strip


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise FileNotFoundError(f"no picture or folder {path}")
    if path.is_file():
        return [path]
    files = sorted(file for file in path.rglob("[!.]*") if file.suffix.lower() in ENDINGS and file.is_file())
    if not files:
        raise ValueError(f"no pictures in {path}: expected files that end in {' '.join(ENDINGS)}")
    return files


def _read(file: Path) -> U8:
    try:
        return decode(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"cannot read picture {file}: {error}") from error


def _letter(number: int) -> str:
    return chr(ord("A") + number)


def _cell(images: U8, pool: U8, program: Program, row: int, number: int) -> Cell:
    """A layer as its program sees it: the source through its ops."""
    layer, (height, width) = program.layers[row, number], images.shape[1:3]
    source, index, top, left = (int(layer[name]) for name in ("source", "index", "top", "left"))
    if source == Source.POOL:
        picture = pool[index, top : top + height, left : left + width]
    else:
        picture = images[index if source == Source.MATE else row]
    for op in words.chain(program, row, number):
        before, picture = np.ascontiguousarray(picture)[None], np.empty_like(images[0])
        backend_for(before).op(before, op[None], picture[None], 0, 1)
    return Cell(picture, words.tell_layer(program, row, number, _name))


def _name(index: int) -> str:
    return f"picture {index + 1}"


def _recipe(params: Params, row: int, used: Sequence[int], size: tuple[int, int]) -> str:
    """The steps of a sample in words, a line each, and its label."""
    names = {layer: _letter(number) for number, layer in enumerate(used)}
    lines = words.tell_steps(params.program, row, size, lambda layer: names.get(layer, "original"))
    own = float(params.weight[row])
    if own < 1:
        lines.append(f"label: {own:.1%} own, {1 - own:.1%} of {_name(params.partner[row])}")
    return "\n".join(lines or ["unchanged"])


@cache
def _font(height: int) -> Font:
    font = ImageFont.load_default(height)
    assert isinstance(font, ImageFont.FreeTypeFont)  # so it is when a height is asked for
    return font


def _lines_px(count: int, height: int) -> int:
    return count * (height + 3)


def _wrap(text: str, width: int, font: Font) -> list[str]:
    """Break lines between words so that each is at most `width` px wide, a longer word excepted."""
    lines = []
    for paragraph in text.split("\n"):
        words = paragraph.split(" ")
        line = words[0]
        for word in words[1:]:
            if font.getlength(f"{line} {word}") > width:
                lines.append(line)
                line = word
            else:
                line = f"{line} {word}"
        lines.append(line)
    return lines


def _write(draw: ImageDraw.ImageDraw, at: tuple[int, int], lines: Sequence[str], height: int, ink: Color) -> None:
    for number, line in enumerate(lines):
        draw.text((at[0], at[1] + _lines_px(number, height)), line, fill=ink, font=_font(height))

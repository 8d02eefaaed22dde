"""JPEG files for the tests of their decoder: edited, put together by hand, odd and damaged."""

import io
import struct

import simplejpeg
from PIL import Image
from sklearn.datasets import load_sample_image

CHINA = load_sample_image("china.jpg")
SOI, EOI, DHT, DQT, DRI, SOF, SOS, APP0, ADOBE = b"\xff\xd8", b"\xff\xd9", 0xC4, 0xDB, 0xDD, 0xC0, 0xDA, 0xE0, 0xEE


def encode(pixels, kind="4:2:0", mode="RGB", **options):
    file, image = io.BytesIO(), Image.fromarray(pixels)
    if kind == "grey":
        kind, mode = "4:4:4", "L"
    image.convert(mode).save(file, "JPEG", subsampling=kind, **options)
    return file.getvalue()


def segment(marker, body):
    return struct.pack(">BBH", 255, marker, len(body) + 2) + body


def split(data):
    """The segments before the scan, as (marker, body), and the rest."""
    at, found = 2, []
    while data[at + 1] != SOS:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        found.append((data[at + 1], data[at + 4 : end]))
        at = end
    return found, data[at:]


def join(segments, rest):
    return SOI + b"".join(segment(marker, body) for marker, body in segments) + rest


def edited(data, marker, edit, number=0):
    """The file with the body of its segment `number` of this kind changed."""
    segments, rest = split(data)
    at = [i for i, (kind, _) in enumerate(segments) if kind == marker][number]
    segments[at] = (marker, edit(segments[at][1]))
    return join(segments, rest)


def without(data, *markers):
    segments, rest = split(data)
    return join([one for one in segments if one[0] not in markers], rest)


def ahead(data, *segments):
    """The file with more segments at its beginning."""
    return SOI + b"".join(segment(*one) for one in segments) + data[2:]


def by_hand(height, width, blocks, steps, length=9):
    """A grey JPEG of blocks of (symbol, value); each symbol is its own code, of `length` bits."""
    coded = [f"{symbol:0{length}b}" + (f"{value:0{symbol & 15}b}" if symbol & 15 else "") for symbol, value in blocks]
    bits = "".join(coded)
    bits += "1" * (-len(bits) % 8)
    pixels = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    lengths = [[count * (k == length) for k in range(1, 17)] for count in (16, 255)]
    tables = [bytes([0, *lengths[0], *range(16)]), bytes([16, *lengths[1], *range(255)])]
    frame = struct.pack(">BHHB", 8, height, width, 1) + b"\1\x11\0"
    segments = [(DQT, b"\0" + steps), (DHT, tables[0]), (DHT, tables[1]), (SOF, frame)]
    return join(segments, segment(SOS, b"\1\1\0\0\x3f\0") + pixels + EOI)


def flat(height, width, differences, step, length=9):
    """Blocks of one level each, from (size, value) of the DC differences."""
    return by_hand(height, width, [one for d in differences for one in (d, (0, 0))], bytes([step] * 64), length)


def wild(rng):
    """Random steps, runs and values, many of them far out of range."""
    height, width = rng.integers(6, 33, 2).tolist()
    largest, share, symbols = int(rng.integers(1, 15)), rng.random(), []
    for _ in range(-(-height // 8) * -(-width // 8)):
        symbols.append(int(rng.integers(largest + 1)))
        k = 0
        while k < 63 and rng.random() < share:
            run = int(rng.integers(min(16, 63 - k)))
            symbols.append(16 * run + int(rng.integers(run < 15, min(largest, 14) + 1)))
            k += run + 1
        symbols += [16 * int(rng.integers(15))] * (k < 63)  # no size and no run of 16: the end
    steps = bytes(rng.integers(1, int(rng.choice([2, 9, 256])), 64).tolist())
    values = [(symbol, int(rng.integers(1 << (symbol & 15)))) for symbol in symbols]
    return by_hand(height, width, values, steps, int(rng.integers(9, 17)))


SMALL = encode(CHINA[100:124, 200:229], "4:2:0", quality=80)
FULL = encode(CHINA[100:124, 200:229], "4:4:4", quality=80)
GREY = encode(CHINA[100:124, 200:229], "grey", quality=80)


def three_scans(data):
    """A grey file's luma, thrice, each time by itself."""
    segments, rest = split(data)
    frame = dict(segments)[SOF][:5] + b"\3" + b"".join(bytes([c, 0x11, 0]) for c in (1, 2, 3))
    scans = [segment(SOS, bytes([1, c, 0, 0, 63, 0])) + rest[10:-2] for c in (1, 2, 3)]
    return join([(kind, frame if kind == SOF else body) for kind, body in segments], b"".join(scans) + EOI)


def named(data, names):
    """The file with these names of its colours, and without its JFIF segment."""
    data = bytearray(without(data, APP0))
    frame, scan = data.index(b"\xff\xc0") + 10, data.index(b"\xff\xda") + 5
    data[frame : frame + 9 : 3] = data[scan : scan + 6 : 2] = names
    return bytes(data)


def adobe(transform, length=12):
    return ADOBE, (b"Adobe\0\x64\0\0\0\0" + bytes([transform]))[:length]


JFIF = b"JFIF\0\1\1\0\0\1\0\1\0\0"
PIXELS = CHINA[100:140, 200:250]
NOT_PLAIN = {
    "progressive": encode(PIXELS, progressive=True),
    "progressive grey": encode(PIXELS, "grey", progressive=True),
    "CMYK": encode(PIXELS, "4:4:4", "CMYK"),
    "RGB": encode(PIXELS, "4:4:4", keep_rgb=True),
    "RGB by name": named(FULL, b"RGB"),
    "RGB by name, short JFIF": ahead(named(FULL, b"RGB"), (APP0, JFIF[:13])),
    "RGB by the last Adobe segment": ahead(named(FULL, b"\1\2\3"), adobe(1), adobe(0)),
    "other names": named(FULL, b"\0\1\2"),
    "restarts": encode(PIXELS, restart_marker_blocks=2),
    "restarts of grey": encode(PIXELS, "grey", restart_marker_blocks=1),
    "4:4:0": simplejpeg.encode_jpeg(PIXELS, colorsubsampling="440"),
    "4:1:1": simplejpeg.encode_jpeg(PIXELS, colorsubsampling="411"),
    "16-bit steps": edited(SMALL, DQT, lambda b: bytes([b[0] + 16]) + b"".join(bytes([0, step]) for step in b[1:])),
    "12 bits": edited(SMALL, SOF, lambda b: b"\x0c" + b[1:]),
    "arithmetic": SMALL.replace(b"\xff\xc0", b"\xff\xc9"),
    "lossless": SMALL.replace(b"\xff\xc0", b"\xff\xc3"),
    "three scans": three_scans(GREY),
    "no Huffman tables": without(SMALL, DHT),
    "narrow": encode(CHINA[:9, :4]),
}

PLAIN = {
    "extended": SMALL.replace(b"\xff\xc0", b"\xff\xc1"),
    "YCC by Adobe": ahead(named(FULL, b"RGB"), adobe(1)),
    "YCC by the last Adobe segment": ahead(named(FULL, b"RGB"), adobe(0), adobe(1), adobe(0, 11)),
    "YCC by JFIF, whatever Adobe says": ahead(named(FULL, b"RGB"), (APP0, JFIF), adobe(0)),
    "YCC by name": named(FULL, b"\1\2\3"),
    "one name": ahead(named(FULL, b"\1\1\1"), (APP0, JFIF)),
    "grey, sampled by two": edited(GREY, SOF, lambda b: b[:7] + b"\x22" + b[8:]),
    "no restarts": ahead(SMALL, (DRI, b"\0\0")),
    "steps anew": ahead(SMALL, (DQT, b"\0" + bytes(range(1, 65)))),
    "steps of 0": edited(SMALL, DQT, lambda b: b[:1] + bytes(64)),
    "comments": ahead(SMALL, (0xFE, b"\xff\xda"), (0xE5, b"")),
    "fill bytes": SMALL[:2] + b"\xff\xff" + SMALL[2:-2] + b"\xff\xff\xff\xd9",
    "more after the end": SMALL + SMALL,
}


def damaged():
    """Files that only a strict reader tells from sound ones, and sound ones among them."""
    for data in (SMALL, GREY):
        for at in range(2, data.index(b"\xff\xda") + 14):  # each byte of the header
            yield from (data[:at] + bytes([value]) + data[at + 1 :] for value in (0, 1, 3, 16, 0x22, 255))
            yield from (data[:at] + more + data[at + (not more) :] for more in (b"", b"\0"))
        scan = data.index(b"\xff\xda")
        for length in (0, 1, 5, 11, 13, 300, 340, 500, 5000, 65535):  # of the scan's header, beyond the end, too
            yield from (
                data[: scan + 2] + length.to_bytes(2, "big") + data[scan + 4 : n] for n in (scan + 14, len(data))
            )
        yield edited(data, SOF, lambda b: b + b"\0\0")
        yield from (
            edited(data, table, lambda b, n=n: b + bytes(n), 1) for table in (DQT, DHT)[data is GREY :] for n in (1, 16)
        )
        yield from (data[:n] for n in range(2, len(data)))
        yield from (data[:-2] + b"\x55" * n + EOI for n in range(12))
    junk = [b"abc", b"\xff\0", SOI, SOI + b"\0\2", EOI + b"\0\2", b"\xff\xe5\0\0", b"\xff\xfe\0\1", b"\xff\xd3"]
    junk += [b"\xff" + bytes([table]) + length for table in (DQT, DHT, DRI) for length in (b"\0\0", b"\0\2", b"\0\3\0")]
    junk += [segment(marker, b"ab") for marker in (2, 0xB0, 0xC8, 0xCC, 0xDC, 0xDE, 0xDF, 0xF0, 0xFD)]
    frame, scan = SMALL.index(b"\xff\xc0"), SMALL.index(b"\xff\xda")
    yield from (SMALL[:at] + more + SMALL[at:] for more in junk for at in (2, frame, scan))
    tables = b"".join(body for kind, body in split(SMALL)[0] if kind == DHT)
    yield from (ahead(without(SMALL, DHT), (DHT, tables[:n]), (DHT, tables[n:])) for n in (29, 100, 208))
    yield ahead(without(SMALL, DQT), (DQT, b"\0" + b"\7" * 60), (DQT, b"\7" * 4 + b"\1" + b"\7" * 64))
    full = bytes([0, 1, 5, 1, 1, 1, 1, 1, 2] + [0] * 7)  # one more than there may be: its code is all ones
    yield edited(SMALL, DHT, lambda b: b[:1] + full + b[17:] + b"\x0c")
    for counts in ([2], [0, 4], [0, 1, 5, 1, 1, 1, 1, 1, 2], [0, 1, 5, 1, 1, 1, 1, 1, 1, 1, 2]):
        yield edited(SMALL, DHT, lambda b, n=counts: b[:1] + bytes(n + [0] * (16 - len(n))) + b[17:])
    ends = [b"\xff", b"\xff\xff", b"abc\xff\xd9", b"\xff\xd0\xff\xd9", b"\xff\0\xff\xd9", b"\xff\xff\0\xff\xd9"]
    ends += [segment(0xFE, b"x"), segment(0xFE, b"x") + EOI, SOI + EOI, segment(DRI, b"\0\1") + EOI, SMALL[scan:]]
    yield from (SMALL[:-2] + end for end in ends)

"""Any map-style dataset: the kinds of pictures and labels it may give, and the refusals."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset, TensorDataset

from fastmix.datasets import as_label, open_source
from fastmix.images import decode

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 7, 3), np.uint8)


class Pairs(Dataset):
    """A map-style dataset of given samples."""

    def __init__(self, *samples):
        self.samples_ = samples

    def __len__(self):
        return len(self.samples_)

    def __getitem__(self, index):
        return self.samples_[index]


class Batched(Pairs):
    """The same with torch's bulk method, which counts its calls."""

    calls = 0

    def __getitems__(self, indices):
        self.calls += 1
        return [self.samples_[i] for i in indices]


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


PICTURES = {
    "pil": Image.fromarray(PIXELS[0]),
    "hwc array": PIXELS[0],
    "strided array": PIXELS[0][::-1][::-1],
    "chw tensor": torch.from_numpy(PIXELS[0]).permute(2, 0, 1),
    "bytes": png(PIXELS[0]),
    "bytearray": bytearray(png(PIXELS[0])),
    "bytes as a tensor": torch.frombuffer(bytearray(png(PIXELS[0])), dtype=torch.uint8),
    "bytes as an array": np.frombuffer(png(PIXELS[0]), np.uint8),
}
GREYS = {
    "hw array": PIXELS[0, ..., 0],
    "hw1 array": PIXELS[0, ..., :1],
    "hw tensor": torch.from_numpy(PIXELS[0, ..., 0]),
    "1hw tensor": torch.from_numpy(PIXELS[0, ..., 0])[None],
    "pil": Image.fromarray(PIXELS[0, ..., 0]),
    "16-bit pil": Image.fromarray(PIXELS[0, ..., 0].astype(np.uint16) * 256 + 77),
}


@pytest.mark.parametrize("name", PICTURES)
def test_kinds_of_pictures(name):
    made = open_source(Pairs((PICTURES[name], 1))).read(0).data
    assert isinstance(made, bytes) == ("byte" in name)
    np.testing.assert_array_equal(decode(made) if isinstance(made, bytes) else made, PIXELS[0])
    assert isinstance(made, bytes) or made.flags.c_contiguous


@pytest.mark.parametrize("name", GREYS)
def test_kinds_of_grey_pictures(name):
    made = open_source(Pairs((GREYS[name], 1))).read(0).data
    np.testing.assert_array_equal(made, np.repeat(PIXELS[0, ..., :1], 3, axis=2))


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (3, 3),
        (True, 1),
        (np.int32(3), 3),
        (np.array(3), 3),
        (torch.tensor(3), 3),
        ([0.25, 0.75], [0.25, 0.75]),
        (np.array([0, 1, 1]), [0, 1, 1]),
        (torch.tensor([0.5, 0.5], requires_grad=True), [0.5, 0.5]),
    ],
)
def test_kinds_of_labels(label, expected):
    made = open_source(Pairs((PIXELS[0], label))).read(0).label
    assert isinstance(made, int) or made.dtype == np.float32
    assert isinstance(made, int) == isinstance(expected, int)
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("label", [0.5, "cat", None, [], np.zeros((2, 2)), torch.tensor(0.5)])
def test_bad_labels(label):
    with pytest.raises(TypeError, match=r"the label is .*, expected an integer or a \(C,\) vector"):
        as_label(label)


@pytest.mark.parametrize(
    ("picture", "kind", "words"),
    [
        (torch.zeros(3, 4, 4), TypeError, "sample 0 of the dataset: the picture is a torch.float32|float32 Tensor"),
        (torch.zeros(3, 4, 4, dtype=torch.bfloat16), TypeError, "bfloat16 Tensor: fastmix mixes uint8 before"),
        (np.zeros((4, 4, 3)), TypeError, "float64 ndarray: fastmix mixes uint8 before normalising"),
        (np.zeros((4, 4, 3), np.int64), TypeError, r"int64 ndarray, expected uint8 in 0\.\.255"),
        ("cat.jpg", TypeError, "the picture is a str, expected a PIL image, an HWC uint8 array"),
        (np.zeros((3, 4, 4), np.uint8), ValueError, r"\(3, 4, 4\), expected HWC with 1 or 3 channels"),
        (torch.zeros(4, 4, 3, dtype=torch.uint8), ValueError, r"\(4, 4, 3\), expected CHW with 1 or 3 channels"),
        (np.zeros((0, 4, 3), np.uint8), ValueError, r"\(0, 4, 3\)"),
        (Image.fromarray(np.zeros((4, 4), np.float32)), ValueError, "sample 0 .* float values"),
    ],
)
def test_bad_pictures(picture, kind, words):
    with pytest.raises(kind, match=words):
        open_source(Pairs((picture, 0))).read(0)


@pytest.mark.parametrize("sample", [{"image": PIXELS[0], "label": 1}, PIXELS[0], (PIXELS[0],), (PIXELS[0], 1, 2)])
def test_samples_that_are_no_pairs(sample):
    with pytest.raises(TypeError, match=r"sample 0 of the dataset is a \w+.*, expected a pair \(picture, label\)"):
        open_source(Pairs(sample)).read(0)


def test_bulk_method_is_used():
    dataset = Batched(*((pixels, i) for i, pixels in enumerate(PIXELS)))
    items = open_source(dataset).read_many(np.array([4, 1]))
    assert [item.label for item in items] == [4, 1] and dataset.calls == 1
    np.testing.assert_array_equal(items[0].data, PIXELS[4])
    items = open_source(Subset(dataset, [5, 3, 0])).read_many([1, 2])
    assert [item.label for item in items] == [3, 0] and dataset.calls == 2
    assert open_source(Pairs((PIXELS[0], 0))).read_many([0]) is None
    dataset.__class__ = type("Short", (Batched,), {"__getitems__": lambda self, indices: []})  # noqa: ARG005
    with pytest.raises(ValueError, match="gave 0 samples for 2 indices"):
        open_source(dataset).read_many([0, 1])


def test_plain_sequences_and_tensor_datasets():
    assert open_source([(PIXELS[0], 3)]).read(0).label == 3
    pair = open_source(((PIXELS[0], 3), (PIXELS[1], 4)))
    assert len(pair) == 2 and pair.read(1).label == 4
    tensors = TensorDataset(torch.from_numpy(PIXELS).permute(0, 3, 1, 2), torch.arange(6))
    np.testing.assert_array_equal(open_source(tensors).read(2).data, PIXELS[2])


def test_inputs_are_not_changed():
    image = Image.fromarray(PIXELS[0]).quantize(8)
    image.info["transparency"] = bytes(8)
    before = image.tobytes(), dict(image.info), image.mode
    open_source(Pairs((image, 0))).read(0)
    assert (image.tobytes(), dict(image.info), image.mode) == before

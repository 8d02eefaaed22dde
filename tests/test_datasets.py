"""Everything that users call a dataset, read through one protocol."""

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, Subset
from torchvision.datasets import CIFAR10, FakeData, ImageFolder
from torchvision.transforms import PILToTensor, ToTensor

from fastmix import DataLoader, datasets
from fastmix.datasets import IMAGE_EXTENSIONS, ArrayDataset, Item, open_source
from fastmix.images import decode

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 7, 3), np.uint8)


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def folder(tmp_path):
    """Three classes, names beyond ASCII, files below subfolders, and what must be passed over."""
    names = ["b/2.png", "b/10.PNG", "b/deep/er/1.png", "a/naïve_写真 🐈.jpg", "a/x.png", "c/z.webp"]
    for name, pixels in zip(names, PIXELS, strict=True):
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    (tmp_path / "set" / "b" / "notes.txt").write_text("no picture")
    (tmp_path / "set" / "stray.png").write_bytes(b"not in a class")
    return tmp_path / "set"


def read_all(source):
    return [source.read(i) for i in range(len(source))]


# folders


@pytest.mark.parametrize("kind", [str, lambda path: path, lambda path: f"{path}/", ImageFolder])
def test_folder_is_torchvisions_image_folder(folder, kind):
    source, theirs = open_source(kind(folder)), ImageFolder(folder)
    assert source.classes == theirs.classes == ["a", "b", "c"]
    assert [(item.path, item.label) for item in read_all(source)] == [(str(p), label) for p, label in theirs.samples]
    assert [source.path(i) for i in range(6)] == [path for path, _ in theirs.samples]
    for i, item in enumerate(read_all(source)):
        assert isinstance(item.data, bytes)
        np.testing.assert_array_equal(decode(item.data), np.asarray(theirs[i][0]))
    assert source.read_many([0]) is None and source.read_block(np.array([0])) is None


def test_folder_index_is_two_buffers(folder):
    source = open_source(folder)
    assert isinstance(source.paths.text, bytes) and source.paths.ends.dtype == np.int64
    with pytest.raises(IndexError):
        source.read(6)


def test_extensions_are_torchvisions():
    from torchvision.datasets.folder import IMG_EXTENSIONS

    assert IMAGE_EXTENSIONS == IMG_EXTENSIONS


def test_folder_with_links(folder, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    Image.fromarray(PIXELS[0]).save(outside / "o.png")
    (folder / "d").symlink_to(outside)
    (folder / "a" / "again").symlink_to(outside)
    (folder / "b" / "deep" / "back").symlink_to(folder / "b")  # a loop
    source = open_source(folder)
    assert source.classes == ["a", "b", "c", "d"]
    assert [os.path.relpath(item.path, folder) for item in read_all(source) if item.label in (0, 3)] == [
        "a/naïve_写真 🐈.jpg",
        "a/x.png",
        "a/again/o.png",
        "d/o.png",
    ]
    np.testing.assert_array_equal(np.bincount([item.label for item in read_all(source)]), [3, 3, 1, 1])


def test_file_names_that_are_no_text(tmp_path):
    (tmp_path / "a").mkdir()
    name = os.fsencode(tmp_path / "a") + b"/\xff\xfe\n.png"
    Path(os.fsdecode(name)).write_bytes(png(PIXELS[0]))
    item = open_source(tmp_path).read(0)
    assert os.fsencode(item.path) == name
    np.testing.assert_array_equal(decode(item.data), PIXELS[0])


def test_bad_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing' does not exist"):
        open_source(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match="has no subfolders, expected one a class"):
        open_source(tmp_path)
    for name in ("a/1.png", "b/1.txt", "c/d/1.gif"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"class folders without pictures.*: b, c; add.*\.jpg"):
        open_source(tmp_path)
    with pytest.raises(NotADirectoryError, match=r"1\.png' is a file, expected a folder"):
        open_source(tmp_path / "a" / "1.png")


def test_unreadable_folder_is_named(folder, monkeypatch):
    scandir = os.scandir

    def guarded(path):
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)  # the tests may run as root, who may read everything
    with pytest.raises(PermissionError, match=r"b/deep' in the dataset folder .* cannot be listed: allow reading"):
        open_source(folder)


def test_missing_file_raises_os_error_that_names_it(folder):
    source = open_source(folder)
    (folder / "a" / "x.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"x\.png"):
        source.read(1)


# torchvision datasets


def test_target_transform_is_honoured(folder):
    source = open_source(ImageFolder(folder, target_transform=lambda label: 10 - label))
    assert [item.label for item in read_all(source)] == [10, 10, 9, 9, 9, 8]
    soft = open_source(ImageFolder(folder, target_transform=lambda label: torch.eye(3)[label]))
    np.testing.assert_array_equal(soft.read(5).label, [0, 0, 1])


def test_image_folder_with_a_transform_is_asked_for_samples(folder):
    theirs = ImageFolder(folder, transform=PILToTensor())
    item = open_source(theirs).read(1)
    assert item.path is None and item.label == 0
    np.testing.assert_array_equal(item.data, theirs[1][0].permute(1, 2, 0).numpy())
    with pytest.raises(TypeError, match=r"sample 1 .* float32 Tensor: .*before normalising, so remove ToTensor\(\)"):
        open_source(ImageFolder(folder, transform=ToTensor())).read(1)


def test_own_loader_and_own_getitem_are_not_bypassed(folder):
    black = ImageFolder(folder, loader=lambda path: Image.new("RGB", (2, 2)))  # noqa: ARG005
    assert not np.any(open_source(black).read(0).data)

    class Relabelled(ImageFolder):
        def __getitem__(self, index):
            return super().__getitem__(index)[0], 7

    assert open_source(Relabelled(folder)).read(0).label == 7


def cifar(transform=None, target_transform=None):
    made = CIFAR10.__new__(CIFAR10)  # its constructor wants the files
    made.data, made.targets, made.classes = PIXELS, [3, 1, 4, 1, 5, 9], ["airplane", "automobile"]
    made.transform, made.target_transform = transform, target_transform
    return made


def test_cifar_is_read_as_a_block():
    source = open_source(cifar())
    images, labels = source.read_block(np.array([4, 0, 0]))
    np.testing.assert_array_equal(images, PIXELS[[4, 0, 0]])
    np.testing.assert_array_equal(labels, [5, 3, 3])
    assert source.classes == ["airplane", "automobile"] and len(source) == 6
    for bad in ([6], [0, -1]):
        with pytest.raises(IndexError, match=r"expected 0\.\.5"):
            source.read_block(np.array(bad))


def test_cifar_with_transforms_is_asked_for_samples():
    source = open_source(cifar(target_transform=lambda label: label + 100))
    assert source.read_block(np.array([0])) is None
    item = source.read(2)
    np.testing.assert_array_equal(item.data, PIXELS[2])
    assert item.label == 104
    with pytest.raises(TypeError, match="float32"):
        open_source(cifar(transform=ToTensor())).read(0)


def test_fake_data_of_pil_images():
    theirs = FakeData(3, (3, 8, 9), num_classes=4)
    source = open_source(theirs)
    for i, item in enumerate(read_all(source)):
        np.testing.assert_array_equal(item.data, np.asarray(theirs[i][0]))
        assert item.label == int(theirs[i][1])


def test_subset_keeps_the_fast_ways(folder):
    files = open_source(Subset(ImageFolder(folder), [5, 0]))
    assert [item.label for item in read_all(files)] == [2, 0] and files.path(0).endswith("z.webp")
    assert files.classes == ["a", "b", "c"] and len(files) == 2 and files.read_many([0]) is None
    images, labels = open_source(Subset(Subset(cifar(), [5, 4, 3]), [2, 0])).read_block(np.array([1, 0]))
    np.testing.assert_array_equal(images, PIXELS[[5, 3]])
    np.testing.assert_array_equal(labels, [9, 1])


# arrays


@pytest.mark.parametrize("labels", [[0, 1, 2, 3, 4, 5], np.eye(6, dtype=np.float32), np.eye(6, dtype=np.int64)])
def test_arrays_are_read_as_a_block(labels):
    for source in (open_source((PIXELS, labels)), open_source(ArrayDataset(PIXELS, labels))):
        images, made = source.read_block(np.array([5, 2]))
        np.testing.assert_array_equal(images, PIXELS[[5, 2]])
        np.testing.assert_array_equal(made, np.asarray(labels)[[5, 2]])
        np.testing.assert_array_equal(source.read(3).label, np.asarray(labels)[3])
        assert source.read_many([0]) is None and source.path(0) is None


def test_array_dataset_is_a_map_style_dataset():
    made = ArrayDataset(PIXELS, np.arange(6), ["a"] * 6)
    image, label = made[2]
    np.testing.assert_array_equal(image, PIXELS[2])
    assert label == 2 and len(made) == 6 and open_source(made) is made


class Squares:
    """A source of its own making: sample i is a grey square of level i."""

    classes = None

    def __len__(self):
        return 4

    def path(self, _index):
        return None

    def read(self, index):
        return Item(np.full((8, 8, 3), index, np.uint8), index)

    def read_many(self, _indices):
        return None

    def read_block(self, _indices):
        return None


def test_a_source_is_taken_as_it_is():
    source = Squares()
    assert open_source(source) is source
    ((images, labels),) = DataLoader(source, 4, size=8, output="uint8")
    np.testing.assert_array_equal(images[:, 0, 0, 0], labels)
    np.testing.assert_array_equal(labels, range(4))


def test_memory_mapped_images_are_not_copied(tmp_path):
    np.save(tmp_path / "images.npy", PIXELS)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    assert np.shares_memory(ArrayDataset(mapped, np.arange(6)).images, mapped)


def test_bad_arrays():
    with pytest.raises(TypeError, match="images are float32, expected uint8"):
        open_source((PIXELS.astype(np.float32), np.arange(6)))
    with pytest.raises(ValueError, match=r"\(6, 5, 7\), expected \(N, H, W, 3\)"):
        open_source((PIXELS[..., 0], np.arange(6)))
    with pytest.raises(ValueError, match=r"labels have shape \(5,\) for 6 ids"):
        ArrayDataset(PIXELS, np.arange(5))


class Stream(IterableDataset):
    """Cannot be asked for a sample by its number."""

    def __len__(self):
        return 1

    def __iter__(self):
        return iter([(PIXELS[0], 0)])


@pytest.mark.parametrize("dataset", [None, 5, {0: (PIXELS[0], 0)}, iter([]), Stream()])
def test_what_is_no_dataset(dataset):
    with pytest.raises(TypeError, match=r"dataset is a \w+, expected a folder with one subfolder a class"):
        open_source(dataset)


def test_torch_is_not_imported():
    code = "import sys, numpy as np; from fastmix.datasets import open_source\n"
    code += "assert open_source([(np.zeros((2, 2, 3), np.uint8), 1)]).read(0).label == 1 and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(datasets.__file__).parents[1], timeout=60)

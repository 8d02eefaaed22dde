"""The label check where something is wrong: classifiers of all kinds, changed data, and folders without room."""

import argparse
import errno
import json
import shutil
import tempfile

import numpy as np
import pytest
from PIL import Image
from tinysd import tiny

from fastmix.manifest import read_manifest, write_rows
from fastmix.offline import judge as judges
from fastmix.offline import verdict
from fastmix.offline.agreement import add_arguments, run
from fastmix.offline.expansion import Expansion
from fastmix.offline.generator import Generator
from fastmix.offline.refine import expand

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def forward(self, images):
        return self.answer(images)


def mean(sharpness=1.0):
    return Net(lambda images: sharpness * images.mean((2, 3)))


def one_row():
    return Net(lambda images: images.mean((2, 3))[:1])


def divides():
    return Net(lambda images: 1 / 0)


def late():
    seen = []

    def answer(images):
        seen.append(len(images))
        return images.mean((2, 3))[: None if len(seen) < 2 else 1]

    return Net(answer)


def fails():
    raise RuntimeError("no such luck")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """data: three colours, six pictures each; out: a set that was made of them; net.py."""
    root = tmp_path_factory.mktemp("folder")
    (root / "net.py").write_text(NET)
    for label, name in enumerate(("a red", "b green", "c blue")):
        (root / "data" / name).mkdir(parents=True)
        for number in range(6):
            picture = np.zeros((24, 32, 3), np.uint8)
            picture[..., label] = 40 * (number + 1)
            Image.fromarray(picture).save(root / "data" / name / f"{number}.png")
    how = Expansion.da_fusion(multiplier=1, size=16, strengths=(1.0,), steps=1).with_plain_names()
    expand(root / "data", root / "out", how, Generator(tiny(), dtype="bfloat16"), quiet=True)
    return root


def check(folder, *more, make="mean", data="data", out="out"):
    parser = argparse.ArgumentParser()
    parser.add_argument("--quiet", action="store_true")
    add_arguments(parser)
    given = ["--classifier", f"{folder}/net.py:{make}", "--size", 16] if make else []
    words = [folder / data, folder / out, "--quiet", "--most-loss", 1, "--least", 0, *given, *more]
    run(parser.parse_args([*map(str, words)]))


@pytest.mark.parametrize(
    ("make", "more", "message"),
    [
        (
            "mean",
            ("--classifier-args", '{"zz": 7}'),
            r"net\.py:mean with --classifier-args \{\"zz\": 7\} fails: TypeError",
        ),
        ("fails", (), r"net\.py:fails with --classifier-args null fails: RuntimeError: no such luck \(.*net\.py:\d+\)"),
        ("one_row", (), "the classifier gives 1 rows for 2 pictures, expected one each"),
        ("late", (), r"the classifier gives 1 rows for \d+ pictures, expected one each"),
        ("divides", (), "the classifier cannot be run on 'cpu' at 16 px: ZeroDivisionError: division by zero"),
        ("mean", ("--size", 0), "size is 0, expected at least 1"),
        ("mean", ("--keep-if", "p>=2"), "keep-if is 'p>=2'"),
    ],
)
def test_classifiers_and_options_are_refused_in_one_line(folder, make, more, message):
    with pytest.raises(ValueError, match=message):
        check(folder, *more, make=make)


def test_a_layer_that_needs_arguments_is_no_classifier(folder):
    with pytest.raises(ValueError, match=r"--classifier torch\.nn:Linear with --classifier-args null fails: TypeError"):
        check(folder, "--classifier", "torch.nn:Linear", make="")


def test_a_folder_is_no_picture_to_write(folder, tmp_path, monkeypatch):
    (tmp_path / "sheet.png").mkdir()
    monkeypatch.setattr(verdict, "look", None)
    with pytest.raises(ValueError, match=r"cannot write .*sheet\.png: expected a file in a folder that exists"):
        check(folder, "-o", tmp_path / "sheet.png")


def test_changed_sources_are_another_set(folder, tmp_path):
    shutil.copytree(folder / "data", tmp_path / "data")
    check(folder, data=tmp_path / "data")
    Image.fromarray(np.full((24, 32, 3), 200, np.uint8)).save(tmp_path / "data" / "b green" / "3.png")
    with pytest.raises(
        ValueError, match=r"has other pictures under the same names: .* was made of another one, or of an"
    ):
        check(folder, data=tmp_path / "data")
    (tmp_path / "data" / "b green").rename(tmp_path / "data" / "b grün")
    with pytest.raises(
        ValueError, match=r"other classes \(missing: 'b green'; new: 'b grün'\): .* was made of another"
    ):
        check(folder, data=tmp_path / "data")


@pytest.mark.parametrize("given", [("mean", "--keep-if", "p>=0.1"), ("",)])
def test_folders_without_room_are_refused_before_the_work(folder, monkeypatch, given):
    class Full:
        def __init__(self, **_given):
            raise OSError(errno.EROFS, "Read-only file system")

    make, *more = given
    monkeypatch.setattr(tempfile, "TemporaryFile", Full)
    monkeypatch.setattr(judges, "train", None)
    monkeypatch.setattr(verdict, "look", None)
    with pytest.raises(OSError, match=r"cannot write .*out: Read-only file system; make room there, or let it be"):
        check(folder, *more, make=make)


def test_a_disk_that_fills_up_leaves_no_half_judge(folder, tmp_path, monkeypatch):
    shutil.copytree(folder / "out", tmp_path / "out")

    def full(path, data):
        with path.open("wb") as file:
            file.write(data[:9])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(OSError, match=r"cannot write .*judge\.pt: No space left on device"):
        check(folder, "--epochs", 1, "--size", 16, make="", out=tmp_path / "out")
    assert not list((tmp_path / "out").glob("*judge*"))


def test_a_baseline_is_made_in_the_precision_of_the_set(folder, monkeypatch, capsys):
    asked = []

    def generator(_options, dtype):
        asked.append(dtype)
        return Generator(tiny(), dtype=dtype)

    monkeypatch.setattr(verdict, "_generator", generator)
    check(folder, "--baseline", 18, "--model", tiny(), "--json")
    (each,) = json.loads(capsys.readouterr().out)["strengths"]
    assert asked == ["bfloat16"] and each["plain"]["n"] == 18


@pytest.mark.parametrize("missing", ["expansion", "saliency"])
def test_a_manifest_that_says_little_of_its_set(folder, tmp_path, missing, capsys):
    manifest = read_manifest(folder / "out")
    about = {name: value for name, value in manifest.about.items() if name not in (missing, "contents")}
    shutil.copytree(folder / "out", tmp_path / "out")
    write_rows(tmp_path / "out" / "manifest.parquet", manifest.rows, about)
    if missing == "expansion":
        with pytest.raises(ValueError, match="the settings differ from this version's in candidates, compose"):
            check(folder, out=tmp_path / "out")
    else:  # nothing was composed here, so that no maps were made
        check(folder, out=tmp_path / "out")
        assert "18 records of 18 sources" in capsys.readouterr().out

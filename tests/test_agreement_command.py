"""`fastmix agreement` on sets that are made of photographs, and on colours that a known classifier judges."""

import argparse
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from tinysd import tiny

from fastmix.datasets import open_source
from fastmix.demo import network
from fastmix.images import center_box
from fastmix.manifest import read_manifest
from fastmix.mapfile import MapFile, content_digest
from fastmix.offline import judge as judges
from fastmix.offline import verdict
from fastmix.offline.agreement import add_arguments, run
from fastmix.offline.expansion import Expansion
from fastmix.offline.generator import Generator
from fastmix.offline.judge import split
from fastmix.offline.refine import expand
from fastmix.photos import cut_photos
from fastmix.synthetic import Expanded, Synthetic

torch.set_num_threads(1)

COLOURS = """
import torch
from torch import nn


class Colours(nn.Module):
    # The class is the brightest channel; p is the softmax of `sharpness` times the channels' means.
    def __init__(self, sharpness):
        super().__init__()
        self.sharpness = nn.Parameter(torch.tensor(sharpness))

    def forward(self, images):
        return self.sharpness * images.mean((2, 3))


def make(sharpness=1.0):
    return Colours(sharpness)


def broken():
    return Colours(float("nan"))


def two():
    return nn.Sequential(Colours(1.0), nn.Linear(3, 2))
"""
SHADES = ("a red", "b green", "c blue")  # classes 0, 1, 2 are the channels


class Identity:
    """Gives back what it is given."""

    hashes = {"model": "0" * 64, "adapter": None, "tokens": None}  # noqa: RUF012

    def check_prompts(self, prompts):
        pass

    def refine(self, images, prompts, strength, steps, guidance, seeds):  # noqa: ARG002
        return images.astype(np.float32) / 255


class Swap(Identity):
    """Gives a photograph of the class after the one in the prompt."""

    def __init__(self, folder, size):
        self.source, self.size = open_source(folder), size
        labels = [self.source.read(i).label for i in range(len(self.source))]
        self.first = [labels.index(label) for label in range(10)]

    def refine(self, images, prompts, strength, steps, guidance, seeds):  # noqa: ARG002
        classes = [int(prompt.split("<class_")[1].split(">")[0]) for prompt in prompts]
        files = [self.source.path(self.first[(label + 1) % 10]) for label in classes]
        pictures = [Image.open(file).resize((self.size, self.size)) for file in files]
        return np.stack([np.asarray(picture, np.float32) / 255 for picture in pictures])


def words(data, out, *more):
    return [str(data), str(out), "--quiet", *map(str, more)]


def command(*argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--quiet", action="store_true")
    add_arguments(parser)
    run(parser.parse_args(words(*argv)))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """80 photographs of ten classes; `same`: refined by nothing; `swapped`: to other classes; `mixed`: with other
    classes' backgrounds."""
    root = tmp_path_factory.mktemp("agreement")
    cut_photos(root / "data", 80)
    how = Expansion.da_fusion(multiplier=2, size=64, strengths=(0.5, 0.9))
    expand(root / "data", root / "same", how, Identity(), quiet=True)
    expand(root / "data", root / "swapped", how, Swap(root / "data", 64), quiet=True)
    how = Expansion.sgdmix(multiplier=1, size=64, strengths=(0.9,), same_class="forbid", candidates=200)
    expand(root / "data", root / "mixed", how, Identity(), quiet=True)
    return root


def test_labels_that_are_kept(photos, capsys, monkeypatch):
    command(photos / "data", photos / "same")
    text, err = capsys.readouterr()
    lines = text.splitlines()
    assert err == "" and lines[0].startswith("80 records of 40 sources; judge: a network trained here on 40 other")
    assert lines[-1] == "passes: before - after <= 5 points, normalised after >= 90.0% at every strength"
    assert any(line.split() == ["before", "-", "after,", "points", "+0.0", "+0.0"] for line in lines)
    assert any(line.split() == ["p", "(McNemar)", "1", "1"] for line in lines)
    # The judge is taken again, and with it every figure.
    monkeypatch.setattr(judges, "train", None)
    target = photos / "sheet.png"
    command(photos / "data", photos / "same", "-o", target)
    assert capsys.readouterr().out == f"{text}wrote {target}\n"
    with Image.open(target) as image:
        assert image.width > 6 * 160 and image.height > 4 * 160
    for more in (("--seed", 1), ("--epochs", 3)):
        with pytest.raises(TypeError, match="NoneType"):
            command(photos / "data", photos / "same", *more)


def test_swapped_classes_fail_with_status_1(photos, capsys):
    with pytest.raises(SystemExit) as status:
        command(photos / "data", photos / "swapped", "--json")
    told = json.loads(capsys.readouterr().out)
    assert status.value.code == 1 and told["passed"] is False
    assert [line[line.rindex("(") + 1 : -1] for line in told["failures"]] == ["--most-loss", "--least"] * 2
    for each in told["strengths"]:
        assert each["after"]["share"] < 0.1 and each["before"]["share"] > 0.9 and each["p"] < 1e-3
    with pytest.raises(SystemExit):
        command(photos / "data", photos / "swapped", "--most-loss", 1)
    assert "FAILS: strength 0.5: agreement is " in capsys.readouterr().out
    command(photos / "data", photos / "swapped", "--most-loss", 1, "--least", 0)
    assert "passes: before - after <= 100 points" in capsys.readouterr().out


def test_composites_are_before_and_their_targets_leak(photos, capsys):
    command(photos / "data", photos / "mixed", "--most-loss", 1, "--least", 0, "--json")
    told = json.loads(capsys.readouterr().out)
    (each,) = told["strengths"]
    assert each["before"] == each["after"] and each["p"] == 1 and each["loss"] == 0
    assert each["leak_before"]["n"] == told["records"] and 0 < each["leak_before"]["share"] < 1
    assert each["leak_before"]["hits"] + each["before"]["hits"] <= told["records"]
    every = read_manifest(photos / "mixed")
    assert sum(told["not_made"].values()) == len(every.rows) - len(every.made)


def chance_of(row, folder, name):
    """The probability of the source's class, by Pillow and torch alone, with the weights that were kept."""
    model = network(10).eval()
    model.load_state_dict(torch.load(folder / name, weights_only=True)["model"])
    with Image.open(folder / row["path"]) as picture:
        left, top, width, height = center_box(picture.height, picture.width, (64, 64))
        small = picture.resize((64, 64), Image.Resampling.BILINEAR, (left, top, left + width, top + height))
    image = torch.tensor(np.asarray(small)) / 255 - torch.tensor([0.485, 0.456, 0.406])
    image /= torch.tensor([0.229, 0.224, 0.225])
    with torch.no_grad():
        return model(image.permute(2, 0, 1)[None]).softmax(1)[0, row["source_label"]].item()


def test_every_record_that_is_kept_was_judged_by_a_network_that_has_not_seen_its_source(photos, capsys):
    command(photos / "data", photos / "mixed", "--most-loss", 1, "--least", 0, "--keep-if", "p>=0.6", "--json")
    told, kept = json.loads(capsys.readouterr().out)["kept"], read_manifest(photos / "mixed" / "kept.parquet")
    made, source = read_manifest(photos / "mixed").made, open_source(photos / "data")
    assert (told["records"], told["of"]) == (len(kept.rows), len(made)) and kept.about["kept if"] == "p>=0.6"
    held = split(np.repeat(np.arange(10), 8), 0.5, 0)
    names = ["judge.pt" if held[row["source"]] else "judge_other.pt" for row in made]
    chance = np.array([chance_of(row, photos / "mixed", name) for row, name in zip(made, names, strict=True)])
    is_kept = np.array([row["record"] in {each["record"] for each in kept.rows} for row in made])
    assert is_kept.any() and not is_kept.all()
    assert (chance[is_kept] >= 0.6 - 0.02).all() and (chance[~is_kept] < 0.6 + 0.02).all()  # a level of a pixel
    assert kept.rows == [row for row, chosen in zip(made, is_kept, strict=True) if chosen]
    assert len(Expanded(source, Synthetic(photos / "mixed" / "kept.parquet"))) == 80 + len(kept.rows)


def test_no_judge_is_trained_on_what_it_judges(photos, monkeypatch, capsys):
    trained, looked = [], []

    def train(pictures, labels, *rest):
        trained.append((len(pictures), sorted(labels.tolist())))
        return teach(pictures, labels, *rest)

    def load_judge(file, source, numbers, *rest):
        looked.append({*numbers.tolist()})
        return load(file, source, numbers, *rest)

    def look(data, rows, *rest):
        looked.append({row["source"] for row in rows})
        return see(data, rows, *rest)

    teach, load, see = judges.train, verdict.load_judge, verdict.look
    monkeypatch.setattr(judges, "train", train)
    monkeypatch.setattr(verdict, "load_judge", load_judge)
    monkeypatch.setattr(verdict, "look", look)
    kept = ("--keep-if", "p>=0.6", "--held-out", 0.25, "--seed", 7, "--epochs", 10)
    command(photos / "data", photos / "same", *kept, "--most-loss", 1, "--least", 0)
    first, second, by_first, by_second = looked
    assert (len(first), len(second)) == (60, 20) and first | second == set(range(80))
    assert by_first == second and by_second == first
    assert trained == [(60, sorted([*range(10)] * 6)), (20, sorted([*range(10)] * 2))]
    assert capsys.readouterr().out.startswith("40 records of 20 sources; judge: a network trained here on 60 other")


def test_another_data_set_trains_another_judge(photos, tmp_path, capsys):
    shutil.copytree(photos / "data", tmp_path / "data")
    shutil.copytree(photos / "same", tmp_path / "same")
    command(tmp_path / "data", tmp_path / "same", "--epochs", 2, "--most-loss", 1, "--least", 0)
    before = torch.load(tmp_path / "same" / "judge.pt", weights_only=True)
    for file in sorted((tmp_path / "data" / "cat").iterdir()):
        with Image.open(file) as picture:
            picture.transpose(Image.Transpose.FLIP_TOP_BOTTOM).save(file)
    (tmp_path / "same" / "judge.pt").rename(tmp_path / "judge.pt")
    shutil.rmtree(tmp_path / "same")
    how = Expansion.da_fusion(multiplier=2, size=64, strengths=(0.5, 0.9))
    expand(tmp_path / "data", tmp_path / "same", how, Identity(), quiet=True)
    (tmp_path / "judge.pt").rename(tmp_path / "same" / "judge.pt")
    command(tmp_path / "data", tmp_path / "same", "--epochs", 2, "--most-loss", 1, "--least", 0)
    after = torch.load(tmp_path / "same" / "judge.pt", weights_only=True)
    assert after["about"] != before["about"] and any((after["model"][k] != v).any() for k, v in before["model"].items())
    (tmp_path / "same" / "judge.pt").write_bytes(b"damaged")
    command(tmp_path / "data", tmp_path / "same", "--epochs", 2, "--most-loss", 1, "--least", 0)
    again = torch.load(tmp_path / "same" / "judge.pt", weights_only=True)
    assert all((again["model"][name] == value).all() for name, value in after["model"].items())
    capsys.readouterr()


@pytest.fixture(scope="module")
def shades(tmp_path_factory):
    """Pictures of one colour: 4 of each of SHADES, brighter and brighter, refined by nothing; net.py."""
    root = tmp_path_factory.mktemp("shades")
    (root / "net.py").write_text(COLOURS)
    for label, name in enumerate(SHADES):
        (root / "data" / name).mkdir(parents=True)
        for number in range(4):
            picture = np.zeros((40, 56, 3), np.uint8)
            picture[..., label] = 60 * (number + 1)
            Image.fromarray(picture).save(root / "data" / name / f"{number}.png")
    how = Expansion.da_fusion(multiplier=1, size=32, strengths=(0.5,))
    expand(root / "data", root / "out", how, Identity(), quiet=True)
    return root


def known(root, *more, make="make"):
    """Probabilities of the classes are the softmax of 2 x the channels' levels in [0, 1]."""
    model = ["--classifier", f"{root}/net.py:{make}", "--mean", 0, 0, 0, "--std", 1, 1, 1, "--size", 16]
    model += ["--classifier-args", '{"sharpness": 2.0}'] if make == "make" else []
    return command(root / "data", root / "out", *model, *more)


def test_a_given_classifier_judges_all_sources(shades, capsys):
    known(shades)
    out = capsys.readouterr().out
    assert out.startswith(f"12 records of 12 sources; judge: {shades}/net.py:make\n")
    assert "it names 100.0% of these sources rightly" in out and not (shades / "out" / "judge.pt").exists()
    torch.save({"sharpness": torch.tensor(-2.0)}, shades / "turned.pt")
    with pytest.raises(SystemExit):
        known(shades, "--weights", shades / "turned.pt")
    assert "it names 0.0% of these sources rightly" in (out := capsys.readouterr().out)
    assert "note: the judge is no better than chance" in out and "no clean source is named rightly" in out


def test_filter_by_known_probabilities(shades, capsys):
    levels = np.array([60, 120, 180, 240]) / 255
    chance = np.exp(2 * levels) / (np.exp(2 * levels) + 2)
    bound = (chance[1] + chance[2]) / 2
    known(shades, "--keep-if", f"p>={bound:.4f}")
    lines = capsys.readouterr().out.splitlines()
    assert f"kept 6 of 12 records with p>={bound:.4f}: wrote {shades}/out/kept.parquet" in lines
    assert [line.strip() for line in lines[-3:]] == [f"{name:7}  2 of 4 (50.0%)" for name in SHADES]
    kept = read_manifest(shades / "out" / "kept.parquet")
    assert [row["source_path"] for row in kept.rows] == [f"{name}/{number}.png" for name in SHADES for number in (2, 3)]
    assert kept.classes == list(SHADES) and all((kept.folder / row["path"]).is_file() for row in kept.rows)
    for file in sorted((shades / "out" / "pictures" / "a red").iterdir()):  # all of them far too dark
        Image.fromarray(np.full((40, 56, 3), 3, np.uint8)).save(file)
    known(shades, "--keep-if", "p>=0.4")
    assert "warning: of a red less than half as much is kept" in capsys.readouterr().out
    shutil.rmtree(shades / "out")
    expand(shades / "data", shades / "out", Expansion.da_fusion(multiplier=1, size=32, strengths=(0.5,)), Identity())
    known(shades, "--records", 5, "--json")
    assert json.loads(capsys.readouterr().out)["records"] == 5


def test_baselines_refine_what_was_not_mixed(shades, capsys, monkeypatch):
    calls, rows = [], {row["seed"]: row for row in read_manifest(shades / "out").made}

    class Spy(Identity):
        def round_trip(self, images):
            return images.astype(np.float32) / 255

        def refine(self, images, prompts, strength, steps, guidance, seeds):
            calls.append((images.shape, strength, steps, guidance))
            assert [rows[seed]["prompt"] for seed in seeds] == prompts
            return images[..., ::-1].astype(np.float32) / 255  # red is blue

    monkeypatch.setattr(verdict, "_generator", lambda *_options: Spy())
    known(shades, "--baseline", 12, "--model", "nothing", "--json", "--batch-size", 8)
    (each,) = json.loads(capsys.readouterr().out)["strengths"]
    assert (each["round_trip"]["hits"], each["round_trip"]["n"]) == (12, 12)
    assert (each["plain"]["hits"], each["plain"]["n"]) == (4, 12)
    assert calls == [((8, 32, 32, 3), 0.5, 25, 7.5), ((4, 32, 32, 3), 0.5, 25, 7.5)]
    monkeypatch.setattr(Identity, "hashes", Identity.hashes | {"model": "1" * 64})
    with pytest.raises(ValueError, match=r"model has SHA-256 1111.*, but the set was made with 0000"):
        known(shades, "--baseline", 12, "--model", "nothing")


def test_baselines_of_a_diffusion_model(shades, tmp_path, capsys):
    how = Expansion.da_fusion(multiplier=1, size=32, strengths=(0.5,), steps=2).with_plain_names()
    expand(shades / "data", tmp_path / "out", how, Generator(tiny()), quiet=True)
    model = ["--classifier", f"{shades}/net.py:make", "--size", 16, "--most-loss", 1, "--least", 0]
    command(shades / "data", tmp_path / "out", *model, "--baseline", 3, "--model", tiny(), "--json")
    (each,) = json.loads(capsys.readouterr().out)["strengths"]
    assert (each["round_trip"]["n"], each["plain"]["n"]) == (3, 3)
    # Nothing was mixed here, so the sources that are refined once more become the very pictures of the set.
    command(shades / "data", tmp_path / "out", *model, "--baseline", 12, "--model", tiny(), "--json")
    (each,) = json.loads(capsys.readouterr().out)["strengths"]
    assert each["plain"] == each["after"]


def test_given_maps_are_needed_again(photos, tmp_path, capsys):
    source = open_source(photos / "data")
    digests = [content_digest(source.read(i).data) for i in range(len(source))]
    corner = np.zeros((80, 8, 8), np.float32)
    corner[:, 2:6, 1:6] = 1 + np.arange(80)[:, None, None] / 80
    MapFile.write(tmp_path / "maps.npy", digests, corner)
    MapFile.write(tmp_path / "others.npy", digests, corner[::-1])
    how = Expansion.sgdmix(multiplier=1, size=64, strengths=(0.9,))
    expand(photos / "data", tmp_path / "out", how, Identity(), quiet=True, maps=tmp_path / "maps.npy")
    words = (photos / "data", tmp_path / "out", "--epochs", 2, "--most-loss", 1, "--least", 0)
    with pytest.raises(ValueError, match=r"the set was made with maps .*: give the file of these with --maps"):
        command(*words)
    with pytest.raises(ValueError, match="but the set was made with maps"):
        command(*words, "--maps", tmp_path / "others.npy")
    command(*words, "--maps", tmp_path / "maps.npy", "--json")
    (each,) = json.loads(capsys.readouterr().out)["strengths"]
    assert each["before"] == each["after"] and each["p"] == 1
    with pytest.raises(ValueError, match="but the set was made with None"):
        command(photos / "data", photos / "same", "--maps", tmp_path / "maps.npy")


def test_what_is_refused(shades, photos, tmp_path, capsys):
    def refused(text, *more, data=shades / "data", out=shades / "out", make="make"):
        model = ["--classifier", f"{shades}/net.py:{make}", "--size", 16]
        with pytest.raises((ValueError, OSError), match=text):
            command(data, out, *model, *more)

    refused("the classifier has 2 outputs, expected the 3 classes", make="two")
    refused("values that are not finite", make="broken")
    refused("keep-if is 'p>0.5'", "--keep-if", "p>0.5")
    refused("leave out --records", "--keep-if", "p>=0.5", "--records", 3)
    refused("--records is 0", "--records", 0)
    refused("--baseline is 3, expected 0, or more with the --model", "--baseline", 3)
    refused("cannot write", "-o", tmp_path / "no" / "a.png")
    refused("cannot write", "-o", tmp_path / "a.gif")
    refused("most_loss is 7", "--most-loss", 7)
    refused("was made of another one", data=photos / "data")
    refused("no manifest.parquet", out=tmp_path)
    with pytest.raises(ValueError, match="--weights are those of a classifier"):
        command(shades / "data", shades / "out", "--weights", "a.pt")
    with pytest.raises(ValueError, match=r"--held-out 0\.1 of every class leaves no source to judge"):
        command(shades / "data", shades / "out", "--held-out", 0.1)
    shutil.copytree(shades / "out", tmp_path / "out")
    file, *_ = sorted((tmp_path / "out" / "pictures" / "a red").iterdir())
    file.write_bytes(file.read_bytes()[:60])
    refused(f"cannot read {file}", out=tmp_path / "out")
    file.unlink()
    refused(f"{file} is missing, though the manifest lists it", out=tmp_path / "out")
    shutil.copytree(shades / "data", tmp_path / "data")
    (tmp_path / "data" / "b green" / "0.png").rename(tmp_path / "data" / "b green" / "9.png")
    refused("sample 4, not .*: .* was made of another one", data=tmp_path / "data")
    assert capsys.readouterr().out == ""

"""Refining where something is wrong: broken, changed or oddly named pictures; damaged or lost files of the set."""

import argparse
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from refining import BATCH, EXPANSION, Dimmed, files_of, make_patches, start
from tinysd import tiny

from fastmix import FastmixError, Pool
from fastmix.manifest import read_manifest
from fastmix.offline import refine
from fastmix.offline.command import add_arguments, run
from fastmix.offline.expansion import PRESETS, Expansion
from fastmix.offline.pipelines import load_pipeline
from fastmix.offline.refine import expand
from fastmix.offline.sources import class_difference

COUNT = 24


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_patches(tmp_path_factory.mktemp("patches") / "data", COUNT)


@pytest.fixture
def few(tmp_path):
    return make_patches(tmp_path / "data", 12)


def made_of(data, out, expansion=EXPANSION, **given):
    """The manifest, and what the model was asked for."""
    dimmed = given.pop("generator", None) or Dimmed()
    return expand(data, out, expansion, dimmed, BATCH, quiet=True, **given), dimmed.asked


def command(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.add_argument("--quiet", action="store_true")
    run(parser.parse_args([*map(str, words)]))


@pytest.mark.parametrize("preset", PRESETS)
def test_a_broken_picture_is_told_before_the_model_runs(few, tmp_path, preset):
    file, dimmed, out = few / "kind_9" / "009.png", Dimmed(), tmp_path / "out"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    expansion = getattr(Expansion, preset)(size=32, multiplier=1)
    pool = Pool(np.zeros((1, 32, 32, 3), np.uint8)) if expansion.fractal else None
    with pytest.raises(FastmixError, match=r"kind_9/009\.png.*; put a sound picture of the same name in its") as caught:
        made_of(few, out, expansion, generator=dimmed, pool=pool)
    assert caught.value.path == str(file) and dimmed.asked == [] and not out.exists()
    file.write_bytes(whole)
    assert len(made_of(few, out, expansion, pool=pool)[0].rows) == 12


def test_changed_pictures_are_refused_until_they_are_put_back(few, tmp_path):
    out, file = tmp_path / "out", few / "kind_0" / "000.png"
    made_of(few, out)
    before, whole = files_of(out), file.read_bytes()
    Image.fromarray(np.asarray(Image.open(file))[::-1]).save(file)
    with pytest.raises(ValueError, match="was begun with other pictures under the same names: go on with the same, or"):
        made_of(few, out)
    file.write_bytes(whole)
    assert made_of(few, out)[1] == [] and files_of(out) == before


def test_another_precision_is_another_set(few, tmp_path):
    half = Dimmed()
    half.dtype = "float16"
    made_of(few, tmp_path / "out", generator=half)
    assert read_manifest(tmp_path / "out").about["dtype"] == "float16"
    half.dtype = "float32"
    with pytest.raises(ValueError, match="was begun with dtype = 'float16', and now it is 'float32'"):
        made_of(few, tmp_path / "out", generator=half)


def lose(out, rows):
    """One picture is deleted, one cut off, one replaced by other bytes, one empty."""
    first, second, third, fourth = (out / row["path"] for row in rows)
    first.unlink()
    second.write_bytes(second.read_bytes()[:-3])
    third.write_bytes(b"xx")
    fourth.write_bytes(b"")


@pytest.mark.parametrize("picture", ["png", "jpg"])
def test_lost_pictures_of_a_finished_set_are_made_again(data, tmp_path, picture):
    out, expansion = tmp_path / "out", Expansion.sgdmix(size=32, multiplier=4, candidates=6, seed=5, picture=picture)
    manifest = made_of(data, out, expansion)[0]
    before = files_of(out)
    block = [row for row in manifest.made if row["record"] // 32 == 1]
    lose(out, block[:4])
    assert files_of(out) != before
    again, asked = made_of(data, out, expansion)
    assert files_of(out) == before and again.rows == manifest.rows
    assert {seed for *_, seeds in asked for seed in seeds} == {row["seed"] for row in block}
    assert made_of(data, out, expansion)[1] == []


def test_lost_pictures_of_a_set_that_is_being_made(data, tmp_path):
    made_of(data, tmp_path / "whole")
    out = tmp_path / "out"
    start(data, out, "--die", 95)  # in the last of three blocks
    rows = [row for row in read_manifest(tmp_path / "whole").made if row["record"] < 32]
    lose(out, rows[:4])
    (out / "parts" / "000001.parquet").write_bytes(b"PAR1")
    made_of(data, out)
    assert files_of(out) == files_of(tmp_path / "whole")


def test_a_damaged_manifest_is_made_again_once_it_is_deleted(few, tmp_path):
    made_of(few, tmp_path / "out")
    before, manifest = files_of(tmp_path / "out"), tmp_path / "out" / "manifest.parquet"
    manifest.write_bytes(before["manifest.parquet"][:100])
    with pytest.raises(ValueError, match=r"cannot read .*manifest\.parquet.*; or delete .*: then it is made again"):
        made_of(few, tmp_path / "out")
    manifest.unlink()
    made_of(few, tmp_path / "out")
    assert files_of(tmp_path / "out") == before


@pytest.mark.parametrize("damage", [b"", b"abc" * 100, "short"])
def test_damaged_maps_are_made_again(data, tmp_path, damage):
    made_of(data, tmp_path / "whole")
    out = tmp_path / "out"
    start(data, out, "--die", 95)
    maps = out / "saliency" / "000000.npy"
    if damage == "short":
        np.save(maps, np.load(maps)[:2])
    else:
        maps.write_bytes(damage)
    made_of(data, out)
    assert files_of(out) == files_of(tmp_path / "whole")


def test_classes_with_names_like_unfinished_files(few, tmp_path):
    for number, name in enumerate((".v.1", ".0000000_000.png.7", ".settings.json.3")):
        (few / f"kind_{number}").rename(few / name)
    out = tmp_path / "out"
    manifest = made_of(few, out)[0]
    (out / ".mine.1").write_text("a note")
    before = files_of(out)
    assert made_of(few, out)[1] == [] and files_of(out) == before and ".mine.1" in before
    assert {row["path"].split("/")[1] for row in manifest.made} >= {".v.1", ".0000000_000.png.7"}


@pytest.mark.parametrize("where", ["class", "file"])
def test_names_that_are_no_text_are_refused(few, tmp_path, where):
    name = os.fsdecode(b"\xe9t\xe9")
    old, new = (
        (few / "kind_1", few / name) if where == "class" else (few / "kind_1/001.png", few / f"kind_1/{name}.png")
    )
    try:
        old.rename(new)
    except OSError:
        pytest.skip("this file system has no such names")
    with pytest.raises(ValueError, match=r"the data has a name b'.*\\xe9t\\xe9.*', expected UTF-8: rename it"):
        made_of(few, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["", "[]", '"x"', "null", '{"expansion": 3}', "\x00"])
def test_damaged_settings_are_named(few, tmp_path, text):
    out = tmp_path / "out"
    out.mkdir()
    (out / "settings.json").write_text(text)
    with pytest.raises(ValueError, match=r"cannot read .*settings\.json: .*; put it back as it was, or name another"):
        made_of(few, out)
    assert [path.name for path in out.iterdir()] == ["settings.json"]


def test_other_classes_are_told_by_what_differs(few, tmp_path):
    assert class_difference(["a", "b", "c"], ["a", "c"]) == "missing: 'b'"
    assert class_difference(["a"], ["a", "b", "c"]) == "new: 'b', 'c'"
    assert class_difference(["a", "b"], ["b", "a"]).startswith("another order: class 0 was 'a', now 'b'")
    assert class_difference([], [*"abcdefg"]) == "new: 'a', 'b', 'c', 'd', 'e' and 2 more"
    made_of(few, tmp_path / "out")
    (few / "kind_9").rename(few / "kind_X")
    with pytest.raises(ValueError, match=r"was begun with other classes \(missing: 'kind_9'; new: 'kind_X'\): go on"):
        made_of(few, tmp_path / "out")


def test_ray_without_gpus_is_refused():
    def cluster(**resources):
        return SimpleNamespace(is_initialized=lambda: True, cluster_resources=lambda: resources)

    with pytest.raises(ValueError, match="2 workers of Ray need 2 GPUs, and its cluster has 0: take fewer workers"):
        refine._check_gpus(cluster(CPU=2.0), 2, 1)
    with pytest.raises(ValueError, match="2 workers of Ray need 2 GPUs, and its cluster has 1"):
        refine._check_gpus(cluster(CPU=2.0, GPU=1.0), 2, 1)
    refine._check_gpus(cluster(CPU=2.0, GPU=2.0), 2, 1)
    refine._check_gpus(cluster(CPU=2.0), 2, 0)


def test_plain_names_need_no_token_in_prompts(few, tmp_path):
    words = ("--preset", "da_fusion", "--size", 16, "--steps", 1, "--multiplier", 1, "--strengths", 1, "--quiet")
    prompts = ("--plain-names", "--prompts", "a snowy photo of a {name}")
    command(few, tmp_path / "out", "--model", tiny(), *words, *prompts)
    assert read_manifest(tmp_path / "out").rows[0]["prompt"] == "a snowy photo of a kind 0"


def test_an_empty_name_is_no_model(few, tmp_path):
    with pytest.raises(ValueError, match="model is '', expected a folder that save_pretrained wrote, or a name on"):
        command(few, tmp_path / "out", "--model", "", "--plain-names", "--quiet")
    with pytest.raises(ValueError, match="model is ' '"):
        load_pipeline(" ")


def test_a_damaged_list_of_a_fine_tuning_is_named(few, tmp_path):
    about = {"classes": ["a"], "tokens": ["<class_0>"], "metaclass": "bird", "model": "m"}
    for text in ("", "[]", "{", json.dumps(about), json.dumps({**about, "model_hash": 3})):
        (tmp_path / "finetuned.json").write_text(text)
        with pytest.raises(ValueError, match=r"finetuned\.json.*put it back as it was, or fine-tune into a new"):
            command(few, tmp_path / "out", "--finetuned", tmp_path, "--quiet")

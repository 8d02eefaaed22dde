"""Folders of expanded sets: what is in them, whoever makes them and however often they are killed; and refusals."""

import argparse
import fcntl
import json
import re
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from refining import BATCH, EXPANSION, HIGH, WIDE, Dimmed, files_of, make_patches, start
from tinysd import tiny

from fastmix import FastmixError, Pool
from fastmix.datasets import ArrayDataset, open_source
from fastmix.manifest import MADE, Manifest, read_manifest
from fastmix.mapfile import MapFile
from fastmix.offline.command import add_arguments, run, summary
from fastmix.offline.composing import composite
from fastmix.offline.expansion import Expansion
from fastmix.offline.finetune import finetune
from fastmix.offline.finetuning import Finetuning
from fastmix.offline.generator import Generator
from fastmix.offline.refine import expand
from fastmix.photos import cut_patches
from fastmix.saliency import spectral_maps

COUNT = 24


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_patches(tmp_path_factory.mktemp("patches") / "data", COUNT)


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    """A finished folder."""
    out = tmp_path_factory.mktemp("whole") / "out"
    expand(data, out, EXPANSION, Dimmed(), BATCH, quiet=True)
    return out


def test_manifest_and_folder_agree(data, undisturbed):
    manifest, source = read_manifest(undisturbed), open_source(data)
    assert [row["record"] for row in manifest.rows] == list(range(4 * COUNT))
    assert [row["source"] for row in manifest.rows] == [record // 4 for record in range(4 * COUNT)]
    pictures = {str(path.relative_to(undisturbed)) for path in (undisturbed / "pictures").rglob("*.*")}
    assert pictures == {row["path"] for row in manifest.made} and len(pictures) == len(manifest.made) > 80
    assert {path.name for path in undisturbed.iterdir()} == {
        ".lock",
        "manifest.parquet",
        "pictures",
        "saliency",
        "settings.json",
    }
    assert manifest.classes == source.classes and manifest.about["expansion"]["seed"] == 5
    for row in manifest.rows:
        label = source.read(row["source"]).label
        assert row["source_label"] == label and source.path(row["source"]) == str(data / row["source_path"])
        assert source.read(row["target"]).label == row["target_label"] and row["target"] != row["source"]
        assert row["prompt"] == f"a photo of a <class_{label}> object" and row["weight"] == 1
        assert (row["path"] is None) == (row["status"] != MADE) and row["model"] == "dim"
        if row["path"]:
            assert row["path"].split("/")[1] == source.classes[label]


def test_pictures_are_the_refined_composites(data, undisturbed):
    source = open_source(data)
    for row in read_manifest(undisturbed).made[::7]:
        image = composite(source, row, EXPANSION)
        share = 0.4 + 0.6 * (row["seed"] % 1000 / 1000)
        # float32 here and there may fall on either side of a half
        dimmed = np.rint(image / 255 * np.float32(share) * 255).astype(np.uint8)
        expected = Image.fromarray(dimmed).resize((43, 32), Image.Resampling.BILINEAR)  # 48 x 36, its short side at 32
        found = Image.open(undisturbed / row["path"])
        assert found.size == (43, 32) and round(WIDE * 32 / HIGH) == 43
        assert np.abs(np.asarray(found).astype(int) - np.asarray(expected)).max() <= 2


def test_the_model_is_asked_by_strength_in_batches(data, tmp_path):
    dimmed = Dimmed()
    manifest = expand(data, tmp_path / "out", EXPANSION, dimmed, BATCH, quiet=True)
    assert max(len(asked[1]) for asked in dimmed.asked) == BATCH
    assert all(asked[3:5] == (25, 7.5) for asked in dimmed.asked)
    asked = {seed: (prompt, strength) for _, prompts, strength, _, _, seeds in dimmed.asked
             for prompt, seed in zip(prompts, seeds, strict=True)}  # fmt: skip
    assert asked == {row["seed"]: (row["prompt"], row["strength"]) for row in manifest.made}


def test_finished_is_finished(undisturbed, data):
    before, dimmed = files_of(undisturbed), Dimmed()
    (undisturbed / ".manifest.parquet.123").write_bytes(b"of a killed run")
    (undisturbed / "parts").mkdir()
    (undisturbed / "parts" / "000000.parquet").write_bytes(b"of a run that was killed while it tidied up")
    expand(data, undisturbed, EXPANSION, dimmed, BATCH, quiet=True)
    assert dimmed.asked == [] and files_of(undisturbed) == before


def test_killed_again_and_again(data, undisturbed, tmp_path):
    out = tmp_path / "out"
    # Moved into place are settings, maps, then pictures and parts of three blocks in turn, and the manifest.
    for moment in (1, 2, 7, 33, 40, 29):
        died = start(data, out, "--die", moment)
        assert died.returncode == -signal.SIGKILL, died.stderr
        assert not (out / "manifest.parquet").exists()
        assert list(out.rglob(".*.*")), "nothing was half-written"
    assert start(data, out).returncode == 0
    assert files_of(out) == files_of(undisturbed)


@pytest.mark.parametrize("way", ["torchrun", "ray"])
def test_others_make_the_same_files(data, undisturbed, tmp_path, way):
    done = start(data, tmp_path / "out", ranks=2) if way == "torchrun" else start(data, tmp_path / "out", "--ray")
    assert done.returncode == 0, done.stderr
    assert files_of(tmp_path / "out") == files_of(undisturbed)


def test_a_full_disk_is_one_error_and_no_half_file(data, undisturbed, tmp_path):
    out = tmp_path / "out"
    sizes = sorted(path.stat().st_size for path in (undisturbed / "pictures").rglob("*.png"))
    saliency = COUNT * 32 * 32 * 4 + 128
    failed = start(data, out, "--limit", saliency - 1)
    assert failed.returncode == 1
    assert re.fullmatch(rf"OSError: cannot write {out}/saliency/000000.npy: .*; make room .*", _last_line(failed))
    (out / "saliency").mkdir(exist_ok=True)
    (out / "saliency" / "000000.npy").write_bytes((undisturbed / "saliency" / "000000.npy").read_bytes())
    failed = start(data, out, "--limit", sizes[len(sizes) // 2])
    assert failed.returncode == 1
    assert re.fullmatch(rf"OSError: cannot write {out}/pictures/.*\.png: .*; make room .*", _last_line(failed))
    assert list(out.rglob(".*.*")) == [] and list(out.rglob("*.parquet")) == []
    whole = files_of(undisturbed)
    made = files_of(out)
    assert len(made) > 2 and made.items() <= whole.items()
    assert start(data, out).returncode == 0
    assert files_of(out) == whole


def _last_line(failed):
    return failed.stderr.splitlines()[-1]


class Black(Dimmed):
    """The safety checker dislikes some seeds, and one prompt whatever the seed."""

    def refine(self, images, prompts, strength, steps, guidance, seeds):
        made = super().refine(images, prompts, strength, steps, guidance, seeds)
        for row, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            if "<class_3>" in prompt:
                made[row] = np.nan if seed % 2 else 0  # an overflow in half precision
            elif seed % 3 != 1:
                made[row] = 0.001
        return made


def test_black_pictures_get_other_seeds(data, undisturbed, tmp_path):
    manifest = expand(data, tmp_path / "out", EXPANSION, Black(), BATCH, quiet=True)
    pairs = list(zip(read_manifest(undisturbed).rows, manifest.rows, strict=True))
    made = [(before["seed"], after["seed"]) for before, after in pairs if after["status"] == MADE]
    assert made and all(after == before + (1 - before) % 3 for before, after in made)
    for before, after in pairs:
        expected = "black" if after["source_label"] == 3 and before["status"] == MADE else before["status"]
        assert after["status"] == expected and (after["path"] is None) == (expected != MADE)
        assert expected != "black" or after["seed"] == before["seed"]
    assert f"{sum(row['status'] == 'black' for row in manifest.rows)} black" in summary(manifest)


def test_a_class_of_one_picture_has_no_target_of_its_own(data, tmp_path):
    expansion = replace(EXPANSION, same_class="require")
    manifest = expand(data, tmp_path / "out", expansion, Dimmed(), BATCH, quiet=True)
    assert {row["status"] == "no target" for row in manifest.rows} == {False}
    lonely = make_patches(tmp_path / "data", 11)  # two of class 0, one of each other
    manifest = expand(lonely, tmp_path / "lonely", expansion, Dimmed(), BATCH, quiet=True)
    without = {row["source_label"] for row in manifest.rows if row["status"] == "no target"}
    assert without == set(range(1, 10)) and all(row["target_label"] == row["source_label"] for row in manifest.made)
    assert all(row["target"] is None and row["path"] is None for row in manifest.rows if row["source_label"])


def test_a_picture_that_is_there_twice_is_counted(tmp_path):
    patches = cut_patches(3, side=32)[0]
    pictures = np.concatenate([patches, patches[:1]])
    source = ArrayDataset(pictures, [0, 1, 2, 0], ["a", "b", "c"])
    manifest = expand(source, tmp_path / "out", EXPANSION, Dimmed(), BATCH, quiet=True)
    twice = [row for row in manifest.rows if row["distance"] == 0]
    assert {(row["source"], row["target"]) for row in twice} == {(0, 3), (3, 0)}
    assert "8 composites equal their source" in summary(manifest) and manifest.rows[0]["source_path"] is None


def test_summary_counts_by_hand():
    rows = [
        {"status": "made", "target": 1, "mask_area": 0.5, "leak_area": 0.1, "distance": 1.0, "strength": 0.7},
        {"status": "made", "target": 1, "mask_area": 0.3, "leak_area": 0.2, "distance": 2.0, "strength": 0.7},
        {"status": "made", "target": 0, "mask_area": 0.1, "leak_area": 0.0, "distance": 3.0, "strength": 0.5},
        {"status": "small mask", "target": 2, "mask_area": 0.0, "leak_area": 0.0, "distance": 0.0, "strength": 0.5},
    ]
    steps = {0.7: 17, 0.5: 12}
    for row in rows:
        row.update(steps=steps[row["strength"]], scheduled_steps=25)
    assert summary(Manifest(rows, {"sources": 4}, Path())).splitlines() == [
        "4 records of 4 pictures: 3 made, 1 small mask",
        "targets: 2 pictures, one of them 2 times; 2 never",
        "masks: 30.0% of the picture; 10.0% the target's object beyond the source's",
        "strength 0.5: 12 of 25 steps, 1 pictures",
        "strength 0.7: 17 of 25 steps, 2 pictures",
    ]


def test_given_maps(data, tmp_path):
    def maps_of(images, _ids):
        return spectral_maps(images, (16, 16))[:, ::-1]

    file = tmp_path / "maps.npy"
    maps = MapFile.make(file, str(data), maps_of, size=32).of(open_source(data))
    manifest = expand(data, tmp_path / "out", EXPANSION, Dimmed(), BATCH, quiet=True, maps=file)
    assert not (tmp_path / "out" / "saliency").exists()
    (name,) = {row["saliency"] for row in manifest.rows}
    assert name.startswith("maps ") and manifest.about["saliency"] == name
    assert maps.file.shape == (16, 16)
    with pytest.raises(ValueError, match=f"made with {name}, expected these maps to be given"):
        composite(open_source(data), manifest.made[0], EXPANSION)
    with pytest.raises(ValueError, match=r"was begun with saliency = 'maps .*', and now it is 'spectral residual'"):
        expand(data, tmp_path / "out", EXPANSION, Dimmed(), BATCH, quiet=True)


def test_diffusemix_and_its_pool(data, tmp_path):
    pool = Pool(np.full((2, 32, 32, 3), 255, np.uint8))
    expansion = Expansion.diffusemix(size=32, multiplier=2, picture="jpg")
    manifest = expand(data, tmp_path / "out", expansion, Dimmed(), BATCH, quiet=True, pool=pool)
    row = manifest.rows[5]
    assert (row["status"], row["target"], row["mask_area"], row["saliency"]) == (MADE, None, None, None)
    found = np.asarray(Image.open(tmp_path / "out" / row["path"])).astype(float)
    squashed = Image.open(data / row["source_path"]).resize((32, 32), Image.Resampling.BILINEAR)
    corner = np.asarray(squashed.resize((43, 32), Image.Resampling.BILINEAR))[:4, :4]
    assert row["path"].endswith("_001.jpg")
    assert np.abs(found[:4, :4] - (0.8 * corner + 0.2 * 255)).mean() < 4  # the source's corner under white, as JPEG
    with pytest.raises(ValueError, match="was begun with pool = "):
        expand(data, tmp_path / "out", expansion, Dimmed(), BATCH, quiet=True, pool=Pool(pool.images[:1]))


def test_a_model_that_edits_has_no_strength(data, tmp_path):
    dimmed = Dimmed()
    dimmed.edits = True
    manifest = expand(data, tmp_path / "out", EXPANSION, dimmed, BATCH, quiet=True)
    assert {(row["strength"], row["steps"]) for row in manifest.rows} == {(1.0, 25)}


def other(**changes):
    return {"expansion": replace(EXPANSION, **changes)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (other(seed=6), "was begun with seed = 5, and now it is 6: go on with the same, or name another folder"),
        (other(strengths=(0.7,)), "was begun with strengths = [0.5, 0.7, 0.9], and now it is [0.7]"),
        ({"tokens": [f"<bird_{i}>" for i in range(10)]}, "was begun with token_names = ['<class_0>'"),
        ({"generator": Dimmed({"model": "other"})}, "was begun with model = 'dim', and now it is 'other'"),
        ({"generator": Dimmed({"model": "dim", "adapter": "a"})}, "was begun with adapter = None, and now it is 'a'"),
        ({"pool": Pool(np.zeros((1, 32, 32, 3), np.uint8))}, "a pool is given, and this expansion makes no use of it"),
        ({**other(compose=False), "maps": "maps.npy"}, "maps is given, and this expansion makes no use of it"),
        ({"batch_size": 0}, "batch_size is 0, expected an integer of at least 1"),
        ({"rank": 2, "world": 2}, "rank is 2 of 2"),
        ({"rank": 0, "world": 2}, "its processes cannot wait for each other: start them with torchrun"),
    ],
)
def test_other_settings_are_refused(data, undisturbed, given, message):
    before = files_of(undisturbed)
    with pytest.raises(ValueError) as caught:
        expand(**{"source": data, "out": undisturbed, "expansion": EXPANSION, "generator": Dimmed(), **given})
    assert message in str(caught.value) and files_of(undisturbed) == before


def test_changed_data_is_refused(tmp_path):
    data = make_patches(tmp_path / "data", 12)
    expand(data, tmp_path / "out", EXPANSION, Dimmed(), quiet=True)
    data.rename(tmp_path / "moved")  # the same set at another place
    expand(tmp_path / "moved", tmp_path / "out", EXPANSION, Dimmed(), quiet=True)
    (tmp_path / "moved" / "kind_1" / "001.png").rename(tmp_path / "moved" / "kind_1" / "a.png")
    with pytest.raises(ValueError, match="was begun with other labels or file names: go on with"):
        expand(tmp_path / "moved", tmp_path / "out", EXPANSION, Dimmed(), quiet=True)


def test_other_folders_are_refused(data, tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"has note.txt in it and no settings.json, expected a new folder"):
        expand(data, tmp_path, EXPANSION, Dimmed(), quiet=True)
    with pytest.raises(ValueError, match="is a file, expected the name of a folder"):
        expand(data, tmp_path / "note.txt", EXPANSION, Dimmed(), quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "settings.json").write_text("{")
    with pytest.raises(ValueError, match=r"cannot read .*settings.json"):
        expand(data, tmp_path / "out", EXPANSION, Dimmed(), quiet=True)


def test_two_runs_never_write_one_folder(data, undisturbed):
    with (undisturbed / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="is being written by another run"):
            expand(data, undisturbed, EXPANSION, Dimmed(), BATCH, quiet=True)
    expand(data, undisturbed, EXPANSION, Dimmed(), BATCH, quiet=True)


def test_a_broken_picture_is_named(tmp_path):
    data = make_patches(tmp_path / "data", 12)
    (data / "kind_3" / "003.png").write_bytes(b"no picture")
    with pytest.raises(FastmixError, match=r"sample 5 \(.*kind_3/003.png\)"):
        expand(data, tmp_path / "out", EXPANSION, Dimmed(), quiet=True)


def test_prompts_are_checked_before_anything_is_made(data, tmp_path):
    with pytest.raises(ValueError, match=r"token <class_0> of prompt .* is unknown to the model"):
        expand(data, tmp_path / "out", EXPANSION, Generator(tiny()), quiet=True)
    assert not (tmp_path / "out").exists()


def test_a_missing_part_is_made_again_and_no_other(data, undisturbed, tmp_path):
    out = tmp_path / "out"
    start(data, out, "--die", 95)  # in the last block
    assert sorted(path.name for path in (out / "parts").glob("[!.]*")) == ["000000.parquet", "000001.parquet"]
    (out / "parts" / "000000.parquet").unlink()
    dimmed = Dimmed()
    manifest = expand(data, out, EXPANSION, dimmed, BATCH, quiet=True)
    assert files_of(out) == files_of(undisturbed)
    asked = {seed for *_, seeds in dimmed.asked for seed in seeds}
    assert asked == {row["seed"] for row in manifest.made if row["record"] // 32 != 1}  # nothing of the other part


def test_another_version_of_the_manifest_is_refused(undisturbed, tmp_path):
    table = pq.read_table(undisturbed / "manifest.parquet")
    about = json.loads(table.schema.metadata[b"fastmix.manifest"]) | {"version": "0"}
    changed = table.replace_schema_metadata({b"fastmix.manifest": json.dumps(about).encode()})
    pq.write_table(changed, tmp_path / "manifest.parquet")
    with pytest.raises(ValueError, match="has manifest version 0, expected 1"):
        read_manifest(tmp_path)


def options(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.add_argument("--quiet", action="store_true")
    return parser.parse_args([*map(str, words)])


def test_command_with_a_real_model(data, tmp_path, capsys):
    out, settings = tmp_path / "out", ("--size", 32, "--steps", 4, "--multiplier", 2, "--strengths", 0.5, 0.75)
    given = options(data, out, "--model", tiny(), "--plain-names", "--batch-size", 4, *settings)
    run(given)
    said = capsys.readouterr()
    manifest, generator, source = read_manifest(out), Generator(tiny()), open_source(data)
    assert said.out.splitlines() == [*summary(manifest).splitlines(), f"wrote {out}"] and said.err == ""
    assert "strength 0.75: 3 of 4 steps" in said.out and len(manifest.made) > 40
    expansion = Expansion.from_json(manifest.about["expansion"])
    assert expansion.metaclass is None and manifest.rows[0]["prompt"] == "a photo of a kind 0"
    for row in manifest.made[3:40:12]:
        image = composite(source, row, expansion)
        made = generator.refine(image[None], [row["prompt"]], row["strength"], 4, 7.5, [row["seed"]])[0]
        expected = Image.fromarray(np.rint(made * 255).astype(np.uint8)).resize((43, 32), Image.Resampling.BILINEAR)
        found = np.asarray(Image.open(out / row["path"])).astype(int)
        assert np.abs(found - np.asarray(expected)).max() <= 2
        assert np.abs(made - image / 255).mean() > 0.02  # it did something
    before = files_of(out)
    run(given)
    assert files_of(out) == before and manifest.rows[0]["model"] == generator.hashes["model"]


def test_command_with_instructions(data, tmp_path):
    words = ("--preset", "diffusemix", "--size", 32, "--steps", 2, "--multiplier", 1, "--prompts", "snowy", "--quiet")
    pool = tmp_path / "pool.npy"
    np.save(pool, np.zeros((1, 32, 32, 3), np.uint8))
    run(options(data, tmp_path / "out", "--model", tiny(edits=True), *words, "--pool", pool))
    rows = read_manifest(tmp_path / "out").rows
    assert {(row["strength"], row["steps"], row["guidance"], row["prompt"]) for row in rows} == {(1.0, 2, 4.0, "snowy")}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "there is no model: give --model DIR, or --finetuned DIR"),
        (("--model", "m"), "calls classes by tokens, and there are none: give --finetuned DIR"),
        (("--model", "m", "--plain-names", "--metaclass", "bird"), "--metaclass is given with --plain-names"),
        (("--model", "m", "--plain-names", "--size", "30"), "size is 30, expected a multiple of 8"),
        (("--finetuned", "{tmp}", "--tokens", "t"), "drop --adapter and --tokens"),
        (("--finetuned", "{tmp}"), "other classes than those of the data (missing: 'crow', 'wren'; new: 'kind_0',"),
        (("--model", "m", "--plain-names", "--ray", "0"), "workers is 0, expected at least 1"),
    ],
)
def test_command_refusals(data, tmp_path, words, message):
    about = {"classes": ["crow", "wren"], "tokens": ["<class_0>", "<class_1>"], "metaclass": "bird", "model": "m"}
    (tmp_path / "finetuned.json").write_text(json.dumps({**about, "model_hash": "h"}))
    filled = [word.replace("{tmp}", str(tmp_path)) for word in words]
    with pytest.raises(ValueError) as caught:
        run(options(data, tmp_path / "out", *filled))
    assert message in str(caught.value) and not (tmp_path / "out").exists()


def test_command_with_what_was_fine_tuned(data, tmp_path):
    few, words = make_patches(tmp_path / "few", 3), ("--size", 32, "--steps", 2, "--multiplier", 1, "--strengths", 1)
    finetune(open_source(few), tmp_path / "tuned", Finetuning(metaclass="bird", steps=1, batch_size=2, size=32), tiny())
    run(options(few, tmp_path / "out", "--preset", "da_fusion", "--finetuned", tmp_path / "tuned", *words, "--quiet"))
    rows = read_manifest(tmp_path / "out").rows
    assert [row["prompt"] for row in rows] == [f"a photo of a <class_{number}> bird" for number in range(3)]
    assert len({rows[0][name] for name in ("model", "adapter", "tokens")} - {None}) == 3
    with pytest.raises(ValueError, match=r"other classes .*\(new: 'kind_3', .* and 2 more\): give"):
        run(options(data, tmp_path / "other", "--finetuned", tmp_path / "tuned", *words))

"""Settings of an expansion, what is drawn for a record, and the pictures that go into the model and follow it."""

import argparse
import json
from dataclasses import asdict, dataclass, replace

import numpy as np
import pytest
from PIL import Image
from scipy.stats import chisquare

from fastmix import Pool
from fastmix.datasets import ArrayDataset
from fastmix.manifest import SCHEMA
from fastmix.offline import command, finetuning
from fastmix.offline.composing import aim, composite, finished, fitting, joint_mask, picture_of, resized
from fastmix.offline.expansion import PRESETS, Expansion, check_apart, executed_steps
from fastmix.offline.records import candidates_of, decided, fractal_of, is_beside, prompts_of
from fastmix.offline.sources import classes_of
from fastmix.photos import cut_patches

HASHES = {"model": "m", "adapter": None, "tokens": "t"}
SEED = 3


@dataclass(frozen=True)
class Given:
    """Maps in memory."""

    maps: np.ndarray
    name: str = "given"

    def take(self, ids):
        return self.maps[ids]


@pytest.fixture(scope="module")
def classes():
    """3000 samples of 10 classes, in turn."""
    labels = np.arange(3000) % 10
    pictures = np.zeros((3000, 1, 1, 3), np.uint8)
    return classes_of(ArrayDataset(pictures, labels, [f"kind_{i}" for i in range(10)]))


def rows_of(expansion, classes, count):
    return [decided(record, expansion, classes, HASHES) for record in range(count)]


def is_uniform(found, choices):
    """By a chi-square test, at a level that a right program fails once in a million."""
    counts = [sum(value == choice for value in found) for choice in choices]
    return sum(counts) == len(found) and chisquare(counts).pvalue > 1e-6


def test_presets_are_those_of_the_papers():
    shown = {name: getattr(Expansion, name)() for name in PRESETS}
    assert {name: each.strengths for name, each in shown.items()} == {
        "sgdmix": (0.5, 0.7, 0.9),
        "diffmix": (0.3, 0.5, 0.7, 0.9),
        "da_fusion": (1.0, 0.75, 0.5, 0.25),
        "diffusemix": (1.0,),
    }
    assert {name: each.multiplier for name, each in shown.items()} == {
        "sgdmix": 5,
        "diffmix": 5,
        "da_fusion": 10,
        "diffusemix": 9,
    }
    assert [name for name, each in shown.items() if each.compose] == ["sgdmix"]
    assert [name for name, each in shown.items() if each.concatenate and each.fractal == 0.2] == ["diffusemix"]
    assert [name for name, each in shown.items() if each.prompt_class == "target" and each.gamma == 0.8] == ["diffmix"]
    assert shown["diffusemix"].guidance == 4 and shown["sgdmix"].guidance == 7.5
    assert Expansion.sgdmix(seed=4, strengths=[1]).strengths == (1,)


@pytest.mark.parametrize("name", PRESETS)
def test_settings_survive_json(name):
    expansion = getattr(Expansion, name)(seed=2**64 - 1)
    assert Expansion.from_json(json.loads(json.dumps(asdict(expansion)))) == expansion
    with pytest.raises(ValueError, match="differ from this version's in dilate"):
        Expansion.from_json({**asdict(expansion), "dilate": 3})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strengths": (0.03,)}, "strength 0.03 of 25 steps leaves none to run"),
        ({"strengths": (1.5,)}, "strength is 1.5, expected a number from 0 to 1"),
        ({"strengths": ()}, "strengths is (), expected a list of one or more"),
        ({"strengths": ("half",)}, "strength is 'half'"),
        ({"prompts": "a photo of a {token}"}, "prompts is 'a photo of a {token}', expected a list"),
        ({"prompts": ("a photo",)}, "prompt 'a photo' has no {token}"),
        ({"prompts": ("a {token} {colour}",)}, "has {colour}, expected none but {token} and {name}"),
        ({"prompts": ("a {token} {",)}, "has {, expected none but"),
        ({"prompts": (" ",)}, "a prompt is ' '"),
        ({"metaclass": ""}, "metaclass is ''"),
        ({"size": 100}, "size is 100, expected a multiple of 8, such as 104"),
        ({"size": 0}, "size is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 1.0}, "seed is 1.0, expected an integer"),
        ({"multiplier": 0}, "multiplier is 0"),
        ({"candidates": True}, "candidates is True"),
        ({"min_area": 0.5, "max_area": 0.5}, "min_area is 0.5, expected less than max_area"),
        ({"same_class": "never"}, "same_class is 'never', expected one of allow, forbid, require"),
        ({"picture": "bmp"}, "picture is 'bmp'"),
        ({"compose": 1}, "compose is 1, expected True or False"),
        ({"guidance": float("nan")}, "guidance is nan"),
        ({"prompt_class": "target"}, "prompt_class is 'target' with compose"),
        ({"gamma": 0.8}, "gamma is 0.8 with prompt_class 'source'"),
        ({"compose": False, "prompt_class": "target", "gamma": 0}, "gamma is 0"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(ValueError) as caught:
        Expansion(**changes)
    assert message in str(caught.value)


def test_executed_steps_are_those_of_diffusers():
    assert [executed_steps(s, 25) for s in (0.3, 0.5, 0.7, 0.9, 1)] == [7, 12, 17, 22, 25]
    assert [executed_steps(s, 4) for s in (0.5, 0.7, 0.9, 1.0)] == [2, 2, 3, 4]


def test_rows_have_the_columns_of_the_manifest(classes):
    (row,) = rows_of(Expansion(multiplier=2), classes, 1)
    assert set(row) | {"status"} == set(SCHEMA.names)
    assert (row["model"], row["adapter"], row["tokens"]) == ("m", None, "t")


def test_rows_are_a_function_of_seed_and_record(classes):
    first, again = (rows_of(Expansion(seed=SEED), classes, 200) for _ in range(2))
    other = rows_of(Expansion(seed=SEED + 1), classes, 200)
    assert first == again
    assert len({row["seed"] for row in first + other}) == 400
    assert all(0 <= row["seed"] < 2**62 for row in first)
    # A class more does not move what is drawn of the strengths and seeds, and nor do more samples.
    fewer = replace(classes, labels=classes.labels[:40], paths=classes.paths[:40])
    assert rows_of(Expansion(seed=SEED), fewer, 200) == first


def test_strengths_are_as_likely(classes):
    expansion = Expansion(seed=SEED)
    rows = rows_of(expansion, classes, 3000)
    assert is_uniform([row["strength"] for row in rows], expansion.strengths)
    pairs = {(row["strength"], row["steps"]) for row in rows}
    assert pairs == {(0.5, 12), (0.7, 17), (0.9, 22)}
    assert all(row["weight"] == 1 and row["target_label"] is None for row in rows)


def test_diffmix_draws_any_class_and_weighs_by_the_strength(classes):
    rows = rows_of(Expansion.diffmix(seed=SEED), classes, 3000)
    assert is_uniform([row["target_label"] for row in rows], range(10))
    assert is_uniform([(row["target_label"] - row["source_label"]) % 10 for row in rows], range(10))
    shares = {row["strength"]: 1 - row["weight"] for row in rows}
    expected = {0.3: 0.382, 0.5: 0.574, 0.7: 0.752, 0.9: 0.919}  # strength ** 0.8
    assert shares == pytest.approx(expected, abs=5e-4)
    assert all(row["target"] is None for row in rows)
    assert all(row["prompt"] == f"a photo of a <class_{row['target_label']}> object" for row in rows)


def test_da_fusion_names_its_own_class(classes):
    rows = rows_of(Expansion.da_fusion(seed=SEED, metaclass="bird"), classes, 300)
    assert all(row["prompt"] == f"a photo of a <class_{row['source_label']}> bird" for row in rows)


def test_every_prompt_is_used_once_a_source(classes):
    expansion = Expansion.diffusemix(seed=SEED)
    rows = rows_of(expansion, classes, 9 * 500)
    for source in range(500):
        assert {row["prompt"] for row in rows[9 * source : 9 * source + 9]} == set(expansion.prompts)
    assert is_uniform([row["prompt"] for row in rows[::9]], expansion.prompts)
    assert prompts_of(expansion, classes) == list(expansion.prompts)


def test_names_of_classes_in_prompts(classes):
    plain = Expansion(metaclass="bird").with_plain_names()
    assert plain.prompts == ("a photo of a {name}",)
    assert prompts_of(plain, classes)[:2] == ["a photo of a kind 0", "a photo of a kind 1"]
    assert len(prompts_of(Expansion(), classes)) == 10


@pytest.mark.parametrize("same_class", ["allow", "forbid", "require"])
@pytest.mark.parametrize("count", [40, 3000])  # either way of shuffling
def test_candidates_are_different_and_never_the_source(classes, same_class, count):
    expansion, labels = Expansion(seed=SEED, candidates=7, same_class=same_class), classes.labels[:count]
    for record in range(0, 5 * count, count // 8):
        found, source = candidates_of(record, expansion, labels), record // 5
        pool = len(labels) // 10 - 1 if same_class == "require" else 7
        assert len(found) == min(7, pool) and (np.diff(found) > 0).all() and source not in found
        equal = labels[found] == labels[source]
        assert same_class == "allow" or (equal == (same_class == "require")).all()


def test_candidates_are_all_as_likely(classes):
    expansion, labels = Expansion(seed=SEED, candidates=8, multiplier=1000), classes.labels[:33]
    found = np.concatenate([candidates_of(record, expansion, labels) for record in range(2000)])
    counts = np.bincount(found, minlength=33)
    # Samples 0 and 1 are the sources, of 1000 records each, so that the other one may be drawn there.
    assert chisquare(counts[2:]).pvalue > 1e-6
    assert counts.sum() == 16000 and abs(counts[:2] - 250).max() < 75  # 5 standard deviations
    everyone = candidates_of(5, replace(expansion, candidates=32), labels)
    np.testing.assert_array_equal(everyone, np.arange(1, 33))


def quadrants(*values):
    """(8, 8) maps of four squares: top left, top right, bottom left, bottom right."""
    return np.kron(np.array(values, np.float32).reshape(2, 2), np.ones((4, 4), np.float32))


SMALL = Expansion(size=8)


def test_truth_table_of_masks_and_composite():
    maps = np.stack([quadrants(1, 1, 0, 0), quadrants(0.4, 0.1, 0.4, 0.1)])
    mask = joint_mask(maps, SMALL)
    np.testing.assert_array_equal(mask.keep, quadrants(1, 1, 1, 0) == 1)  # all that is no background in both
    assert (mask.status, mask.area, mask.leak) == ("made", 0.75, 0.25)
    pictures = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
    row = {"record": 0, "source": 0, "target": 1, "saliency": "given", "status": "made"}
    made = composite(ArrayDataset(pictures, [0, 1]), row, SMALL, Given(maps))
    expected = pictures[0].copy()
    expected[4:, 4:] = pictures[1, 4:, 4:]
    np.testing.assert_array_equal(made, expected)
    assert made.dtype == np.uint8


@pytest.mark.parametrize(
    ("own", "other", "status", "area", "leak"),
    [
        ((1, 0, 0, 0), (0, 0, 0, 1), "made", 0.5, 0.25),
        ((1, 1, 0, 0), (0, 0, 1, 1), "made", 0.5, 0.5),  # together they cover all: the source's own mask alone
        ((1, 0, 0, 0), (5, 5, 5, 5), "made", 0.25, 0.0),  # a target without an object
        ((5, 5, 5, 5), (1, 0, 0, 0), "no contrast", 0.25, 0.25),
        ((np.nan, np.nan, np.nan, np.nan), (1, 0, 0, 0), "no contrast", 0.25, 0.25),
        ((1, 0, 0, np.nan), (1, 0, 0, 0), "made", 0.25, 0.0),
    ],
)
def test_policies_of_masks(own, other, status, area, leak):
    mask = joint_mask(np.stack([quadrants(*own), quadrants(*other)]), SMALL)
    assert (mask.status, mask.area, mask.leak) == (status, area, leak)


def test_masks_that_are_too_small_or_too_large():
    spot = np.zeros((8, 8), np.float32)
    spot[2, 3] = 1
    small = joint_mask(np.stack([spot, spot]), SMALL)
    assert (small.status, small.area) == ("small mask", 1 / 64)
    assert joint_mask(np.stack([spot, spot]), replace(SMALL, min_area=1 / 64)).status == "made"
    large = joint_mask(np.stack([1 - spot, spot]), SMALL)
    assert (large.status, large.area) == ("large mask", 1.0)
    assert joint_mask(np.stack([1 - spot, 0 * spot]), SMALL).status == "large mask"  # 63 of 64, expected < 0.95
    # Together too much, and the source's own mask too little.
    assert joint_mask(np.stack([spot, 1 - spot]), SMALL).status == "small mask"


def test_the_target_is_the_nearest_map(classes):
    maps = np.random.default_rng(1).random((30, 8, 8), dtype=np.float32) * np.arange(1, 31)[:, None, None]
    low, high = maps.min((1, 2), keepdims=True), maps.max((1, 2), keepdims=True)
    flat = ((maps - low) / (high - low)).reshape(30, 64).astype(np.float64)
    apart = np.sqrt(((flat[:, None] - flat[None]) ** 2).sum(2))
    np.fill_diagonal(apart, np.inf)
    expansion = replace(SMALL, multiplier=1, candidates=100)
    for source in range(30):
        row = decided(source, expansion, classes, HASHES)
        aim(row, expansion, classes.labels[:30], Given(maps))
        assert row["target"] == apart[source].argmin()
        assert row["target_label"] == row["target"] % 10
        assert row["distance"] == pytest.approx(apart[source].min(), rel=1e-5)
        assert row["saliency"] == "given"


def test_of_equal_maps_the_first_is_the_target(classes):
    maps = np.tile(quadrants(1, 0, 0, 0), (9, 1, 1))
    row = decided(4, replace(SMALL, multiplier=1), classes, HASHES)
    aim(row, replace(SMALL, multiplier=1), classes.labels[:9], Given(maps))
    assert (row["target"], row["distance"], row["status"]) == (0, 0.0, "made")


def test_unknown_maps_are_no_targets(classes):
    maps = np.stack([quadrants(1, 0, 0, 0), quadrants(*[np.nan] * 4), quadrants(0, 0, 0, 1)])
    expansion = replace(SMALL, multiplier=1)
    row = decided(0, expansion, classes, HASHES)
    aim(row, expansion, classes.labels[:3], Given(maps))
    assert row["target"] == 2
    row = decided(0, expansion, classes, HASHES)
    assert aim(row, expansion, classes.labels[:2], Given(maps[:2])) is None
    assert (row["status"], row["target"], row["target_label"]) == ("no target", None, None)


def test_composite_of_photographs_against_pillow():
    patches, labels = cut_patches(4, side=50)
    source = ArrayDataset(patches[:, :40], labels)
    expansion = Expansion.da_fusion(size=32)
    made = composite(source, {"source": 2, "target": None}, expansion)
    pillow = np.asarray(Image.fromarray(patches[2, :40]).resize((32, 32), Image.Resampling.BILINEAR))
    assert np.abs(made.astype(int) - pillow).max() <= 1
    row = {"record": 0, "source": 2, "target": 3, "saliency": "spectral residual", "status": "made"}
    mixed = composite(source, row, Expansion(size=32))
    own, other = (resized(picture_of(source, i), (32, 32)) for i in (2, 3))
    kept, taken = (mixed == own).all(2), (mixed == other).all(2)
    assert (kept | taken).all() and not kept.all() and not taken.all()


def test_composites_that_cannot_be():
    source = ArrayDataset(np.zeros((2, 9, 9, 3), np.uint8), [0, 1])
    row = {"record": 7, "source": 0, "target": None, "saliency": "maps abc", "status": "no target"}
    with pytest.raises(ValueError, match="record 7 has no target"):
        composite(source, row, SMALL)
    with pytest.raises(ValueError, match="made with maps abc, expected these maps to be given"):
        composite(source, {**row, "target": 1}, SMALL)


def test_halves_and_fractal_by_hand():
    expansion = Expansion.diffusemix(size=64, fractal=0.0)
    original, refined = np.full((64, 64, 3), 255, np.uint8), np.zeros((64, 64, 3), np.float32)
    across = np.interp(np.arange(64) + 0.5, [22, 42], [1, 0])  # 20 px around the middle, 32
    seen = set()
    for record in range(20):
        made = finished(original, refined, record, expansion, None)
        along = (across[None, :] if is_beside(record, expansion) else across[:, None]) * np.ones((64, 64))
        np.testing.assert_allclose(made, np.repeat(along[..., None], 3, 2), atol=1e-6)
        seen.add(is_beside(record, expansion))
    assert seen == {True, False}
    pool = Pool(np.stack([np.full((64, 64, 3), level, np.uint8) for level in (0, 51, 102)]))
    expansion = Expansion.diffusemix(size=64)
    for record in range(20):
        made = finished(original, refined, record, expansion, pool)
        fractal = (0, 0.2, 0.4)[fractal_of(record, expansion, 3)]
        assert made[0, 0, 0] == pytest.approx(0.8 * 1 + 0.2 * fractal, abs=1e-6)
        assert made[63, 63, 2] == pytest.approx(0.2 * fractal, abs=1e-6)


def test_halves_and_fractals_are_as_likely():
    expansion = Expansion.diffusemix(seed=SEED)
    assert is_uniform([is_beside(record, expansion) for record in range(2000)], [True, False])
    assert is_uniform([fractal_of(record, expansion, 5) for record in range(2000)], range(5))


def test_without_halves_and_fractal_nothing_follows():
    refined = np.random.default_rng(0).random((8, 8, 3), dtype=np.float32)
    np.testing.assert_array_equal(finished(np.zeros((8, 8, 3), np.uint8), refined, 3, SMALL, None), refined)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((40, 50), (40, 50)),
        ((128, 96), (85, 64)),
        ((64, 640), (64, 640)),
        ((1, 9), (1, 9)),
        ((2000, 2000), (64, 64)),
    ],
)
def test_pictures_end_in_the_source_s_shape(shape, expected):
    assert fitting(shape, 64) == expected


@pytest.mark.parametrize(
    ("labels", "names", "message"),
    [
        ([0, 1], None, "0 class names, expected at least one"),
        ([0, 1], ["a", "a"], "a class is named 'a', expected different names"),
        ([0, 1], ["a", "b/c"], "a class is named 'b/c'"),
        ([0, 2], ["a", "b"], "expected class numbers in 0..1"),
        (np.eye(2, dtype=np.float32), ["a", "b"], "labels are float32 (2, 2), expected class numbers"),
    ],
)
def test_data_without_plain_classes_is_refused(labels, names, message):
    with pytest.raises(ValueError) as caught:
        classes_of(ArrayDataset(np.zeros((2, 4, 4, 3), np.uint8), labels, names))
    assert message in str(caught.value)


def test_tokens_must_be_one_a_class():
    source = ArrayDataset(np.zeros((2, 4, 4, 3), np.uint8), [0, 1], ["a", "b"])
    assert classes_of(source, ["<x>", "<y>"]).tokens == ("<x>", "<y>")
    with pytest.raises(ValueError, match="there are 1 tokens, expected one for each of the 2 classes"):
        classes_of(source, ["<x>"])


def test_nothing_is_written_into_the_data(tmp_path):
    data = tmp_path / "data"
    for out in (data, data / "out", data / "cat" / ".." / "out"):
        with pytest.raises(ValueError, match=r"lies in the data .*, where it would become a class: name a folder"):
            check_apart(data, out)
    check_apart(data, tmp_path / "data2")
    for run, name in ((command.run, "out"), (finetuning.run, "tuned")):
        with pytest.raises(ValueError, match=f"{name} lies in the data"):
            run(argparse.Namespace(data=str(data), out=str(data / name)))

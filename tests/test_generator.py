"""The generator: one picture is one function of its row, whatever the batch; and nothing is passed over in silence."""

import builtins
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tinysd import FACTOR, WIDTH, tiny, tiny_stable_diffusion

from fastmix.offline.expansion import executed_steps
from fastmix.offline.generator import Adapted, Generator
from fastmix.offline.pipelines import quietly

SIDE = 16
PROMPTS = ["a photo of a bird", "a snowy cat", "the dog", "a photo of a bird"]
SEEDS = [3, 4, 5, 6]


@pytest.fixture(scope="module")
def plain():
    return Generator(tiny())


@pytest.fixture(scope="module")
def edits():
    return Generator(tiny(edits=True))


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """adapter/ with LoRA weights for some of the layers, and tokens/ with two words, one of them of two vectors."""
    root, noise = tmp_path_factory.mktemp("learned"), np.random.default_rng(5)
    network = load_file(f"{tiny()}/unet/diffusion_pytorch_model.safetensors")
    weights = {}
    for name, weight in network.items():
        if name.endswith(("to_q.weight", "to_v.weight")):
            outputs, inputs = weight.shape
            for part, shape in (("lora_A", (2, inputs)), ("lora_B", (outputs, 2))):
                values = noise.normal(size=shape).astype(np.float32)
                weights[f"unet.{name.removesuffix('weight')}{part}.weight"] = torch.from_numpy(values)
    for folder in ("adapter", "tokens"):
        (root / folder).mkdir()
    save_file(weights, root / "adapter" / "pytorch_lora_weights.safetensors")
    for number, shape in enumerate([(WIDTH,), (2, WIDTH)]):
        vector = torch.from_numpy(noise.normal(size=shape).astype(np.float32))
        save_file({f"<class_{number}>": vector}, root / "tokens" / f"{number}.safetensors")
    return root


def pictures(count=4, side=SIDE):
    return np.random.default_rng(1).random((count, side, side, 3), np.float32)


def refined(generator, images, prompts=PROMPTS, seeds=SEEDS, strength=0.5, steps=4):
    return generator.refine(images, prompts, strength, steps, 5.0, seeds)


@pytest.mark.parametrize("kind", ["plain", "edits"])
def test_a_picture_does_not_depend_on_its_batch(kind, request):
    generator, images = request.getfixturevalue(kind), pictures()
    together = refined(generator, images)
    assert together.shape == images.shape and together.dtype == np.float32
    assert together.min() >= 0 and together.max() <= 1 and together.std() > 0.01
    for k in range(4):
        alone = refined(generator, images[k : k + 1], PROMPTS[k : k + 1], SEEDS[k : k + 1])
        np.testing.assert_allclose(alone[0], together[k], rtol=0, atol=1e-4)


def test_seeds_prompts_and_pictures_matter(plain):
    images = pictures(1).repeat(4, 0)
    images[3] = 1 - images[3]
    made = refined(plain, images, [PROMPTS[0], PROMPTS[0], PROMPTS[1], PROMPTS[0]], [3, 4, 3, 3])
    again = refined(plain, images[:1], PROMPTS[:1], [3])
    np.testing.assert_allclose(again[0], made[0], rtol=0, atol=1e-4)
    assert (abs(made[1:] - made[0]).max((1, 2, 3)) > 1e-3).all()


def test_levels_are_shares_of_255(plain):
    levels = np.random.default_rng(2).integers(0, 256, (1, SIDE, SIDE, 3), dtype=np.uint8)
    shares = levels.astype(np.float32) / 255
    np.testing.assert_array_equal(refined(plain, levels, PROMPTS[:1], [1]), refined(plain, shares, PROMPTS[:1], [1]))


def test_pictures_need_not_be_square(plain):
    images = np.random.default_rng(3).random((1, 12, 20, 3), np.float32)
    assert refined(plain, images, PROMPTS[:1], [1]).shape == images.shape
    assert plain.factor == FACTOR


@pytest.mark.parametrize(
    ("strength", "steps"), [(0.3, 25), (0.5, 25), (0.7, 25), (0.9, 25), (1.0, 4), (0.5, 4), (0.7, 4), (0.29, 100)]
)
def test_as_many_steps_are_executed_as_are_said(plain, strength, steps):
    """Counted by diffusers' own hook, on a picture of four latents."""
    done = []

    def tell(_pipeline, step, _time, _tensors):
        done.append(step)
        return {}

    how = {"strength": strength, "num_inference_steps": steps, "guidance_scale": 1.0, "output_type": "latent"}
    with quietly():
        plain._pipeline(prompt="a", image=torch.zeros(1, 3, 4, 4), callback_on_step_end=tell, **how)
    assert len(done) == executed_steps(strength, steps) == plain.executed_steps(strength, steps)


def test_a_model_that_edits_executes_all_steps(edits):
    assert edits.edits and edits.executed_steps(0.1, 4) == 4
    images = pictures(1)
    made = [refined(edits, images, PROMPTS[:1], [1], strength) for strength in (0.1, 0.9)]
    np.testing.assert_array_equal(*made)


@pytest.mark.parametrize(("strength", "steps"), [(0.2, 4), (0.0, 25), (1.1, 25), (-0.5, 25)])
def test_no_step_is_refused(plain, strength, steps):
    with pytest.raises(ValueError, match=f"strength (is )?{strength}"):
        refined(plain, pictures(1), PROMPTS[:1], [1], strength, steps)


def test_round_trip_is_the_autoencoder(plain):
    images = pictures(2)
    made = plain.round_trip(images)
    vae = plain._pipeline.vae
    with torch.no_grad():
        moments = vae.quant_conv(vae.encoder(torch.from_numpy(images).permute(0, 3, 1, 2) * 2 - 1))
        expected = vae.decoder(vae.post_quant_conv(moments[:, :4])) / 2 + 0.5
    np.testing.assert_allclose(made, expected.clamp(0, 1).permute(0, 2, 3, 1), rtol=0, atol=1e-5)
    assert made.dtype == np.float32


@pytest.mark.parametrize(
    ("images", "prompts", "seeds", "message"),
    [
        (np.zeros((1, 15, 16, 3), np.uint8), ["a"], [0], "15 x 16 px, expected multiples of 2"),
        (np.zeros((16, 16, 3), np.uint8), ["a"], [0], r"shape \(16, 16, 3\), expected \(B, H, W, 3\)"),
        (np.full((1, 16, 16, 3), 2.0), ["a"], [0], r"float64 2.0 to 2.0, expected \[0, 1\] or uint8"),
        (np.full((1, 16, 16, 3), np.nan), ["a"], [0], "nan to nan"),
        (np.zeros((1, 16, 16, 3), np.int64), ["a"], [0], "images are int64"),
        (np.zeros((2, 16, 16, 3), np.uint8), ["a"], [0, 1], "2 pictures have 1 prompts and 2 seeds"),
        (np.zeros((1, 16, 16, 3), np.uint8), ["a <class_0> bird"], [0], "token <class_0> of prompt 'a <class_0> bird'"),
    ],
)
def test_refusals(plain, images, prompts, seeds, message):
    with pytest.raises(ValueError, match=message):
        refined(plain, images, prompts, seeds)


def test_an_adapter_changes_pictures_and_none_does_not(plain, learned):
    images, file = pictures(2), learned / "adapter" / "pytorch_lora_weights.safetensors"
    base = refined(plain, images, PROMPTS[:2], SEEDS[:2])
    for adapter in (learned / "adapter", file):
        adapted = Generator(tiny(), adapter)
        assert abs(refined(adapted, images, PROMPTS[:2], SEEDS[:2]) - base).max() > 1e-3
        assert adapted.hashes["adapter"] is not None and adapted.hashes["model"] == plain.hashes["model"]
    np.testing.assert_array_equal(refined(Generator(tiny()), images, PROMPTS[:2], SEEDS[:2]), base)


def test_an_adapter_is_added_to_the_weights(learned):
    """W + B A, by hand."""
    weights = load_file(learned / "adapter" / "pytorch_lora_weights.safetensors")
    adapted, other = Generator(tiny(), learned / "adapter"), Generator(tiny())
    state = other._pipeline.unet.state_dict()
    for name, b in weights.items():
        if "lora_B" in name:
            a = weights[name.replace("lora_B", "lora_A")]
            state[name.removeprefix("unet.").replace("lora_B.", "")] += b @ a
    images = pictures(1)
    made, expected = (refined(each, images, PROMPTS[:1], [1]) for each in (adapted, other))
    np.testing.assert_allclose(made, expected, rtol=0, atol=1e-4)


def _extra(weights):
    name = next(iter(weights)).replace("down_blocks.1", "down_blocks.7")
    assert name not in weights
    return {**weights, name: torch.zeros(2, WIDTH)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: {"unet.conv.weight": torch.zeros(2)}, "holds no LoRA weights"),
        (lambda weights: {f"unet.nowhere.{name[5:]}": weight for name, weight in weights.items()}, "adapter"),
        (lambda weights: {name.replace("unet", "unets"): weight for name, weight in weights.items()}, "have no place"),
        (lambda weights: {name: torch.cat([weight, weight]) for name, weight in weights.items()}, "does not fit"),
        (_extra, "adapter"),
    ],
    ids=["none", "elsewhere", "no part", "shapes", "one too many"],
)
def test_adapters_that_fit_nowhere(learned, tmp_path, change, message):
    weights = load_file(learned / "adapter" / "pytorch_lora_weights.safetensors")
    save_file(change(weights), tmp_path / "any.safetensors")
    with pytest.raises(ValueError, match=message):
        Generator(tiny(), tmp_path)


def test_adapters_that_are_no_files(tmp_path):
    for path, message in ((tmp_path, "0 safetensors files"), (tmp_path / "none", "0 safetensors files")):
        with pytest.raises(ValueError, match=message):
            Generator(tiny(), path)
    (tmp_path / "broken.safetensors").write_bytes(b"no weights")
    with pytest.raises(ValueError, match=r"cannot read adapter file .*broken\.safetensors"):
        Generator(tiny(), tmp_path)


def test_tokens_are_single_words_to_the_model(learned):
    generator = Generator(tiny(), tokens=learned / "tokens")
    assert generator.token_names == ["<class_0>", "<class_1>"]
    generator.check_prompts(["a photo of a <class_0> bird", "a<class_1>bird"])
    encoder, tokenizer = generator._pipeline.text_encoder, generator._pipeline.tokenizer
    rows = encoder.get_input_embeddings().weight.detach()
    for number, names in enumerate((["<class_0>"], ["<class_1>", "<class_1>_1"])):
        (vector,) = load_file(learned / "tokens" / f"{number}.safetensors").values()
        for name, expected in zip(names, vector.reshape(-1, WIDTH), strict=True):
            np.testing.assert_array_equal(rows[tokenizer.convert_tokens_to_ids(name)], expected)
    base = Generator(tiny())
    old = base._pipeline.text_encoder.get_input_embeddings().weight.detach()
    np.testing.assert_array_equal(rows[: len(old)], old)
    images, say = pictures(1), "a photo of a {} bird".format
    made = [refined(generator, images, [say(token)], [1]) for token in ("<class_0>", "<class_1>")]
    assert abs(made[0] - made[1]).max() > 1e-4
    without = (refined(each, images, ["a photo of a bird"], [1]) for each in (generator, base))
    np.testing.assert_array_equal(*without)


@pytest.mark.parametrize(
    "prompt", ["a <class_2> bird", "a <class_00> bird", "<class 0>", "a <bird>", "a <class_0> or <class_7>", "<>"]
)
def test_unknown_tokens_are_refused(learned, prompt):
    generator = Generator(tiny(), tokens=learned / "tokens")
    with pytest.raises(ValueError, match="added are: <class_0>, <class_1>"):
        generator.check_prompts(["a photo of a <class_0> bird", prompt])


def test_prompts_that_would_be_cut_off(tmp_path, capfd):
    generator = Generator(tiny_stable_diffusion(tmp_path, words=8))
    generator.check_prompts(["a photo of a bird the"])  # 6, and start and end
    with pytest.raises(ValueError, match="has 7 tokens, expected at most 6"):
        generator.check_prompts(["a photo of a bird of the"])
    assert capfd.readouterr().err == ""


def test_vectors_of_a_token_count_as_words(learned, tmp_path):
    generator = Generator(tiny_stable_diffusion(tmp_path, words=8), tokens=learned / "tokens")
    generator.check_prompts(["a photo of a bird <class_0>"])
    with pytest.raises(ValueError, match="has 7 tokens, expected at most 6"):
        generator.check_prompts(["a photo of a bird <class_1>"])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"has no \*\.safetensors"),
        ({"a": {"<a>": WIDTH}, "b": {"<a>": WIDTH}}, "'<a>' of .* is already in another file"),
        ({"a": {"bird</w>": WIDTH}}, "already in the model's vocabulary"),
        ({"a": {"<a>": WIDTH + 1}}, rf"shape \({WIDTH + 1},\), expected \({WIDTH},\)"),
        ({"a": {"<a>": WIDTH, "<b>": WIDTH}}, "holds 2 tensors, expected one"),
        ({"a": {"<Wren>": WIDTH}, "b": {"<wren>": WIDTH}}, "cannot be told from another one"),
    ],
)
def test_tokens_that_are_wrong(tmp_path, files, message):
    for name, tensors in files.items():
        save_file({key: torch.zeros(width) for key, width in tensors.items()}, tmp_path / f"{name}.safetensors")
    with pytest.raises(ValueError, match=message):
        Generator(tiny(), tokens=tmp_path)


def test_tokens_that_are_no_folder(tmp_path):
    with pytest.raises(ValueError, match="none is no folder"):
        Generator(tiny(), tokens=tmp_path / "none")


def test_hashes_are_of_the_contents(plain, learned, tmp_path):
    assert plain.hashes["adapter"] is None and plain.hashes["tokens"] is None
    copy = Path(shutil.copytree(tiny(), tmp_path / "copy"))
    assert Generator(copy).hashes == plain.hashes
    for name in ("unet/diffusion_pytorch_model.safetensors", "vae/config.json", "tokenizer/tokenizer.json"):
        data = (copy / name).read_bytes()
        last = bytes([data[-1] ^ 1]) if name.endswith("safetensors") else data[-1:] + b" "
        (copy / name).write_bytes(data[:-1] + last)
        assert Generator(copy).hashes["model"] != plain.hashes["model"]
        (copy / name).write_bytes(data)
    assert Generator(copy).hashes == plain.hashes
    seen = {Generator(tiny(), tokens=learned / "tokens").hashes["tokens"]}
    more = shutil.copytree(learned / "tokens", tmp_path / "tokens")
    save_file({"<class_2>": torch.zeros(WIDTH)}, more / "2.safetensors")
    seen.add(Generator(tiny(), tokens=more).hashes["tokens"])
    assert len(seen) == 2 and None not in seen


def test_an_adapter_of_another_model_is_refused(plain):
    same = Adapted(tiny(), model_hash=plain.hashes["model"])
    assert same.load().hashes == plain.hashes
    with pytest.raises(ValueError, match="expected 0123, that of the model the adapter was trained with"):
        Adapted(tiny(), model_hash="0123").load()


@pytest.mark.parametrize(
    ("model", "message"),
    [("{tmp}", "no model_index.json"), ("{tmp}/none", "neither a folder nor found"), ("no/model", "neither a folder")],
)
def test_models_that_are_not_there(tmp_path, model, message):
    with pytest.raises(FileNotFoundError, match=message):
        Generator(model.replace("{tmp}", str(tmp_path)))


def test_models_that_are_damaged(tmp_path):
    copy = shutil.copytree(tiny(), tmp_path / "copy")
    file = Path(copy, "unet", "diffusion_pytorch_model.safetensors")
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match="cannot load model"):
        Generator(copy)


def test_devices_and_dtypes_that_are_not_there():
    with pytest.raises(ValueError, match="cannot be run on 'abacus'"):
        Generator(tiny(), device="abacus")
    with pytest.raises(ValueError, match="dtype is 'int8', expected one of float32, float16, bfloat16"):
        Generator(tiny(), dtype="int8")


def test_half_precision(plain):
    """On the CPU in bfloat16, whose 8 bits a random network blows up; near enough to show that nothing else changed."""
    half, images = Generator(tiny(), dtype="bfloat16"), pictures(1)
    made, expected = (refined(each, images, PROMPTS[:1], [1]) for each in (half, plain))
    assert made.dtype == np.float32 and abs(made - expected).mean() < 0.05
    assert abs(half.round_trip(images) - plain.round_trip(images)).mean() < 0.01


def test_nobody_else_sees_the_draws_or_bars(learned, capfd):
    torch.rand(3)  # or it might stand where the last one left it
    before = torch.get_rng_state()
    generator = Generator(tiny(), learned / "adapter", learned / "tokens")
    refined(generator, pictures(1), PROMPTS[:1], [1])
    assert torch.equal(torch.get_rng_state(), before)
    assert capfd.readouterr() == ("", "")


def test_what_is_missing_is_named(monkeypatch):
    real = builtins.__import__

    def without_peft(name, *rest):
        if name == "peft":
            raise ModuleNotFoundError("No module named 'peft'", name="peft")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_peft)
    with pytest.raises(ModuleNotFoundError, match=r'need peft, not installed: pip install "fastmix\[diffusion\]"'):
        Generator(tiny())

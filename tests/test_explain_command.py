"""`fastmix explain`: what it writes and prints for networks trained on real digits, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

from fastmix import DataLoader
from fastmix.__main__ import main
from fastmix.explain import load_model
from fastmix.learn.filling import Filling, Normalised
from fastmix.learn.prototypes import CONTROLS, make_prototypes

ROOT = Path(__file__).parents[1]
NAMES = ("five", "nought", "three", "two")  # in the order of folders, which is not that of the digits
DIGITS = (5, 0, 3, 2)
NET = """
import torch
from torch import nn

from layers import Flat  # a neighbour of this file


def make_net(width=8, outputs=4):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 16, 3, 2, 1), nn.ReLU(),
        Flat(), nn.Linear(256, outputs),
    )


def forgot():
    make_net()


class Picky(nn.Module):
    def forward(self, images):
        return nn.functional.conv2d(images, images.new_zeros(1, 1, 3, 3))


class Stubborn(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.eye(4)[1])

    def forward(self, images):
        return self.bias + 0 * images.sum((1, 2, 3))[:, None]


net = make_net(5)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """digits/ with 240 pictures of four classes, net.py, and the weights of two networks trained on other digits."""
    root, data = tmp_path_factory.mktemp("explain"), load_digits()
    (root / "net.py").write_text(NET)
    (root / "layers.py").write_text("from torch import nn\n\n\nclass Flat(nn.Flatten):\n    pass\n")
    used = np.concatenate([np.flatnonzero(data.target == digit)[:60] for digit in DIGITS])
    for number in used:
        file = root / "digits" / NAMES[DIGITS.index(data.target[number])] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        levels = np.kron(data.images[number] * 255 / 16, np.ones((2, 2))).astype(np.uint8)
        Image.fromarray(levels).save(file)
    rest = np.setdiff1d(np.flatnonzero(np.isin(data.target, DIGITS)), used)
    for number, (name, width) in enumerate((("model", 8), ("judge", 12))):
        rows = rest[number::2]
        train(root, name, width, data.images[rows], [DIGITS.index(label) for label in data.target[rows]])
    return root


def train(root, name, width, images, labels):
    """Weights in NAME.pt: those of the judge as a parallel wrapper writes them, inside a checkpoint."""
    with torch.random.fork_rng():
        torch.manual_seed(len(name) + width)
        model = load_model(f"{root}/net.py:make_net", {"width": width})
    x = torch.tensor(np.kron(images / 16, np.ones((1, 2, 2))), dtype=torch.float32)[:, None].expand(-1, 3, -1, -1)
    y, optimizer = torch.tensor(labels), torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model((x - 0.5) / 0.5), y).backward()
        optimizer.step()
    weights = model.state_dict()
    wrapped = {"model": {f"module.{key}": value for key, value in weights.items()}, "epoch": 60}
    torch.save(weights if name == "model" else wrapped, root / f"{name}.pt")


def words(root, *more):
    half = ["0.5"] * 3
    model = [f"{root}/net.py:make_net", f"{root}/digits", "--weights", f"{root}/model.pt"]
    return ["explain", *model, "--size", "16", "--whole", "--mean", *half, "--std", *half, "--workers", "0", *more]


def judged(root):
    return [
        "--judge",
        f"{root}/net.py:make_net",
        "--judge-args",
        '{"width": 12}',
        "--judge-weights",
        f"{root}/judge.pt",
    ]


def refusal(capsys, argv):
    """The one line on stderr of a command that must fail with status 2 and print nothing else."""
    try:
        status = main(argv)
    except SystemExit as error:
        status = error.code
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1) and err.startswith("fastmix: error: ")
    return err


def test_table_findings_and_picture(place, tmp_path, capsys):
    target, path = tmp_path / "prototypes.png", [*sys.path]
    assert main(words(place, *judged(place), "-o", str(target), "--images", "200", "--masks", "2")) == 0
    out, err = capsys.readouterr()
    head, names, kinds, *lines = out.splitlines()
    assert err == "" and sys.path == path
    assert head == "200 pictures of 4 of 4 classes, 2 masks each" and lines[-1] == f"wrote {target}"
    assert names.split() == ["named", "by", "the", "model", "the", "judge"]
    assert kinds.split() == ["as", "class", "own", "other", "own", "other"]
    assert [line[:16].strip() for line in lines[:7]] == list(CONTROLS)
    assert all(len(line[16:].split()) == 4 for line in lines[:7])
    controls = [line.split(":")[0] for line in lines[7:-1]]
    assert controls == [
        *(name for name in ("zero", "noise", "shuffled", "random weights") for _ in range(2)),
        *("wrong class", "wrong class", "resemblance", "judge"),
    ]
    assert lines[-2].startswith("judge: it tells the fills from noise and from shuffled fills")
    with Image.open(target) as image:  # 16 px shown tenfold: five columns, and four rows with captions
        assert image.width > 5 * 160 and image.height > 4 * 160


def test_json_has_the_figures_of_the_library(place, tmp_path, capsys):
    main(words(place, *judged(place), "-o", str(tmp_path / "a.png"), "--json", "--seed", "3", "--mode", "progressive"))
    told = json.loads(capsys.readouterr().out)
    models = [
        load_model(f"{place}/net.py:make_net", {"width": width}, f"{place}/{name}.pt")
        for width, name in ((8, "model"), (12, "judge"))
    ]
    model, judge = (Normalised(each, [0.5] * 3, [0.5] * 3) for each in models)
    loader = DataLoader(str(place / "digits"), 50, crop=None, size=16, output="uint8")
    ids = iter(np.split(np.arange(240), [50, 100, 150, 200]))
    batches = [(images / 255, labels, next(ids)) for images, labels in loader]
    report = make_prototypes(model, batches, range(4), Filling("progressive", patch=2), seed=3, judge=judge)
    assert told["fill_in"] == {
        "mode": "progressive", "ratio": 0.25, "patch": 2, "threshold": "relative", "level": 0.25, "base": 0,
    }  # fmt: skip
    assert told["settings"]["seed"] == 3 and told["settings"]["mean"] == [0.5] * 3
    assert (told["pictures"], told["masks"], told["supported"]) == (240, 4, report.supported)
    for got, expected in zip(told["controls"], report.controls, strict=True):
        assert (got["name"], got["by"]) == (expected.name, expected.by)
        for figure in ("right", "wrong", "gain", "low", "high"):
            assert got[figure] == pytest.approx(getattr(expected, figure), abs=1e-9)
    expected = zip(NAMES, report.prototypes.count.tolist(), report.prototypes.recognised.tolist(), strict=True)
    assert told["classes"] == [{"name": n, "fills": f, "recognised": r} for n, f, r in expected]
    assert told["nearest_to_own_mean"]["classes"] == 4 and told["nearest_to_own_mean"]["filtered"] == 4


def test_the_picture_shows_the_prototypes(place, tmp_path, capsys):
    """First in each row is the mean picture of a class, ten screen pixels for one."""
    main(words(place, "-o", str(tmp_path / "a.png"), "--classes", "two", "nought", "--images", "60"))
    assert "60 pictures of 2 of 4 classes, 4 masks each" in capsys.readouterr().out
    page = np.asarray(Image.open(tmp_path / "a.png").convert("RGB"), np.int64)
    for name in ("nought", "two"):  # 30 of its 60 pictures, evenly spread
        files = sorted((place / "digits" / name).iterdir())[::2]
        mean = np.mean([np.asarray(Image.open(file)) for file in files], 0).repeat(10, 0).repeat(10, 1)
        seen = np.lib.stride_tricks.sliding_window_view(page[..., 0], (160, 160))[:, :100]
        corners = np.argwhere(
            (abs(seen[..., 80, 80] - mean[80, 80]) <= 1) & (abs(seen[..., 20, 80] - mean[20, 80]) <= 1)
        )
        assert any((abs(seen[y, x] - mean) <= 1).all() for y, x in corners)


def test_without_a_judge_nothing_is_claimed(place, tmp_path, capsys):
    main(words(place, "-o", str(tmp_path / "a.png"), "--masks", "1", "--images", "40"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["named", "by", "the", "model"]
    assert lines[-2].startswith("judge: none (--judge); that a model recognises its own fills does not show")


def test_a_model_that_fills_nothing(place, tmp_path, capsys):
    given = words(place, *judged(place), "-o", str(tmp_path / "a.png"), "--masks", "1")
    given[1] = f"{place}/net.py:Stubborn"
    del given[3:5]  # no weights
    assert main(given) == 0
    *_, empty, judge, _ = capsys.readouterr().out.splitlines()
    assert empty == "empty: 100.0% of the fills changed nothing"
    assert judge.startswith("judge: it does not tell the fills from noise and shuffled fills: nothing shows")


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from fastmix.__main__ import main\n"
        "try: main(['explain', '--help'])\n"
        "except SystemExit as error: assert error.code == 0\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    *text, loaded = done.stdout.splitlines()
    assert set(loaded.split()).isdisjoint({"torch", "numba", "PIL", "tqdm"})
    assert any("--judge-weights FILE" in line for line in text)


def test_modules_of_the_working_directory_and_their_models(place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    assert load_model("net:net")[0].out_channels == 5  # a model itself
    assert load_model("torchvision.models:resnet18", {"num_classes": 7}).fc.out_features == 7
    monkeypatch.delitem(sys.modules, "net")
    (tmp_path / "net.py").write_text("import torch\nmake = torch.nn.Identity\n")
    assert isinstance(load_model(f"{tmp_path}/net.py:make"), nn.Identity)  # the file that was named, no other


def test_bars_are_for_terminals_only(place, tmp_path, monkeypatch, capsys):
    given = words(place, "-o", str(tmp_path / "a.png"), "--masks", "1", "--images", "40")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    main([*given, "--quiet"])
    assert capsys.readouterr().err == ""
    main(given)
    assert "filling in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--classes", "twos"], "the folder has no class 'twos', expected one such as two"),
        (["--classes", "two"], "classes are (3,), expected at least 2 different labels"),
        (["--images", "0"], "images is 0, expected at least 1"),
        (["--masks", "0"], "masks is 0, expected at least 1"),
        (["--ratio", "2"], "ratio is 2.0, expected 0 < ratio <= 1"),
        (["--mode", "half"], "mode is 'half', expected one of 'random'"),
        (["--seed", "-1"], "seed is -1"),
        (["--device", "abacus"], "cannot be run on 'abacus'"),
        (["--model-args", "{width"], "argument --model-args: invalid loads value: '{width'"),
        (["--model-args", "[8]"], 'arguments are [8], expected an object such as {"num_classes": 10}'),
        (["--model-args", '{"outputs": 10}'], "model.pt do not fit: Error(s) in loading state_dict"),
        (["--weights", "{tmp}/none.pt"], "none.pt"),
        (["--weights", "{root}/net.py"], "cannot read weights"),
        (["--weights", "{root}/code.pt"], "cannot read weights"),
        (["--weights", "{root}/list.pt"], "list.pt are a list, expected a state_dict"),
        (["--judge", "{root}/net.py:make_net", "--judge-weights", "{root}/model.pt"], "judge has the model's weights"),
        (["--judge", "net.py"], "model is 'net.py', expected FILE.py:FUNCTION or MODULE:FUNCTION"),
        (["--judge", "{tmp}/none.py:net"], "no model file"),
        (["--judge", "no_such_module:net"], "No module named 'no_such_module'"),
        (["--judge", "{root}/net.py:make"], "net.py has no function 'make'"),
        (["--judge", "{root}/net.py:forgot"], "net.py:forgot gives a NoneType, expected a torch.nn.Module"),
        (["--judge", "{root}/net.py:Picky"], "a model cannot be run on 'cpu': Given groups=1"),
        (["--judge", "torch.nn:Identity"], "the model gives torch.float32 (2, 3, 16, 16)"),
        (["--judge", "{root}/net.py:make_net", "--judge-args", '{"outputs": 9}'], "9 outputs, expected the 4 classes"),
        (["-o", "{tmp}/a.txt"], "named *.png or *.jpg or *.webp"),
    ],
)
def test_refusals(more, message, place, tmp_path, capsys):
    torch.save([1], place / "list.pt")
    torch.save(Path("no tensor"), place / "code.pt")
    filled = [word.replace("{root}", str(place)).replace("{tmp}", str(tmp_path)) for word in more]
    assert message in refusal(capsys, words(place, "-o", str(tmp_path / "a.png"), *filled))
    assert list(tmp_path.iterdir()) == []


def test_a_broken_picture_is_named(place, tmp_path, capsys):
    for name in ("a", "b", "c", "d"):
        (tmp_path / "digits" / name).mkdir(parents=True)
        (tmp_path / "digits" / name / "0.png").write_bytes(b"no picture")
    given = words(place, "-o", str(tmp_path / "a.png"))
    given[2] = str(tmp_path / "digits")
    assert "a/0.png" in refusal(capsys, given)

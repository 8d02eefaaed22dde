"""The command line: what it prints, writes and refuses, and what it does not load."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastmix import bench, cli, pools
from fastmix.__main__ import main
from fastmix.datasets import open_source
from fastmix.fractals import fractal
from fastmix.rng import Key

ROOT = Path(__file__).parent.parent
ROW = {"method", "images_per_s", "ratio_to_plain"}
SMALL = ["--size", "32", "--batch-size", "4", "--rounds", "1", "--workers", "1"]


@pytest.fixture(autouse=True)
def small_cache(tmp_path_factory, monkeypatch):
    """A cache folder of its own, and a default pool of three small fractals."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(pools, "_COUNT", 3)
    monkeypatch.setattr(pools, "_SIDE", 64)
    monkeypatch.setattr(pools, "user_cache_dir", lambda name: str(folder / name))
    return folder / "fastmix"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes of five JPEGs."""
    root = tmp_path_factory.mktemp("photos")
    for number in range(10):
        path = root / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        ramp = np.linspace(0, 255, 60 * 80 * 3).reshape(60, 80, 3)
        Image.fromarray(np.roll(ramp, number * 999).astype(np.uint8)).save(path)
    return root


def refusal(capsys, *argv):
    """The one line on stderr of a command that must fail with status 2 and print nothing else."""
    try:
        status = main([str(word) for word in argv])
    except SystemExit as error:
        status = error.code
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1) and err.startswith("fastmix: error: ")
    return err


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from fastmix.__main__ import main\n"
        "for words in ([], ['info'], ['show'], ['pool'], ['pool', 'make'], ['pool', 'pack'], ['bench'], ['demo']):\n"
        "    try: main([*words, '--help'])\n"
        "    except SystemExit as error: assert error.code == 0\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    *text, loaded = done.stdout.splitlines()
    assert set(loaded.split()).isdisjoint({"torch", "numba", "PIL", "simplejpeg", "matplotlib", "tqdm", "platformdirs"})
    for word in ("COMMAND", "METHOD", "--preset {imagenet,cifar}", "--grey", "OUT.npy", "--batch-size", "--folder"):
        assert any(word in line for line in text), word


def test_the_module_runs():
    command = [sys.executable, "-m", "fastmix", "info", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    facts = json.loads(done.stdout)
    assert done.stderr == "" and facts["missing"] == {} and facts["backend"] == "cpu"
    assert facts["numpy"] == version("numpy") and facts["cores"] >= 1


def test_info(small_cache, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "skimage", None)  # as if it were not installed
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert f"numba         {version('numba')}\n" in text and f"cache         {small_cache}\n" in text
    assert "default_pool  not yet made" in text and "[torch]       complete\n" in text
    assert "[demo]        scikit-image does not work (" in text and 'pip install "fastmix[demo]"' in text
    pools.default_pool()
    capsys.readouterr()
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert Path(facts["default_pool"]).parent == small_cache and list(facts["missing"]) == ["demo"]


@pytest.mark.parametrize("name", cli.METHODS)
def test_show(name, folder, tmp_path, capsys):
    target = tmp_path / "grid.png"
    words = ["show", name, str(folder), "-o", str(target), "--size", "48", "--count", "3", "--preset", "cifar"]
    assert main([*words, "--seed", "5"]) == 0
    assert capsys.readouterr().out == f"wrote {target}\n"
    with Image.open(target) as image:
        assert image.width > 3 * 192 and image.height > 2 * 192  # three columns, shown at four times their size
        first = np.asarray(image)
    main([*words, "--seed", "5"])
    with Image.open(target) as again:
        np.testing.assert_array_equal(np.asarray(again), first)


def test_show_takes_a_picture_and_a_pool(folder, tmp_path, capsys):
    Path(tmp_path / "pool").mkdir()
    assert main(["pool", "make", "--count", "2", "--size", "40", str(tmp_path / "pool.npy")]) == 0
    words = ["show", "pixmix", str(folder / "a" / "0.jpg"), "-o", str(tmp_path / "a.jpg"), "--size", "32"]
    assert main([*words, "--pool", str(tmp_path / "pool.npy")]) == 0
    assert capsys.readouterr().err == ""  # the default pool was not made
    assert "smaller than the 48x48 pictures" in refusal(capsys, *words[:-1], 48, "--pool", str(tmp_path / "pool.npy"))


def test_pool_make(tmp_path, capsys):
    for color, flag in ((True, "--color"), (False, "--grey")):
        path = tmp_path / f"{flag}.npy"
        words = ["--kind", "fractal", "--count", "3", "--size", "24", "--seed", "7", flag, "--quiet", str(path)]
        assert main(["pool", "make", *words]) == 0
        assert capsys.readouterr() == (f"wrote {path}: 3 pictures of 24 x 24 px, 0.0 MB\n", "")
        np.testing.assert_array_equal(np.load(path)[2], fractal(Key(7), 2, 24, color))


def test_pool_pack(folder, tmp_path, capsys):
    assert main(["pool", "pack", str(folder), str(tmp_path / "pool.npy"), "--size", "20"]) == 0
    assert capsys.readouterr().out.endswith("10 pictures of 20 x 20 px, 0.0 MB\n")
    assert np.load(tmp_path / "pool.npy").shape == (10, 20, 20, 3)


def test_bench_prints_json_and_nothing_else(folder, capsys):
    assert main(["bench", str(folder), *SMALL, "--images", "8", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result) == {"machine", "rows"} and result["machine"] == bench.machine()
    assert [row["method"] for row in result["rows"]] == ["plain", *cli.METHODS]
    plain = result["rows"][0]["images_per_s"]
    for row in result["rows"]:
        assert set(row) == ROW and row["images_per_s"] > 0
        assert row["ratio_to_plain"] == pytest.approx(row["images_per_s"] / plain, rel=0.02)


def test_bench_prints_a_table_and_plots(folder, tmp_path, capsys):
    words = ["bench", str(folder), *SMALL, "--methods", "cutmix", "pixmix", "--plot", str(tmp_path / "bars.png")]
    assert main(words) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["images/s", "of", "plain"] and lines[0].split()[2] == "1.00"
    assert [line.split()[0] for line in lines] == ["plain", "cutmix", "pixmix"]
    with Image.open(tmp_path / "bars.png") as image:
        assert len(image.convert("RGB").getcolors(1 << 16)) > 20


def test_bench_counts_every_picture_once_a_round(folder, monkeypatch):
    """Rates are pictures by time: with a clock that ticks once an epoch they are the pictures of an epoch."""
    clock = iter(range(1000))
    monkeypatch.setattr(bench.time, "perf_counter", lambda: next(clock))
    settings = bench.Settings(size=16, batch_size=4, workers=0, rounds=2, images=7)
    rows = bench.measure(open_source(folder), {"cutmix": cli.METHODS["cutmix"]()}, settings, True)
    assert [(row["images_per_s"], row["ratio_to_plain"]) for row in rows] == [(7, 1), (7, 1)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: COMMAND (see fastmix --help)"),
        (["shuffle"], "invalid choice: 'shuffle'"),
        (["show", "mixdown", "{photos}", "-o", "a.png"], "'mixdown' (choose from"),
        (["show", "mixup", "{photos}"], "required: -o/--output (see fastmix show --help)"),
        (["show", "mixup", "missing", "-o", "{tmp}/a.png"], "no picture or folder missing"),
        (["show", "mixup", "{photos}/a/0.jpg", "-o", "{tmp}/a.png"], "there is only 0.jpg: pass a folder"),
        (["show", "mixup", "{photos}", "-o", "{tmp}/b/a.png"], "expected a file in a folder that exists"),
        (["show", "mixup", "{photos}", "-o", "{tmp}/a.txt"], "named *.png or *.jpg or *.webp"),
        (["show", "mixup", "{photos}", "-o", "{tmp}/a.png", "--seed", "-1"], "seed is -1, expected 0 <= seed"),
        (["show", "mixup", "{photos}", "-o", "{tmp}/a.png", "--count", "0"], "count is 0, expected at least 1"),
        (["show", "pixmix", "{photos}", "-o", "{tmp}/a.png", "--pool", "{tmp}/p.npy"], "cannot open pool"),
        (["pool", "make", "{tmp}/p.npy", "--size", "8"], "size is 8, expected 16..2048"),
        (["pool", "make", "{tmp}/p.npy", "--grey", "--color"], "not allowed with argument --grey"),
        (["pool", "make", "{tmp}/p.npy", "--kind", "julia"], "'julia'"),
        (["pool", "pack", "{tmp}", "{tmp}/p.npy"], "no pictures in"),
        (["bench", "missing", "--quiet"], "'missing' does not exist"),
        (["bench", "{photos}/a"], "has no subfolders, expected one a class"),
        (["bench", "{photos}", "--rounds", "0"], "rounds is 0, expected at least 1"),
        (["bench", "{photos}", "--plot", "{tmp}/p.npy"], "named *.png or *.pdf"),
        (["demo", "--folder", "{photos}"], "is not empty: name a new one"),
    ],
)
def test_refusals(words, message, folder, tmp_path, capsys):
    assert message in refusal(capsys, *[word.format(photos=folder, tmp=tmp_path) for word in words])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("broken", [b"", b"no picture"])
def test_a_broken_picture_is_named(broken, tmp_path, capsys):
    for number in range(4):
        (tmp_path / "c" / f"{number}.jpg").parent.mkdir(exist_ok=True)
        (tmp_path / "c" / f"{number}.jpg").write_bytes(broken)
    assert "c/" in refusal(capsys, "show", "augmix", tmp_path, "-o", tmp_path / "a.png")
    assert "c/" in refusal(capsys, "bench", tmp_path, *SMALL, "--methods", "mixup")


def test_missing_matplotlib_is_named(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    words = ["bench", str(folder), *SMALL, "--methods", "mixup", "--plot", str(tmp_path / "bars.png")]
    assert 'pip install "fastmix[plot]"' in refusal(capsys, *words)


def test_interrupts_are_quiet(monkeypatch, capsys):
    def interrupt(_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "info", interrupt)
    assert main(["info"]) == 130
    assert capsys.readouterr() == ("", "")


def test_our_own_mistakes_are_not_hidden(monkeypatch):
    monkeypatch.setattr(cli, "info", lambda _options: {}["absent"])
    with pytest.raises(KeyError):
        main(["info"])


def test_bars_are_for_terminals_only(folder, monkeypatch, capsys):
    words = ["bench", str(folder), *SMALL, "--methods", "mixup"]
    main(words)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    main([*words, "--quiet"])
    assert capsys.readouterr().err == ""
    main(words)
    assert "mixup" in capsys.readouterr().err

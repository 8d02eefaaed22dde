"""The demo in small: photographs, training, speed and the picture, and what is refused."""

from argparse import Namespace

import pytest
from PIL import Image

from fastmix import cli, demo, pools
from fastmix.bench import Settings as Speed
from fastmix.datasets import open_source

SMALL = demo.Settings(photos=40, size=32, batch_size=20, epochs=8)


@pytest.fixture(autouse=True)
def small_cache(tmp_path_factory, monkeypatch):
    """A default pool of three fractals in a cache folder of its own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(pools, "_COUNT", 3)
    monkeypatch.setattr(pools, "user_cache_dir", lambda name: str(folder / name))


def test_demo(tmp_path, capsys):
    options = Namespace(folder=str(tmp_path / "photos"), output=str(tmp_path / "demo.png"), quiet=True)
    cli.demo(options, SMALL, Speed(size=32, batch_size=8, rounds=1, images=16))
    cut, trained, speed, head, *table, wrote = capsys.readouterr().out.splitlines()
    assert cut == "cut 40 photographs of 10 classes"
    assert trained.startswith("trained 16 steps with LayerMix: the loss fell from ")
    assert speed == "speed of the loader at 32 px, batches of 8, 2 threads:" and head.split()[0] == "images/s"
    assert [line.split()[0] for line in table] == ["plain", *cli.METHODS]
    assert wrote == f"wrote {tmp_path / 'demo.png'}"
    with Image.open(tmp_path / "demo.png") as image:
        assert image.width >= 7 * demo.SIDE and image.height >= 4 * demo.SIDE
    assert len(list((tmp_path / "photos").glob("*/*.jpg"))) == 40


def test_the_loss_falls(tmp_path):
    demo.cut(tmp_path, SMALL, True)
    losses = demo.train(open_source(tmp_path), cli.METHODS["augmix"](), SMALL, True)
    assert len(losses) == 16 and sum(losses[-4:]) < 0.8 * sum(losses[:4])


def test_the_network_is_small():
    count = sum(weights.numel() for weights in demo.network(10).parameters())
    assert 80_000 < count < 120_000


def test_photographs_go_when_no_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with cli._folder(None) as folder:
        demo.cut(folder, demo.Settings(photos=1), True)
        assert folder.is_relative_to(tmp_path) and len(list(folder.rglob("*.jpg"))) == 1
    assert list(tmp_path.iterdir()) == []


def test_output_is_checked_first(tmp_path):
    options = Namespace(folder=str(tmp_path / "photos"), output=str(tmp_path / "missing" / "demo.png"), quiet=True)
    with pytest.raises(ValueError, match=r"cannot write .*demo\.png: expected a file in a folder that exists"):
        cli.demo(options, SMALL)
    assert list(tmp_path.iterdir()) == []

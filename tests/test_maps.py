"""The bank of maps: what it keeps, what an epoch may read of it, and where maps lie in new crops."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from ranks import join, leave, run_two_ranks

from fastmix.kernels import Mode, Program, Source
from fastmix.learn.exchange import exchange_maps
from fastmix.maps import Geometry, MapBank, covered_boxes
from fastmix.types import Params

RNG = np.random.default_rng(3)


def some_maps(count: int, shape: tuple[int, int] = (7, 7), seed: int = 0) -> NDArray[np.float32]:
    """Numbers that float16 holds exactly."""
    return np.random.default_rng(seed).integers(0, 1024, (count, *shape)).astype(np.float32) / 1024


def geometry(
    count: int,
    box: tuple[float, ...] = (0, 0, 1, 1),
    flip: bool = False,
    covered: tuple[float, ...] = (0, 0, 0, 0),
) -> Geometry:
    return Geometry(np.tile(box, (count, 1)), np.full(count, flip), np.tile(covered, (count, 1)))


def random_geometry(count: int, seed: int) -> Geometry:
    rng = np.random.default_rng(seed)
    extent = rng.uniform(0.2, 1, (count, 2))
    boxes = np.concatenate([rng.uniform(0, 1, (count, 2)) * (1 - extent), extent], 1)
    return Geometry(boxes, rng.random(count) < 0.5, np.zeros((count, 4)))


def warped(maps: Any, then: Geometry, now: Geometry, shape: tuple[int, int] = (7, 7)) -> NDArray[np.float32]:
    bank = MapBank(len(maps), shape)
    bank.put(np.arange(len(maps)), maps, then, 0)
    return bank.take(np.arange(len(maps)), now, 1)


# ------------------------------------------------------------------ where a map lies in a new crop


def test_the_same_crop_gives_the_same_map() -> None:
    maps = some_maps(8)
    np.testing.assert_array_equal(warped(maps, Geometry.whole(8), Geometry.whole(8)), maps)
    same = random_geometry(8, 0)  # kept in float32
    np.testing.assert_allclose(warped(maps, same, same), maps, rtol=0, atol=1e-5)


def test_mirrored_crops() -> None:
    maps = some_maps(3, (4, 6))
    plain, mirrored = geometry(3), geometry(3, flip=True)
    np.testing.assert_array_equal(warped(maps, plain, mirrored, (4, 6)), maps[..., ::-1])
    np.testing.assert_array_equal(warped(maps, mirrored, plain, (4, 6)), maps[..., ::-1])
    np.testing.assert_array_equal(warped(maps, mirrored, mirrored, (4, 6)), maps)


def test_a_crop_moved_by_whole_cells_moves_them() -> None:
    """What was outside is unknown; crops may reach beyond the picture, as padded ones do."""
    maps = some_maps(2, (4, 8))
    moved = warped(maps, geometry(2), geometry(2, (0.25, -0.5, 1, 1)), (4, 8))
    expected = np.full_like(maps, np.nan)
    expected[:, 2:, :6] = maps[:, :2, 2:]
    np.testing.assert_array_equal(moved, expected)


@pytest.mark.parametrize("shape", [(7, 7), (5, 9), (1, 1), (1, 6)])
def test_any_two_crops_are_interpolated_as_torch_does(shape: tuple[int, int]) -> None:
    n, (height, width) = 40, shape
    maps, then, now = some_maps(n, shape), random_geometry(n, 1), random_geometry(n, 2)

    def to_picture(g: Geometry, row: int) -> Any:
        """Fractions of the crop as it is seen, (x, y, 1), to fractions of the picture."""
        left, top, wide, high = g.boxes[row]
        mirror = np.array([[-1, 0, 1], [0, 1, 0], [0, 0, 1]]) if g.flips[row] else np.eye(3)
        return np.array([[wide, 0, left], [0, high, top], [0, 0, 1]]) @ mirror

    y, x = np.meshgrid((np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width, indexing="ij")
    centres = np.stack([x, y, np.ones_like(x)], -1)
    inner = np.stack([centres @ (np.linalg.inv(to_picture(then, i)) @ to_picture(now, i)).T for i in range(n)])[..., :2]
    grid, source = torch.tensor(2 * inner - 1), torch.tensor(maps[:, None], dtype=torch.float64)
    sampled = F.grid_sample(source, grid, padding_mode="border", align_corners=False)[:, 0].numpy()
    inside = ((inner >= 0) & (inner <= 1)).all(-1)
    assert 0.2 < inside.mean() < 0.9
    np.testing.assert_allclose(
        warped(maps, then, now, shape), np.where(inside, sampled, np.nan), rtol=0, atol=2e-5
    )  # boxes are kept in float32


def test_cells_under_a_patch_are_unknown() -> None:
    """All that it touches; edges on the edges of cells touch nobody else."""
    maps = some_maps(2)
    expected = maps.copy()
    expected[:, 2:5, 1:3] = np.nan
    patch = (1 / 7, 2 / 7, 2 / 7, 3 / 7)  # left, top, width, height
    np.testing.assert_array_equal(warped(maps, geometry(2, covered=patch), geometry(2)), expected)
    expected[:, 2:5, 3] = np.nan
    patch = (1 / 7, 2 / 7, 2.01 / 7, 3 / 7)
    np.testing.assert_array_equal(warped(maps, geometry(2, covered=patch), geometry(2)), expected)
    seen = geometry(2, flip=True, covered=patch)
    np.testing.assert_array_equal(warped(maps, seen, geometry(2)), expected[..., ::-1])


def test_what_a_program_covers() -> None:
    """All steps with other pictures until its end, for rows of every kind; empty boxes do not count."""
    program = Program.empty(np.arange(5), np.zeros(3, np.uint32), (20, 40), layers=2, chain=1, steps=3)
    program.layers["source"][:, 1] = [Source.MATE, Source.POOL, Source.MATE, Source.MATE, Source.MATE]
    steps = program.steps
    steps["layer"] = [[1, 1, 1], [1, 0, 0], [0, 1, 1], [1, 1, 1], [1, 1, 1]]
    steps["mode"] = [[Mode.SET] * 3, [Mode.LINEAR, Mode.SET, Mode.END], [Mode.SET, Mode.TOTAL, Mode.SUM],
                     [Mode.SET, Mode.END, Mode.SET], [Mode.END] * 3]  # fmt: skip
    steps[["top", "left", "bottom", "right"]][0] = [(2, 4, 6, 8), (10, 20, 15, 30), (0, 0, 0, 40)]
    steps[["top", "left", "bottom", "right"]][3, 0] = (5, 10, 10, 20)
    params = Params(program, np.arange(5), np.ones(5, np.float32))
    expected = [[0.1, 0.1, 0.65, 0.65], [0, 0, 1, 1], [0] * 4, [0.25, 0.25, 0.25, 0.25], [0] * 4]
    np.testing.assert_allclose(covered_boxes(params, (20, 40)), expected, rtol=1e-12)


def test_half_of_the_weight_must_be_known() -> None:
    maps = np.array([[[0.5, 0.25, 1.0, 0.75]]])
    patch = (0.25, 0, 0.25, 1)  # the second cell
    for shift, expected in [
        (0.0, [0.5, np.nan, 1.0, 0.75]),
        (0.125, [0.5, 1.0, 0.875, 0.75]),  # between two cells, of which one is known
        (0.1, [0.5, np.nan, 0.9, 0.75]),  # 0.4 of a cell to the right: 0.6 and 0.4
        (0.15, [np.nan, 1.0, 0.85, np.nan]),  # the last centre is outside
    ]:
        made = warped(maps, geometry(1, covered=patch), geometry(1, (shift, 0, 1, 1)), (1, 4))
        np.testing.assert_allclose(made[0, 0], expected, rtol=0, atol=1e-6)


def test_views_give_the_mean_of_those_that_know_a_cell() -> None:
    bank, maps = MapBank(3, (2, 4), views=2), some_maps(2, (2, 4))
    bank.put([1], maps[:1], geometry(1), 0, view=0)
    np.testing.assert_array_equal(bank.take([1], geometry(1), 1), maps[:1])
    bank.put([1], maps[1:], geometry(1, (0.5, 0, 1, 1)), 0, view=1)  # shows the right half in its left one
    expected = maps[:1].copy()
    expected[0, :, 2:] = (maps[0, :, 2:] + maps[1, :, :2]) / 2
    np.testing.assert_array_equal(bank.take([1], geometry(1), 1), expected)
    assert np.isnan(bank.take([0, 2], geometry(2), 1)).all()


# ------------------------------------------------------------------ which maps


def values(bank: MapBank, epoch: int) -> list[float]:
    """The first cell of every sample's map."""
    return [float(v) for v in bank.take(np.arange(len(bank)), Geometry.whole(len(bank)), epoch)[:, 0, 0]]


def put(bank: MapBank, ids: Any, value: float, epoch: int) -> None:
    bank.put(ids, np.full((len(ids), *bank.shape), value), Geometry.whole(len(ids)), epoch)


def test_an_epoch_reads_what_earlier_ones_wrote() -> None:
    bank = MapBank(2)
    for epoch in range(4):
        before = [np.nan] * 2 if epoch == 0 else [epoch / 8] * 2
        np.testing.assert_array_equal(values(bank, epoch), before)
        put(bank, [0], 0.75, epoch)
        np.testing.assert_array_equal(values(bank, epoch), before)
        put(bank, [0, 1], (epoch + 1) / 8, epoch)  # the last one of an epoch stays
        np.testing.assert_array_equal(values(bank, epoch), before)
    np.testing.assert_array_equal(values(bank, 9), [0.5, 0.5])


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_writes(seed: int) -> None:
    """Against a dictionary of all writes; epochs may be left out."""
    rng, bank, written = np.random.default_rng(seed), MapBank(6, (1, 1)), {}
    for epoch in range(8):
        for turn in range(int(rng.integers(0, 4))):
            ids = rng.choice(6, 3, replace=False)
            value = (1 + turn + 4 * epoch) / 64
            put(bank, ids, value, epoch)
            written |= {(int(number), epoch): value for number in ids}
            expected = [max([(e, v) for (i, e), v in written.items() if i == j and e < epoch] or [(0, np.nan)])[1]
                        for j in range(6)]  # fmt: skip
            np.testing.assert_array_equal(values(bank, epoch), expected)


@pytest.mark.parametrize("first", [3, 4])
def test_beginning_again_at_an_earlier_epoch(first: int) -> None:
    """What later epochs wrote before is not read by the second run, in whichever slot it is."""
    bank = MapBank(1)
    for epoch, value in [*((epoch, 0.5) for epoch in range(first, 6)), (4, 0.125)]:
        put(bank, [0], value, epoch)
    assert values(bank, 5) == [0.125]
    put(bank, [0], 0.25, 5)
    assert (values(bank, 5), values(bank, 6)) == ([0.125], [0.25])


def test_writes_of_this_epoch_do_not_show_while_others_read() -> None:
    bank, wrong = MapBank(64, (3, 3)), []
    put(bank, np.arange(64), 0.25, 0)
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            wrong.extend(value for value in values(bank, 1) if value != 0.25)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for turn in range(200):
        put(bank, np.arange(turn % 7, 64, 3), 0.5, 1)
    over.set()
    for reader in readers:
        reader.join()
    assert wrong == [] and values(bank, 2) == [0.5] * 64


def test_numbers_that_are_not_finite_are_unknown() -> None:
    bank, maps = MapBank(2, (1, 4)), np.array([[[0.5, np.nan, np.inf, -np.inf]], [[np.nan, np.nan, -np.inf, np.inf]]])
    put(bank, [1], 0.125, 0)
    bank.put([0, 1], maps, Geometry.whole(2), 1)
    expected = [[[0.5, np.nan, np.nan, np.nan]], [[0.125] * 4]]  # nothing to keep, so the map before stays
    np.testing.assert_array_equal(bank.take([0, 1], Geometry.whole(2), 2), expected)


def test_maps_are_rounded_to_float16() -> None:
    maps = RNG.random((5, 7, 7))
    np.testing.assert_array_equal(warped(maps, geometry(5), geometry(5)), maps.astype(np.float16))
    assert warped(torch.rand(5, 7, 7), geometry(5), geometry(5)).dtype == np.float32


# ------------------------------------------------------------------ files and states


def test_a_file_that_is_too_short_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "maps.npy"
    MapBank(9, (3, 3), path=path).put(np.arange(9), np.ones((9, 3, 3)), Geometry.whole(9), 0)
    half = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(half)
    with pytest.raises(ValueError, match="cannot open the bank"):
        MapBank(9, (3, 3), path=path)
    assert path.read_bytes() == half


def test_a_file_keeps_the_maps(tmp_path: Path) -> None:
    path = tmp_path / "maps.npy"
    bank, maps = MapBank(1000, (3, 4), 2, path), some_maps(2, (3, 4))
    assert np.isnan(bank.take(np.arange(1000), Geometry.whole(1000), 5)).all()
    bank.put([7, 999], maps, geometry(2, flip=True), 0, view=1)
    state = json.loads(json.dumps(bank.state()))
    assert state == {"path": str(path), "length": 1000, "shape": [3, 4], "views": 2, "entries": 2}
    again = MapBank(1000, (3, 4), 2, path)
    assert again.state() == state and len(again) == 1000
    again.check_state(state, 0)
    np.testing.assert_array_equal(again.take([7, 999], Geometry.whole(2), 1), maps[..., ::-1])
    entries = np.load(path, allow_pickle=False)
    assert entries.shape == (1000, 2, 2) and entries["map"].dtype == np.float16


def test_entries_are_counted_once() -> None:
    bank = MapBank(5, views=2)
    for epoch in (0, 1):
        bank.put([3, 3, 1], some_maps(3), Geometry.whole(3), epoch)
        bank.put([3], some_maps(1), Geometry.whole(1), epoch, view=1)
    assert bank.state()["entries"] == 3


def test_what_another_bank_wrote_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "maps.npy"
    MapBank(10, (7, 7), 1, path)
    for other in ((11, (7, 7), 1), (10, (7, 8), 1), (10, (7, 7), 2)):
        with pytest.raises(ValueError, match=r"maps\.npy holds .* or remove it"):
            MapBank(*other, path)
    (tmp_path / "text").write_text("maps")
    with pytest.raises(ValueError, match=r"cannot open the bank .*text"):
        MapBank(10, path=tmp_path / "text")
    np.save(tmp_path / "objects.npy", np.array([{}, []], object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"cannot open the bank .*objects\.npy"):
        MapBank(10, path=tmp_path / "objects.npy")


def test_states_of_another_run_are_refused() -> None:
    bank = MapBank(10, (2, 3))
    put(bank, [1, 2], 0.5, 3)
    state = bank.state()
    bank.check_state(state, 3)
    bank.check_state({**state, "path": "elsewhere", "entries": 1}, 4)
    for change, epoch, message in [
        ({"length": 9}, 3, "has length 10, the state was saved with 9"),
        ({"shape": [3, 2]}, 3, r"has shape \[2, 3\], the state was saved with \[3, 2\]"),
        ({"views": 2}, 3, "has views 1, the state was saved with 2"),
        ({"entries": 3, "path": "its.npy"}, 3, r"maps of 2 views, the state was saved with 3.*its\.npy"),
        ({}, 2, "maps of epoch 3, the state was saved in epoch 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            bank.check_state({**state, **change}, epoch)


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": [0, 10]}, r"ids run from 0 to 10, expected 0\.\.9"),
        ({"ids": [-1, 2]}, "ids run from -1 to 2"),
        ({"ids": [0.0, 1.0]}, r"ids are float64 \(2,\)"),
        ({"ids": 3}, r"ids are int64 \(\)"),
        ({"ids": [1]}, r"maps are float32 \(2, 7, 7\), expected numbers \(1, 7, 7\): make them with size=\(7, 7\)"),
        ({"maps": some_maps(2, (7, 8))}, r"maps are float32 \(2, 7, 8\)"),
        ({"maps": np.full((2, 7, 7), "a")}, "maps are <U1"),
        ({"geometry": Geometry.whole(3)}, "geometry has 3 rows, expected 2"),
        ({"epoch": -1}, "epoch is -1"),
        ({"epoch": 1.5}, "epoch is 1.5"),
        ({"view": 1}, r"view is 1, expected 0\.\.0"),
    ],
)
def test_bad_maps(change: dict[str, Any], message: str) -> None:
    bank = MapBank(10)
    given = {"ids": [0, 1], "maps": some_maps(2), "geometry": Geometry.whole(2), "epoch": 0}
    with pytest.raises(ValueError, match=message):
        bank.put(**{**given, **change})
    if not {"maps", "view"} & change.keys() and change != {"ids": [1]}:
        with pytest.raises(ValueError, match=message):
            bank.take(**{name: value for name, value in {**given, **change}.items() if name != "maps"})
    assert bank.state()["entries"] == 0


@pytest.mark.parametrize(
    "arrays",
    [
        (np.ones((2, 3)), np.zeros(2, bool), np.zeros((2, 4))),
        (np.ones((2, 4)), np.zeros(3, bool), np.zeros((2, 4))),
        (np.ones((2, 4)), np.zeros(2), np.zeros((2, 4))),
        (np.ones((2, 4)), np.zeros(2, bool), np.zeros((1, 4))),
        (np.array([[0, 0, 1, 0.0]]), np.zeros(1, bool), np.zeros((1, 4))),
        (np.array([[0, np.nan, 1, 1.0]]), np.zeros(1, bool), np.zeros((1, 4))),
        (np.ones((1, 4)), np.zeros(1, bool), np.full((1, 4), np.inf)),
    ],
)
def test_bad_geometry(arrays: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        Geometry(*arrays)


@pytest.mark.parametrize("settings", [(0,), (2.5,), (3, (0, 7)), (3, (7, 7), 0)])
def test_bad_banks(settings: Any) -> None:
    with pytest.raises(ValueError, match="expected integers >= 1"):
        MapBank(*settings)


def test_nothing_is_put_and_taken() -> None:
    bank = MapBank(3)
    bank.put([], np.zeros((0, 7, 7)), Geometry.whole(0), 0)
    assert bank.take([], Geometry.whole(0), 1).shape == (0, 7, 7) and bank.state()["entries"] == 0


# ------------------------------------------------------------------ several processes


def rank_of_two(rank: int, folder: Path) -> None:
    join(rank, folder)
    bank = MapBank(12, (2, 3), views=2, path=folder / f"{rank}.npy")
    exchange_maps(bank, 0)  # nobody has any
    for epoch in range(2):
        ids = np.arange(rank, 11 if epoch else 8, 2) if rank == 0 or epoch else np.array([1])  # not as many each
        maps = some_maps(len(ids), (2, 3), seed=10 * epoch + rank)
        bank.put(ids, maps, random_geometry(len(ids), seed=epoch + rank), epoch, view=rank)
        bank.put([11], np.full((1, 2, 3), (1 + rank + 2 * epoch) / 8), Geometry.whole(1), epoch)  # both have this one
        exchange_maps(bank, epoch)
    other = MapBank(12, (2, 3 + rank))
    try:
        exchange_maps(other, 0)
    except ValueError as error:
        (folder / f"{rank}.txt").write_text(str(error))
    leave()


def test_two_ranks_exchange_their_maps(tmp_path: Path) -> None:
    run_two_ranks(rank_of_two, tmp_path)
    one, two = (MapBank(12, (2, 3), views=2, path=tmp_path / f"{rank}.npy") for rank in (0, 1))
    now = Geometry.whole(12)
    for epoch in (1, 2):
        np.testing.assert_array_equal(one.take(np.arange(12), now, epoch), two.take(np.arange(12), now, epoch))
    expected = MapBank(12, (2, 3), views=2)  # what one process would hold that has seen it all
    for epoch in range(2):
        for rank in (0, 1):
            ids = np.arange(rank, 11 if epoch else 8, 2) if rank == 0 or epoch else np.array([1])
            maps = some_maps(len(ids), (2, 3), seed=10 * epoch + rank)
            expected.put(ids, maps, random_geometry(len(ids), seed=epoch + rank), epoch, view=rank)
            expected.put([11], np.full((1, 2, 3), (1 + rank + 2 * epoch) / 8), Geometry.whole(1), epoch)
    for epoch in (1, 2):
        np.testing.assert_array_equal(one.take(np.arange(12), now, epoch), expected.take(np.arange(12), now, epoch))
    assert one.state()["entries"] == two.state()["entries"] == expected.state()["entries"] > 10
    for rank in (0, 1):
        assert "banks differ" in (tmp_path / f"{rank}.txt").read_text()


def test_one_process_has_nobody_to_exchange_with() -> None:
    bank = MapBank(3)
    put(bank, [1], 0.5, 0)
    exchange_maps(bank, 0)
    assert bank.state()["entries"] == 1

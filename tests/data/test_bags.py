"""Bags: layouts of files, the grid of the tiles, one line for each thing that is wrong, maps with masks, and splits."""

import itertools
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch

from inline_attention.data.bag import BagTransform, TileOptions, find_step, make_bag, quarter_turns, to_maps
from inline_attention.data.bag_dataset import find_bags, open_bag_split, open_bags
from inline_attention.data.bag_file import read_bag, read_channels, read_features, tile_and_step
from inline_attention.data.config import DataConfig
from inline_attention.lite.decode import BadImageError

from .bags import grid_coords, write_h5, write_slides


def random(count, channels=5):
    return np.random.default_rng(count).normal(size=(count, channels)).astype(np.float32)


@pytest.mark.parametrize(("batch", "kind"), [(False, np.float32), (True, np.float16)])
def test_an_h5_of_clam_or_trident(tmp_path, batch, kind):
    coords = grid_coords(3, 4, 512, (1024, 77))[[0, 2, 3, 5, 11]]
    features = random(5).astype(kind)
    path = write_h5(tmp_path / "a.h5", features, coords, batch=batch, patch_size_level0=512, patch_size=256, overlap=0)
    bag = read_bag(path)
    assert (bag.grid, bag.tile, bag.moved) == ((3, 4), 512, 0)
    assert bag.places.tolist() == [[0, 0], [0, 2], [0, 3], [1, 1], [2, 3]]
    assert torch.equal(bag.features, torch.from_numpy(features.astype(np.float32)))
    assert (bag.coords.tolist(), read_channels(path)) == (coords.tolist(), 5)


def test_a_pt_with_a_dictionary_or_with_coords_elsewhere(tmp_path):
    coords, features = grid_coords(2, 3, 224), random(6)
    torch.save({"features": torch.from_numpy(features)[None].bfloat16(), "coords": torch.from_numpy(coords)}, tmp_path / "a.pt")
    assert read_bag(tmp_path / "a.pt").grid == (2, 3)
    (tmp_path / "pt_files").mkdir()
    torch.save(torch.from_numpy(features), tmp_path / "pt_files" / "b.pt")
    with pytest.raises(BadImageError, match=r"has no coords, and there is no b.h5"):
        read_bag(tmp_path / "pt_files" / "b.pt")
    (tmp_path / "patches").mkdir()
    with h5py.File(tmp_path / "patches" / "b.h5", "w") as file:
        file.create_dataset("coords", data=coords).attrs["patch_size"] = 224
    bag = read_bag(tmp_path / "pt_files" / "b.pt")
    assert torch.equal(bag.features, torch.from_numpy(features))
    assert bag.tile == 224


def test_a_pt_runs_nothing(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("run",))

    torch.save({"features": Evil()}, tmp_path / "a.pt")
    with pytest.raises(BadImageError, match="holds more than tensors, numbers and names: refused"):
        read_bag(tmp_path / "a.pt")


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"patch_size": 256, "patch_size_level0": 512, "overlap": 64}, (512, 384)),  # overlap at the target magnification
        ({"patch_size": 256, "patch_level": 1, "downsample": np.array([4.0, 4.0])}, (1024, None)),
        ({"patch_size": 256, "patch_size_level0": 301, "step_level0": 300.7}, (301, 300.7)),
        ({"patch_size": 256, "patch_level": 0}, (256, None)),
        ({"patch_size": 256, "patch_level": 2}, (None, None)),
        ({"patch_size": "many"}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_tile_and_step_from_attributes(attributes, expected):
    assert tile_and_step(attributes) == expected


def test_the_step_is_found():
    whole = grid_coords(20, 30, 256, (3, 5))
    generator = np.random.default_rng(0)
    sparse = whole[generator.permutation(len(whole))[:200]]
    assert find_step(whole) == find_step(sparse) == 256
    assert find_step(whole[[0, 3, 5]]) == 256  # 768 and 512: their divisor
    assert find_step(whole[:1]) == find_step(np.array([[0, 0], [5, 7]])) == 0
    contours = np.concatenate([whole, grid_coords(9, 9, 256, (9_000, 77))])  # each with an origin of its own
    assert find_step(contours) == 256


def test_tiles_between_cells_go_to_the_nearest_free_one(tmp_path):
    first, second = grid_coords(4, 4, 100), grid_coords(4, 4, 100, (360, 30))  # columns 3.6 to 6.6: the first rounds to 4
    close = np.array([[340, 0]])  # 3.4 rounds to 3, which has a tile that lies on it; 4 is the second's: it goes above
    path = write_h5(tmp_path / "a.h5", random(33), np.concatenate([first, second, close]))
    bag = read_bag(path)
    assert bag.moved == 17
    assert len({tuple(place) for place in bag.places.tolist()}) == 33  # none is dropped
    assert (bag.places[:16].numpy() - (1, 0) == first[:, ::-1] // 100).all()
    assert (bag.places[16:32] - bag.places[:16] == torch.tensor([0, 4])).all()
    assert bag.places[32].tolist() == [0, 3]
    with pytest.raises(
        BadImageError, match=r"17 of 33 tiles are off the grid with a step of 100 pixels, the first at x 360 and"
    ):
        read_bag(path, TileOptions(off_grid="refuse"))
    assert read_bag(path, TileOptions(step=10)).grid == (34, 67)


def test_what_is_wrong_with_a_file_is_one_line(tmp_path):
    coords, features = grid_coords(2, 3, 256), random(6)
    bad = features.copy()
    bad[4, 1] = np.nan
    twice = coords.copy()
    twice[5] = twice[1]
    far = coords.copy()
    far[0] = 10_000_000, 7
    cases = {
        "the features of tile 4 are not finite": (bad, coords),
        "the tiles 1 and 5 have the same coordinates, x 256 and y 0": (features, twice),
        r"coords must be \(6, 2\).*got \(5, 2\)": (features, coords[:5]),
        r"features must be \(tiles, channels\), got \(6,\)": (features[:, 0], coords),
        r"features must be \(tiles, channels\), got \(0, 5\)": (features[:0], coords[:0]),
        r"coordinates must be whole numbers of pixels, got \[0.5, 0.0\] for tile 0": (features, coords + np.array([0.5, 0])),
        "a grid of 257 x 10,000,001 cells, more than.*--task.tile-step": (
            features[:3],
            np.array([[0, 0], [1, 0], [10**7, 256]]),
        ),
    }
    for number, (message, content) in enumerate(cases.items()):
        with pytest.raises(BadImageError, match=message) as caught:
            read_bag(write_h5(tmp_path / f"{number}.h5", *content))
        assert "\n" not in str(caught.value)


def test_hostile_and_damaged_files_are_refused(tmp_path):
    good = write_h5(tmp_path / "good.h5", random(6), grid_coords(2, 3, 256))
    data = good.read_bytes()
    (tmp_path / "short.h5").write_bytes(data[: len(data) // 2])
    (tmp_path / "text.h5").write_text("no HDF5")
    (tmp_path / "text.pt").write_text("no tensors")
    with h5py.File(tmp_path / "link.h5", "w") as file:
        file["features"] = h5py.ExternalLink("good.h5", "features")
        file["coords"] = h5py.ExternalLink("good.h5", "coords")
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        layout = h5py.VirtualLayout(shape=(6, 5), dtype="f4")
        layout[:] = h5py.VirtualSource("good.h5", "features", shape=(6, 5))
        file.create_virtual_dataset("features", layout)
        file["coords"] = grid_coords(2, 3, 256)
    with h5py.File(tmp_path / "huge.h5", "w") as file:
        file.create_dataset("features", shape=(2**30, 1024), dtype="f4", chunks=(1, 1024))
        file["coords"] = grid_coords(2, 3, 256)
    with h5py.File(tmp_path / "text_features.h5", "w") as file:
        file["features"] = [b"a", b"b"]
        file["coords"] = grid_coords(1, 2, 256)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["imgs"] = [1]
    cases = {"short.h5": "truncated", "text.h5": "truncated", "text.pt": "text.pt", "link.h5": "is a link: refused"}
    cases |= {"virtual.h5": "no plain dataset", "huge.h5": "more than", "text_features.h5": "must be numbers"}
    cases |= {"other.h5": "has no features; it has: imgs", "none.h5": "there is no file", "a.txt": "no file of tile features"}
    for name, message in cases.items():
        with pytest.raises(BadImageError, match=message):
            read_bag(tmp_path / name)


def test_maps_are_padded_with_masks():
    bags = [
        {"features": torch.tensor([[1.0, 2], [3, 4]]), "places": torch.tensor([[0, 1], [2, 0]])},
        {"features": torch.tensor([[5.0, 6]]), "places": torch.tensor([[0, 3]])},
    ]
    maps, mask = to_maps(bags)
    assert (maps.shape, mask.sum().item()) == ((2, 2, 3, 4), 3)
    assert maps[0, :, 0, 1].tolist() == [1, 2]
    assert maps[0, :, 2, 0].tolist() == [3, 4]
    assert maps[1, :, 0, 3].tolist() == [5, 6]
    assert not maps.permute(0, 2, 3, 1)[~mask].any()
    assert to_maps(bags, 8)[0].shape == (2, 2, 8, 8)


def test_augmentation_moves_tiles_and_keeps_their_features(tmp_path):
    found = read_features(write_h5(tmp_path / "a.h5", random(10), grid_coords(3, 4, 9)[:10]))
    bag = make_bag(found)
    plain = BagTransform(normalize=False)
    whole, _ = to_maps([plain(found, 0)[0]])
    for turns in range(5):
        turned, _ = to_maps([{"features": bag.features, "places": quarter_turns(bag.places, turns)}])
        assert torch.equal(turned, whole.rot90(turns, (2, 3)))
    flipped, target = replace(plain, hflip=1.0)(found, (0.0, 1.0))
    assert torch.equal(to_maps([flipped])[0], whole.flip(3))
    assert target.tolist() == [0, 1]
    assert torch.equal(to_maps([replace(plain, vflip=1.0)(found, 1)[0]])[0], whole.flip(2))
    torch.manual_seed(0)
    counts = [len(replace(plain, drop=0.9)(found, 0)[0]["places"]) for _ in range(50)]
    assert min(counts) >= 1
    assert 0.5 < np.mean(counts) < 3
    normalised = BagTransform()(found, 0)[0]["features"]
    assert torch.allclose(normalised.mean(1), torch.zeros(10), atol=1e-6)
    assert torch.allclose(normalised.var(1, unbiased=False), torch.ones(10), atol=1e-3)


def test_clams_layout_and_two_files_of_one_slide(tmp_path):
    write_h5(tmp_path / "h5_files" / "a.h5", random(1), grid_coords(1, 1, 9))
    (tmp_path / "pt_files").mkdir()
    (tmp_path / "pt_files" / "a.pt").touch()
    assert find_bags(tmp_path) == [tmp_path / "h5_files" / "a.h5"]
    (tmp_path / "h5_files" / "a.pt").touch()
    (tmp_path / "h5_files" / ".b.h5").touch()
    assert find_bags(tmp_path / "h5_files") == [tmp_path / "h5_files" / "a.h5"]
    with pytest.raises(ValueError, match="no files of tile features"):
        find_bags(_empty(tmp_path))


def _empty(folder):
    (folder / "empty").mkdir()
    return folder / "empty"


def test_training_and_validation_slides(tmp_path):
    root, table = write_slides(tmp_path)
    data = DataConfig(source=str(root), labels=str(table), columns=("label",))
    source = open_bags(data)
    assert (source.classes, len(source.train), len(source.val)) == (("a", "b"), 10, 2)
    assert sorted(source.val.labels()) == [0, 1]
    assert source.split_note == "20 % of the patients, split off by a hash of their names"
    bag, target = source.val.load(0, 3)
    assert bag.features[:, 0].mean().item() > 2 if target else bag.features[:, 0].mean() < 2
    assert open_bags(data).fingerprint() == source.fingerprint()
    table.write_text(table.read_text().replace("s0,p0,a", "s0,p0,b"))
    assert open_bags(data).fingerprint() != source.fingerprint()
    with pytest.raises(ValueError, match="features of 6 channels, and the model takes 7"):
        make_bag(bag, TileOptions(7))
    with pytest.raises(ValueError, match=r"needs a table.*--labels"):
        open_bags(replace(data, labels=""))


def test_splits_of_the_table(tmp_path):
    root, table = write_slides(tmp_path)
    lines = table.read_text().splitlines()
    parts = itertools.cycle(["train", "train", "test"])
    table.write_text("\n".join([f"{lines[0]},split", *(f"{line},{next(parts)}" for line in lines[1:])]))
    data = DataConfig(source=str(root), labels=str(table), columns=("high", "wide"))
    source = open_bags(data)  # validation slides are a share of the training slides, never the test slides
    assert (source.classes, len(source.train) + len(source.val)) == (("high", "wide"), 8)
    assert "the training patients" in source.split_note
    test = open_bag_split(data, "test", "labels", source.classes)
    assert (test.split, len(test.val)) == ("test", 4)
    with pytest.raises(ValueError, match="has no split val; there are: train, test"):
        open_bag_split(data, None, "labels", source.classes)

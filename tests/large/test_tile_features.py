"""Features of tiles: exactly those with tissue, each as the model sees it alone, whatever the batch; whole files."""

import numpy as np
import pytest
import timm
import torch

from inline_attention.data.bag_file import read_bag
from inline_attention.large.tile_features import (
    TileEncoder,
    encode_tiles,
    slide_coords,
    stored_settings,
    tile_attributes,
    write_features,
)

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)


class Pixels:
    """An image in memory."""

    def __init__(self, height, width):
        self.height, self.width = height, width
        self.pixels = torch.rand(height, width, 3, generator=torch.Generator().manual_seed(0))

    def read(self, start, stop):
        return self.pixels[start:stop]


def encoder(size=(16, 16), name="inline_deit_nano", **options):
    torch.manual_seed(0)
    model = timm.create_model(name, img_size=size, num_classes=4, embed_dim=16, depth=1, num_heads=2, **options).eval()
    return TileEncoder(model, size, MEAN, STD, torch.device("cpu"))


def alone(encode, tile):
    """What the model gives for one tile (tile, tile, 3)."""
    normal = (tile.permute(2, 0, 1) - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    with torch.no_grad():
        return encode.model.forward_head(encode.model.forward_features(normal[None]), pre_logits=True)[0]


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_every_tile_is_encoded_as_it_is_alone(batch):
    image, encode, seen = Pixels(40, 50), encoder(), []
    found = encode_tiles(image, encode, 16, batch=batch, progress=lambda done, total: seen.append((done, total)))
    assert (found.places.tolist(), found.all_tiles) == ([[row, column] for row in range(3) for column in range(4)], 12)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    filled = torch.ones(48, 64, 3)
    filled[:40, :50] = image.pixels
    for (row, column), features in zip(found.places.tolist(), found.features, strict=True):
        tile = filled[16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
        assert torch.allclose(features, alone(encode, tile), atol=1e-5)


def test_tiles_without_tissue_are_skipped_and_their_rows_are_not_read():
    image, encode = Pixels(64, 48), encoder()
    tissue = torch.zeros(64, 48, dtype=torch.bool)
    tissue[:16, 16:24] = True  # half of a tile
    tissue[33, 40] = True  # one pixel of another
    read = []
    image.read = lambda start, stop: read.append(start) or image.pixels[start:stop]
    found = encode_tiles(image, encode, 16, tissue=lambda start, stop: tissue[start:stop], least_tissue=0.5)
    assert (found.places.tolist(), read) == ([[0, 1]], [0])
    some = encode_tiles(image, encode, 16, tissue=lambda start, stop: tissue[start:stop], least_tissue=0)
    assert some.places.tolist() == [[0, 1], [2, 2]]
    with pytest.raises(ValueError, match="it has no tile with tissue"):
        encode_tiles(image, encode, 16, tissue=lambda start, stop: tissue[start:stop] & False)


def test_tiles_are_resized_and_other_models_work():
    image = Pixels(32, 32)
    found = encode_tiles(image, encoder((8, 8)), 16)
    assert found.features.shape == (4, 16)
    model = timm.create_model("resnet10t", num_classes=0).eval()
    assert encode_tiles(image, TileEncoder(model, (32, 32), MEAN, STD, torch.device("cpu")), 32).features.shape == (1, 512)
    grey = TileEncoder(model, (32, 32), (0.5,), (0.5,), torch.device("cpu"))
    with pytest.raises(ValueError, match="the model takes 1 channels, and the image has 3"):
        encode_tiles(image, grey, 16)
    with pytest.raises(ValueError, match="tile and batch must be positive"):
        encode_tiles(image, grey, 0)


@pytest.mark.parametrize("downsample", [1.0, 2.0, 2.3437])
def test_a_written_file_is_a_bag_on_its_grid(tmp_path, downsample):
    """Also where the step is no whole number of pixels, over a long row of tiles."""
    places = torch.tensor([[0, 0], [0, 1], [3, 400], [7, 399]])
    coords = slide_coords(places, 100, (downsample, downsample))
    features = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    path = tmp_path / "a.h5"
    write_features(path, features, coords, tile_attributes(100, downsample, (2000, 90000), 0.5), {"settings": '{"tile": 100}'})
    bag = read_bag(path)
    assert torch.equal(bag.places, places)
    assert torch.equal(bag.features, torch.from_numpy(features))
    assert (bag.tile, bag.moved) == (round(100 * downsample), 0)
    assert stored_settings(path) == {"tile": 100}
    assert stored_settings(tmp_path / "none.h5") is None
    with pytest.raises(TypeError):
        write_features(tmp_path / "b.h5", features, coords, {"bad": object()}, {})
    assert [file.name for file in tmp_path.iterdir()] == ["a.h5"]

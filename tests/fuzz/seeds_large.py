"""Small files of the kinds that large images come in."""

from pathlib import Path

import numpy as np
import rasterio
import tifffile
import zarr

TILES = {"tile": (16, 16), "photometric": "rgb"}


def write_large(folder: Path) -> None:
    """TIFFs, a slide, maps and Zarr folders of one image of 20 x 28 pixels."""
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (20, 28, 3), np.uint8)
    with tifffile.TiffWriter(folder / "pyramid.tif") as writer:
        writer.write(pixels, subifds=1, compression="zlib", resolution=(20000, 20000), resolutionunit=3, **TILES)
        writer.write(pixels[::2, ::2], subfiletype=1, compression="jpeg", **TILES)
    facts = {"axes": "CYX", "Channel": {"Name": ["a", "b", "c"]}, "PhysicalSizeX": 0.5, "PhysicalSizeY": 0.5}
    tifffile.imwrite(
        folder / "a.ome.tif",
        np.moveaxis(pixels, 2, 0),
        metadata=facts,
        photometric="minisblack",
        compression="lzw",
        predictor=True,
    )
    slide = "Aperio Image Library v11\n28x20 |AppMag = 20|MPP = 0.5"
    tifffile.imwrite(folder / "a.svs", pixels, description=slide, metadata=None, compression="jpeg", **TILES)
    place = {"crs": "EPSG:32633", "transform": rasterio.Affine(10, 0, 500000, 0, -10, 5000000)}
    for name, options in {
        "map.tif": {"driver": "GTiff", "tiled": True, "blockxsize": 16, "blockysize": 16, "compress": "deflate", "nodata": 0},
        "map.jp2": {"driver": "JP2OpenJPEG", "quality": "100", "reversible": "yes"},
    }.items():
        with rasterio.open(folder / name, "w", height=20, width=28, count=3, dtype="uint8", **place, **options) as file:
            file.write(np.moveaxis(pixels, 2, 0))
    zarr.create_array(str(folder / "plain.zarr"), data=pixels, chunks=(8, 8, 3), shards=(16, 16, 3))
    for zarr_format in (2, 3):
        _ome_zarr(folder / f"ome{zarr_format}.zarr", pixels, zarr_format)


def _ome_zarr(folder: Path, pixels: np.ndarray, zarr_format: int) -> None:
    group = zarr.open_group(str(folder), mode="w", zarr_format=zarr_format)
    group.create_array("0", data=np.moveaxis(pixels, 2, 0), chunks=(1, 16, 16))
    axes = [{"name": "c", "type": "channel"}, *({"name": name, "type": "space", "unit": "micrometer"} for name in "yx")]
    level = {"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [1, 0.5, 0.5]}]}
    facts = {"multiscales": [{"axes": axes, "datasets": [level]}], "omero": {"channels": [{"label": name} for name in "abc"]}}
    group.attrs.update(facts if zarr_format == 2 else {"ome": facts})

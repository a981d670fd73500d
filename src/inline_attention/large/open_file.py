"""Opens an image file of any kind. Its first bytes decide which library reads it, and not its name.

A backend is imported when such a file is opened; one whose library is missing is one line that says what to install.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from ..lite.decode import why
from .image_file import ImageFile

TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""How TIFF and BigTIFF begin, in both byte orders."""
NUMPY = b"\x93NUMPY"
JPEG_2000 = (b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51")
DICOM = b"DICM"
"""Ends the first 132 bytes."""
SLIDES = (".mrxs", ".vms", ".vmu", ".szi")
"""Slides that consist of several files, of which the first has no beginning of its own."""
ZARR = ("zarr.json", ".zarray", ".zgroup")
"""A folder with one of these files is a Zarr array or group."""
LIBRARIES = ("tifffile", "imagecodecs", "zarr", "openslide", "rasterio")
"""Those of the extra [large]."""


def open_image_file(path: str | Path) -> ImageFile:
    """Open an image file: it is read by rows, and knows its levels, channels and pixel size as far as the file has them.

    Nothing in a file is executed. Raises a `ValueError` of one line for a file that cannot be read, and `FileNotFoundError`.

    Args:
        path: a TIFF, BigTIFF or OME-TIFF; a slide; a GeoTIFF, COG or JPEG 2000; a folder of Zarr or OME-Zarr; a `.npy` file; or
            an image that pillow reads.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no image at {path}")
    try:
        return _opener(path)(path)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in LIBRARIES:
            raise
        raise ValueError(f'cannot read the image {path} without {error.name}: pip install "inline-attention[large]"') from error
    except Exception as error:  # each library has its own kinds for a broken file
        raise ValueError(f"cannot read the image {path}: {why(error)}") from error


def _opener(path: Path) -> Callable[[Path], ImageFile]:
    """The function that opens such a file."""
    if path.is_dir():
        if any((path / name).is_file() for name in ZARR):
            return _from("zarr_file", "open_zarr")
        raise ValueError(f"it is a folder, and no Zarr: it has none of {', '.join(ZARR)}")
    with path.open("rb") as file:
        head = file.read(132)
    if head.startswith(TIFF):
        return _from("tiff_kind", "open_any_tiff")
    if head.startswith(NUMPY) or path.suffix == ".npy":
        return _from("numpy_file", "open_numpy")
    if head.startswith(JPEG_2000):
        return _from("raster_file", "open_raster")
    if head.endswith(DICOM) or path.suffix.lower() in SLIDES:
        return _from("slide_file", "open_slide")
    return _from("pillow_file", "open_with_pillow")


def _from(module: str, function: str) -> Callable[[Path], ImageFile]:
    opener: Callable[[Path], ImageFile] = getattr(import_module(f".{module}", __package__), function)
    return opener

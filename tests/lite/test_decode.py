"""Which files are opened, up to which size, and what is said of the others."""

import ast
import struct
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

import inline_attention
import inline_attention.lite.decode as decode_module
from inline_attention.lite.decode import FORMATS, BadImageError, decode, decode_file, open_pillow
from inline_attention.lite.image_paths import IMAGE_SUFFIXES
from inline_attention.lite.limits import MAX_PIXELS, max_pixels
from inline_attention.lite.transform import NumpyTransform

PACKAGE = Path(inline_attention.__file__).parent


def claim(width, height):
    """A PNG of 74 bytes whose header claims a size."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", [*FORMATS, "MPO"])
def test_every_format_is_opened_whatever_the_file_is_called(tmp_path, kind):
    Image.new("RGB", (5, 4), "red").save(tmp_path / "a.png", format=kind, save_all=kind == "MPO")
    image = decode_file(str(tmp_path / "a.png"), 3)
    assert (image.size, image.mode, image.filename) == ((5, 4), "RGB", str(tmp_path / "a.png"))
    if kind != "MPO":
        assert any(Image.registered_extensions().get(suffix) == kind for suffix in IMAGE_SUFFIXES)


@pytest.mark.parametrize("kind", ["EPS", "PCX", "TGA", "PDF"])
def test_no_other_format_is_opened(tmp_path, monkeypatch, kind):
    """Pillow would hand an EPS to Ghostscript."""
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_: pytest.fail("Ghostscript was started"))
    Image.new("RGB", (5, 4)).save(tmp_path / "a.png", format=kind)
    with pytest.raises(BadImageError, match=r"a\.png cannot be read: not an image$"):
        decode_file(str(tmp_path / "a.png"), 3)


def test_images_are_opened_in_one_place():
    """A call of `Image.open` elsewhere would open any format and any size."""
    found = []
    for file in PACKAGE.rglob("*.py"):
        if "Image.open" not in (text := file.read_text()):
            continue
        calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        if any(isinstance(call, ast.Attribute) and ast.unparse(call).endswith("Image.open") for call in calls):
            found.append(str(file.relative_to(PACKAGE)))
    assert found == ["lite/decode.py"]


@pytest.mark.parametrize(("width", "height"), [(60_000, 60_000), (1, 2**27), (2**31 - 1, 2**31 - 1)])
def test_a_size_is_refused_by_the_header_alone(width, height):
    with pytest.raises(
        BadImageError, match=rf"^a cannot be read: {width:,} x {height:,} pixels .* than {MAX_PIXELS:,}: INLINE_"
    ):
        decode(BytesIO(claim(width, height)), "a", 3)


def test_the_limit_is_set_by_one_variable(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    image = BytesIO()
    Image.new("RGB", (20, 20)).save(image, format="PNG")
    decode(BytesIO(image.getvalue()), "a", 3)  # pillow's own limit does not count, and stays
    assert Image.MAX_IMAGE_PIXELS == 10
    monkeypatch.setenv("INLINE_MAX_PIXELS", "399")
    with pytest.raises(BadImageError, match=r"20 x 20 pixels .* are more than 399"):
        decode(image, "a", 3)
    monkeypatch.setenv("INLINE_MAX_PIXELS", "4_000_000_000")
    assert open_pillow(BytesIO(claim(60_000, 60_000))).size == (60_000, 60_000)
    for wrong in ("0", "-1", "many", "1e9", "9" * 30):
        monkeypatch.setenv("INLINE_MAX_PIXELS", wrong)
        with pytest.raises(ValueError, match=f"INLINE_MAX_PIXELS must be a positive whole number, got '{wrong}'"):
            max_pixels()


def test_a_tile_may_not_be_larger_than_the_limit(tmp_path, monkeypatch):
    """TIFF's tiles are decoded as a whole."""
    tags = {256: 16, 257: 16, 258: 8, 259: 1, 262: 1, 277: 1, 322: 4096, 323: 4096, 324: 8, 325: 8}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    (tmp_path / "a.tif").write_bytes(b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4))
    monkeypatch.setenv("INLINE_MAX_PIXELS", "1000")
    with pytest.raises(BadImageError, match="4,096 x 4,096 pixels"):
        decode_file(str(tmp_path / "a.tif"), 1)


def test_a_long_image_is_not_resized_beyond_the_limit():
    """Its shorter side would grow to 256 pixels, and its longer one with it."""
    image = BytesIO()
    Image.new("L", (2, 200_000)).save(image, format="PNG")
    transform = NumpyTransform((224, 224), 1, "center", 0.875, "bicubic", (0.5,), (0.5,))
    with pytest.raises(BadImageError, match=r"^strip\.png, 2 x 200000, would be resized to .* 256 x 25,600,000 pixels"):
        transform(decode(image, "strip.png", 1))


@pytest.mark.parametrize("band", [2**22, 15])
@pytest.mark.parametrize("mode", ["I;16", "RGBA", "LA", "P"])
def test_values_are_those_of_the_formula(mode, band, monkeypatch):
    """16 bits divided by 65,535; transparent pixels on white; in bands as in whole."""
    monkeypatch.setattr(decode_module, "BAND_PIXELS", band)
    values = np.random.default_rng(0).integers(0, 65_536, (6, 7), dtype=np.uint16)
    if mode == "I;16":
        expected = (values.astype(np.float32) / np.float32(65_535) * 255).astype(np.uint8)
        assert (np.asarray(decode(Image.fromarray(values), "a", 1)) == expected).all()
        return
    layers = np.random.default_rng(1).integers(0, 256, (6, 7, 4), dtype=np.uint8)
    image = Image.fromarray(layers).convert(mode)
    white = Image.new("RGBA", image.size, "white")
    white.alpha_composite(image.convert("RGBA"))
    expected = image.convert("RGB") if mode == "P" else white.convert("RGB")
    assert (np.asarray(decode(image, "a", 3)) == np.asarray(expected)).all()

"""An image in bands gives what the whole image gives, from wherever it comes, and holds no more than a band."""

import errno
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from timm.models import create_model

from inline_attention import stream
from inline_attention.large.image_reader import image_for, open_image
from inline_attention.large.open_large_image import open_large_image
from inline_attention.large.tensor_file import TensorFile
from inline_attention.layers import Block, InLineAttention
from inline_attention.layers.bands import Place

from ..lite.test_decode import claim

ALL_LINEAR = [
    pytest.param("inline_deit_nano", {}, id="deit"),
    pytest.param("inline_deit_nano", {"kernel": "relu"}, id="deit-relu"),
    pytest.param("inline_deit_nano", {"local": False}, id="deit-global"),
    pytest.param("inline_deit_nano", {"global_pool": "avg"}, id="deit-avg"),
    pytest.param("inline_deit_nano", {"rope": "heads"}, id="deit-rope"),
    pytest.param("inline_pvt_nano", {"kernel": "relu", "rope": "all"}, id="pvt-relu-rope"),
    pytest.param("inline_pvt_nano", {}, id="pvt"),
    pytest.param("inline_pvt_nano", {"class_token": True, "kernel": "relu_affine"}, id="pvt-class-token"),
    pytest.param("inline_swin_nano", {"inline_depths": (1, 1, 2, 1)}, id="swin"),
    pytest.param("inline_cswin_nano", {"inline_depths": (1, 1, 2, 1)}, id="cswin"),
]


def made(name, dtype=torch.float64, **options):
    torch.manual_seed(0)
    return create_model(name, num_classes=5, **options).to(dtype).eval()


@pytest.mark.parametrize(("name", "options"), ALL_LINEAR)
@pytest.mark.parametrize(
    ("size", "tokens", "exact"),
    [((32, 32), 10**6, True), ((45, 70), 1, True), ((70, 45), 40, False), ((96, 33), 25, True)],
    ids=["one band", "one row a band", "resampled", "bands"],
)
def test_bands_give_what_the_whole_gives(name, options, size, tokens, exact):
    model = made(name, **options)
    image = torch.randn(1, 3, *size, dtype=torch.float64)
    if exact:
        model.set_input_size(size)  # positions need no resampling, which timm does in fp32
    with torch.no_grad():
        features, maps = model.forward_intermediates(image, norm=True)
        logits = model(image)
    streamed = stream(model, image, tokens=tokens)
    close = {"rtol": 1e-10, "atol": 1e-10} if exact else {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(streamed.features, features, **close)
    torch.testing.assert_close(streamed.logits, logits, **close)
    whole = maps[-1:] if model.num_prefix_tokens and len(streamed.maps) == 1 else maps  # a DeiT's taps are its blocks
    for ours, plain in zip(streamed.maps, whole, strict=True):
        torch.testing.assert_close(ours, plain, **close)


@pytest.mark.parametrize("name", ["inline_deit_tiny", "inline_pvt_tiny"])
def test_published_models_in_fp32(name):
    model = made(name, torch.float32, img_size=(160, 96))
    image = torch.randn(3, 200, 130)
    with torch.no_grad():
        plain = model.forward_features(image.unsqueeze(0))
    streamed = stream(model, image, tokens=64)
    assert float((streamed.features - plain).abs().max()) < 1e-5 * float(plain.abs().max())


def test_no_block_sees_more_than_a_band_and_its_neighbours(monkeypatch):
    seen = []
    respond = Block.respond
    monkeypatch.setattr(
        Block, "respond", lambda self, x, *rest, **more: (seen.append(x.shape[1]), respond(self, x, *rest, **more))[1]
    )
    stream(made("inline_deit_nano", torch.float32, patch_size=4), torch.randn(3, 400, 40), tokens=30)  # 100 rows of 10 tokens
    assert max(seen) == (3 + 2) * 10
    assert min(seen) == 1  # the class token, by itself


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8)


def normalised(model, pixels):
    mean, std = (torch.tensor(model.pretrained_cfg[name]).view(3, 1, 1) for name in ("mean", "std"))
    return ((torch.from_numpy(pixels).permute(2, 0, 1).float() / 255 - mean) / std).unsqueeze(0)


@pytest.mark.parametrize("kind", ["array", "uint16", "float", "memmap", "npy", "pillow", "png", "tiff"])
def test_images_from_everywhere_are_the_same(kind, pixels, tmp_path):
    model = made("inline_pvt_nano", torch.float32)
    np.save(tmp_path / "a.npy", pixels)
    for ending in ("png", "tiff"):
        Image.fromarray(pixels).save(tmp_path / f"a.{ending}")
    given = {
        "array": pixels,
        "uint16": pixels.astype(np.uint16) * 257,
        "float": pixels.astype(np.float64) / 255,
        "memmap": np.load(tmp_path / "a.npy", mmap_mode="r"),
        "npy": tmp_path / "a.npy",
        "pillow": Image.fromarray(pixels),
        "png": str(tmp_path / "a.png"),
        "tiff": tmp_path / "a.tiff",
    }[kind]
    with torch.no_grad():
        expected = model(normalised(model, pixels))
    torch.testing.assert_close(stream(model, given, tokens=30).logits, expected, rtol=1e-5, atol=1e-5)


def test_grey_images(pixels, tmp_path):
    grey = pixels[:, :, 0]
    Image.fromarray(grey).save(tmp_path / "a.png")
    model = made("inline_deit_nano", torch.float32, in_chans=1)
    mean, std = (model.pretrained_cfg[name] for name in ("mean", "std"))
    assert len(mean) == len(std) == 3
    with pytest.raises(ValueError, match=r"images of 1 channels cannot be normalised by mean \(0.485"):
        stream(model, grey)
    model.pretrained_cfg = {**model.pretrained_cfg, "mean": (0.5,), "std": (0.25,)}
    rows = image_for(model, tmp_path / "a.png").read(3, 9)
    torch.testing.assert_close(rows, (torch.from_numpy(grey[3:9]).float() / 255 - 0.5)[None, None] / 0.25)
    torch.testing.assert_close(stream(model, grey).logits, stream(model, tmp_path / "a.png").logits)


def test_pillows_guard_is_off_only_while_opening(pixels, tmp_path, monkeypatch):
    Image.fromarray(pixels).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    open_image(tmp_path / "a.png")
    assert Image.MAX_IMAGE_PIXELS == 10


def test_progress_counts_every_band():
    calls = []
    stream(
        made("inline_pvt_nano"), torch.randn(3, 64, 64, dtype=torch.float64), tokens=32, progress=lambda *now: calls.append(now)
    )
    assert [done for done, _ in calls] == list(range(1, len(calls) + 1))
    assert {total for _, total in calls} == {len(calls)}


def test_files_are_gone_and_tensors_stay(tmp_path):
    streamed = stream(made("inline_deit_nano"), torch.randn(3, 64, 64, dtype=torch.float64), folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    before = streamed.features.clone()
    streamed.features.mul_(2)
    torch.testing.assert_close(streamed.features, 2 * before)
    head = torch.nn.Linear(96, 2).double()
    head(streamed.features).sum().backward()  # a head can be trained on what came out
    assert head.weight.grad is not None


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (
            torch.zeros(2, 3, 64, 64),
            r"one image, a floating-point tensor \(3, H, W\), is expected, got torch.float32 \(2, 3, 64",
        ),
        (torch.zeros(3, 64, 64, dtype=torch.uint8), "floating-point tensor .* got torch.uint8"),
        (torch.zeros(3, 6, 64), "images must be at least 8 x 8 pixels for patches of 2, got 6 x 64"),
        (
            np.zeros((64, 64, 5), np.uint8),
            r"the image has 5 channels, 0, 1, 2, 3, 4, but the model's input has 3",
        ),
        (np.zeros((64, 64, 3, 1), np.uint8), r"must be \(H, W, channels\), channels last, or .* got \(64, 64, 3, 1\)"),
        (np.zeros((64, 64, 3), complex), "an image is of whole or floating-point numbers, got complex128"),
        (np.zeros((64, 64, 3), int), r"its pixels are int64: give the values that become black and white \(value_range="),
        (np.full((64, 64, 3), 2.0), "floating-point pixels must be from 0 to 1, got 2 to 2 in rows 0 to"),
        (np.full((64, 64, 3), np.nan), "the image has pixels that are not finite"),
        (b"pixels", "a tensor, an array, a pillow image or a path, got bytes"),
    ],
)
def test_wrong_images_are_refused(image, said):
    with pytest.raises(ValueError, match=said):
        stream(made("inline_deit_nano", torch.float32), image)


def test_wrong_files_are_refused(tmp_path, pixels):
    model = made("inline_deit_nano", torch.float32)
    with pytest.raises(FileNotFoundError, match=r"no image at .*nowhere.png"):
        stream(model, tmp_path / "nowhere.png")
    Image.fromarray(pixels).save(tmp_path / "whole.png")
    for name, content in {
        "a.png": b"not an image",
        "b.npy": b"not an array",
        "empty.npy": b"",
        "c.png": (tmp_path / "whole.png").read_bytes()[:2000],
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"cannot read the image .*{name}"):
            stream(model, tmp_path / name)
    np.save(tmp_path / "times.npy", np.zeros((20, 20, 3), "M8[s]"))
    with pytest.raises(ValueError, match=r"cannot read the image .*times\.npy: an image is of whole or .*, got datetime64"):
        stream(model, tmp_path / "times.npy")
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"objects.npy"):  # nothing in a file is ever executed
        stream(model, tmp_path / "objects.npy")


def test_outputs_that_are_not_finite_are_an_error():
    model = create_model("inline_deit_nano", num_classes=3).eval()
    with torch.no_grad():
        model.head.weight[1, 2] = float("nan")
    with pytest.raises(FloatingPointError, match="InLineDeiT"):
        stream(model, torch.randn(3, 32, 32), tokens=20)


def test_unsuitable_models_are_refused(monkeypatch):
    """Maps that a block takes at once may have 16,384 tokens; here 1,023, one less than they have."""
    image = torch.zeros(3, 64, 64)
    monkeypatch.setattr("inline_attention.large.stages.WHOLE_MAP", 1023)
    with pytest.raises(
        ValueError,
        match=r"stages.0.blocks.0 is SoftmaxAttention over the whole map, here of 1,024 tokens, and can have 1,023:",
    ):
        stream(made("inline_deit_nano", mixer="softmax"), image)
    with pytest.raises(ValueError, match=r"SoftmaxAttention over the whole map with reduced keys, here of 1,024 tokens"):
        stream(made("inline_pvt_nano", mixer="softmax"), image)
    with pytest.raises(ValueError, match=r"AngularAttention over the whole map, here of 1,024 tokens"):
        stream(made("inline_deit_nano", mixer="angular"), image)
    with pytest.raises(ValueError, match=r"EnhancedAttention in windows, here of 1,024 tokens"):
        stream(made("inline_swin_nano", mixer="enhanced", inline_window=4), image)
    with pytest.raises(ValueError, match="one of this package's models, such as inline_deit_tiny, got Linear"):
        stream(torch.nn.Linear(3, 3), image)
    with pytest.raises(ValueError, match=r"call model.eval"):
        stream(made("inline_deit_nano").train(), image)
    with pytest.raises(ValueError, match="stream needs a global_pool, got ''"):
        stream(made("inline_deit_nano", global_pool=""), image)
    with pytest.raises(FileNotFoundError, match="there is no folder /nowhere"):
        stream(made("inline_deit_nano"), image.double(), folder="/nowhere")
    with pytest.raises(ValueError, match="tokens must be at least 1, got 0"):
        stream(made("inline_deit_nano"), image.double(), tokens=0)


def test_a_full_disk_is_an_error_before_anything_is_computed(monkeypatch):
    taken = []

    def full(descriptor, start, size):
        taken.append(size)
        if len(taken) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    monkeypatch.setattr(Block, "summarize", None)
    with pytest.raises(OSError, match=r"no room for 0.0 GB of tokens in .*: No space left on device; pass another folder"):
        stream(made("inline_pvt_nano"), torch.zeros(3, 64, 64, dtype=torch.float64))
    assert taken == [8 * n * c for n, c in ((1024, 32), (256, 64), (64, 96), (16, 128))]


def test_where_files_cannot_be_reserved_they_are_written(monkeypatch):
    monkeypatch.delattr("os.posix_fallocate")
    test_published_models_in_fp32("inline_pvt_tiny")


def test_memory_of_the_file_is_freed(monkeypatch):
    """After a pass a process has little of its files in memory, however large they are."""
    held = []

    def resident():
        text = Path("/proc/self/smaps").read_text().split("\n")
        return [int(line.split()[1]) for line in text if line.startswith("Rss")]

    release = TensorFile.release

    def watched(self):
        release(self)
        calls.append(1)
        if len(calls) % 16 == 1:  # it takes long
            held.append(sum(resident()))

    calls = []
    model = made("inline_deit_nano", torch.float32, patch_size=4, depth=2)
    stream(model, torch.zeros(3, 128, 1024), tokens=1024)  # buffers settle
    monkeypatch.setattr(TensorFile, "release", watched)
    streamed = stream(model, torch.zeros(3, 1024, 1024), tokens=1024)
    size = streamed.features.nbytes // 1024  # 25 MB, in kB as the system counts
    assert size > 24_000
    assert held[-1] - held[0] < size / 2


def test_an_adapted_projection_is_called_part_by_part():
    """Someone's adapter of keys and values counts in the local part too."""
    model = made("inline_deit_nano")
    for block in model.stages[0].blocks:
        kv = block.mixer.kv

        class Adapted(torch.nn.Module):
            def __init__(self, kv):
                super().__init__()
                self.weight, self.bias, self.more = kv.weight, kv.bias, torch.nn.Linear(96, 192).double()

            def forward(self, x):
                return torch.nn.functional.linear(x, self.weight, self.bias) + self.more(x)

        block.mixer.kv = Adapted(kv)
    image = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        plain = model(image)
    torch.testing.assert_close(stream(model, image, tokens=40).logits, plain, rtol=1e-9, atol=1e-9)


def test_wrapped_blocks_and_embeddings_are_refused():
    model = made("inline_deit_nano")
    model.stages[0].blocks[2] = torch.nn.Sequential(model.stages[0].blocks[2])
    with pytest.raises(ValueError, match=r"stages.0.blocks.2 of this one is Sequential"):
        stream(model, torch.zeros(3, 32, 32, dtype=torch.float64))
    model = made("inline_pvt_nano")
    model.stages[1].embed.proj = torch.nn.Sequential(model.stages[1].embed.proj)
    with pytest.raises(ValueError, match=r"plain convolutions; stages.1.embed.proj is Sequential"):
        stream(model, torch.zeros(3, 32, 32, dtype=torch.float64))


def test_many_bands_in_fp32_with_means_far_from_zero():
    """300 bands of tokens whose mean is 30 times their spread, against float64 all at once."""
    torch.manual_seed(0)
    layer = InLineAttention(32, 2).eval()
    x = torch.randn(1, 300 * 64, 32) + 30
    with torch.no_grad():
        exact = InLineAttention(32, 2).double().eval()
        exact.load_state_dict(layer.state_dict())
        whole = exact(x.double(), (300, 64))
        first, *rest = [layer.summarize(band) for band in x.split(64, 1)]
        answered = layer.respond(x[:, :640], (sum(rest, start=first),), (10, 64), place=Place(halo=(0, 1)))
    assert float((answered - whole[:, :576]).abs().max()) < 1e-4 * float(whole.abs().max())


def test_sixteen_bits_and_transparency(tmp_path):
    grey = np.random.default_rng(0).integers(0, 65536, (40, 56), dtype=np.uint16)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    rows = open_image(tmp_path / "grey.png").read(5, 9)
    torch.testing.assert_close(rows, torch.from_numpy(grey[5:9] / np.float32(65535)).expand(1, 3, -1, -1))
    clear = np.zeros((40, 56, 4), np.uint8)
    clear[:20, :, 3] = 255  # black above, nothing below
    Image.fromarray(clear).save(tmp_path / "clear.png")
    rows = open_image(tmp_path / "clear.png").read(18, 22)
    assert rows[0, :, :2].max() == 0
    assert rows[0, :, 2:].min() == 1
    real = np.linspace(0, 200, 40 * 56, dtype=np.float32).reshape(40, 56)
    Image.fromarray(real).save(tmp_path / "real.tiff")
    image = open_large_image(tmp_path / "real.tiff", value_range=(0, 255))
    torch.testing.assert_close(open_image(image, channels=1).read(0, 3)[0, 0], torch.from_numpy(real[:3] / 255))
    with pytest.raises(ValueError, match=r"3 channels, 0 \(red\), 1 \(green\), 2 \(blue\), but the model's input has 5"):
        open_image(tmp_path / "clear.png", channels=5)


def test_a_file_that_claims_more_than_it_has_is_refused(tmp_path, monkeypatch):
    """By its header, before anything is allocated: images by the limit, arrays by the size of their file."""
    model = made("inline_deit_nano", torch.float32)
    (tmp_path / "a.png").write_bytes(claim(60_000, 60_000))
    with pytest.raises(ValueError, match=r"a\.png: 60,000 x 60,000 pixels cannot be in [0-9]+ bytes: it is truncated"):
        stream(model, tmp_path / "a.png")
    monkeypatch.setattr("inline_attention.large.pillow_file.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"a\.png: 60,000 x 60,000 pixels .* are more than 268,435,456: INLINE_MAX_PIXELS"):
        stream(model, tmp_path / "a.png")
    np.save(tmp_path / "a.npy", np.zeros((40, 40, 3), np.uint8))
    header = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(header.replace(b"(40, 40, 3)", b"(9**4, 4,3)").replace(b"9**4", b"9999"))
    with pytest.raises(ValueError, match=r"cannot read the image .*a\.npy: mmap length is greater than file size"):
        stream(model, tmp_path / "a.npy")
    Image.new("RGB", (64, 64)).save(tmp_path / "b.png")
    monkeypatch.setenv("INLINE_MAX_PIXELS", "4095")
    with pytest.raises(ValueError, match=r"64 x 64 pixels .* are more than 4,095"):
        stream(model, tmp_path / "b.png")


def test_tensors_without_numbers_are_refused():
    image = torch.zeros(3, 64, 64)
    for wrong in (image.to("meta"), image.to_sparse()):
        with pytest.raises(ValueError, match=r"an image must be a dense tensor with numbers, got one of layout torch.s"):
            stream(made("inline_deit_nano"), wrong)
    mixed = made("inline_deit_nano", torch.float32)
    mixed.head.double()
    with pytest.raises(ValueError, match=r"one dtype and with numbers: head.weight is torch.float64 on cpu"):
        stream(mixed, image)
    with pytest.raises(ValueError, match=r"is torch\.float32 on meta"):
        stream(made("inline_deit_nano", torch.float32).to("meta"), image)
    with pytest.raises(ValueError, match="tokens must be at least 1, got None"):
        stream(made("inline_deit_nano"), image.double(), tokens=None)

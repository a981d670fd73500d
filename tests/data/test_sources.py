"""Where images come from, and what is said of those that cannot be used."""

import gzip
import json
import os
import tarfile
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image, UnidentifiedImageError

from inline_attention.data.config import DataConfig
from inline_attention.data.datasets import StreamingDataset, check_classes
from inline_attention.data.loader import evaluation_batches, training_batches
from inline_attention.data.sources import open_source, open_split
from inline_attention.data.transforms import evaluation_transform, training_transform
from inline_attention.lite.decode import BadImageError
from inline_attention.training.chosen_recipe import choose_recipe
from inline_attention.training.classify import ClassificationTransform
from inline_attention.training.schedule import make_plan

from ..training.small import small_recipe, write_images


def names(images) -> set[str]:
    return {"/".join(images.name(index).split("/")[-2:]) for index in range(len(images))}


def test_digits_are_split_the_same_way_every_time():
    first, second = open_source(DataConfig()), open_source(DataConfig())
    assert (len(first.train), len(first.val)) == (1438, 359)
    assert names(first.val) == names(second.val)
    assert not names(first.val) & names(first.train)
    assert first.classes == tuple("0123456789")


def test_one_folder_is_split_by_class_and_by_name(tmp_path):
    write_images(tmp_path / "here", 10)
    source = open_source(DataConfig(source=str(tmp_path / "here"), val_share=0.3))
    assert source.classes == ("blue", "green", "red")
    assert sorted(source.val.labels()) == [0] * 3 + [1] * 3 + [2] * 3
    assert len(source.train) == 21
    (tmp_path / "here").rename(tmp_path / "there")
    assert names(open_source(DataConfig(source=str(tmp_path / "there"), val_share=0.3)).val) == names(source.val)


def test_train_and_val_share_their_classes(tmp_path):
    """A class without validation images must not shift the numbers of the others."""
    write_images(tmp_path / "train", 3)
    write_images(tmp_path / "val", 2, classes=("red", "green"))
    source = open_source(DataConfig(source=str(tmp_path)))
    assert source.classes == ("blue", "green", "red")
    assert sorted(source.val.labels()) == [1, 1, 2, 2]
    assert source.train.load(0, 3)[1] == 0


@pytest.mark.filterwarnings("ignore")  # timm's reader leaves the archive open
def test_tar(tmp_path):
    write_images(tmp_path / "files", 5)
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        archive.add(tmp_path / "files", arcname=".")
    source = open_source(DataConfig(source=str(tmp_path / "all.tar")))
    assert (len(source.train), len(source.val), source.classes) == (12, 3, ("blue", "green", "red"))
    image, label = source.val.load(0, 3)
    assert (image.size, label) == ((28, 20), source.val.labels()[0])


@pytest.mark.parametrize("size", [b"77777777777\0", b"\x80" + b"\x7f" * 11, b"\xff" * 12])
def test_a_wrong_size_in_a_tar_ends_at_once(size, tmp_path):
    """Reading on to 8 GB or more behind the end of the file would take minutes or years."""
    path = tmp_path / "images.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        archive.add(write_images(tmp_path / "data", 2), arcname=".")
    data = bytearray(path.read_bytes())
    start = data.rindex(b"ustar") - 257
    data[start + 124 : start + 136] = size
    data[start + 148 : start + 156] = b" " * 8
    data[start + 148 : start + 156] = b"%06o\0 " % sum(data[start : start + 512])
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"images\.tar (cannot be read|holds no images|is neither)"):
        open_source(DataConfig(source=str(path)))


def test_tars_of_splits(tmp_path):
    for split, count in (("train", 4), ("val", 2)):
        write_images(tmp_path / "files" / split, count)
        with tarfile.open(tmp_path / f"{split}.tar", "w") as archive:
            archive.add(tmp_path / "files" / split, arcname=split)
    write_images(tmp_path / "files" / "val", 2)
    source = open_source(DataConfig(source=str(tmp_path)))
    assert (len(source.train), len(source.val), len(source.classes)) == (12, 6, 3)


def test_torchvision_datasets(tmp_path):
    """CIFAR-10's own files would have to be fetched; torchvision's folder reader is reached by the same door."""
    for split in ("train", "val"):
        write_images(tmp_path / split, 2)
    source = open_source(DataConfig(source="torch/image_folder", root=str(tmp_path)))
    assert (len(source.train), len(source.val), source.classes) == (6, 6, ("blue", "green", "red"))
    assert source.train.load(5, 3)[1] == 2
    with pytest.raises(ValueError, match="torch/cifar10 cannot be opened: Dataset not found"):
        open_source(DataConfig(source="torch/cifar10", root=str(tmp_path)))
    with pytest.raises(ValueError, match=r"torch/cifar10 needs the folder that holds it: --data.root DIR, got None"):
        open_source(DataConfig(source="torch/cifar10"))


def write_shards(root, splits=("train", "validation")):
    """Two shards for each split, as webdataset has them, and timm's `_info.json`."""
    write_images(root / "files", 8)
    files = sorted((root / "files").rglob("*.png"))
    info = {"splits": {}, "class_names": ["blue", "green", "red"]}
    for split in splits:
        shards = []
        for shard in range(2):
            with tarfile.open(root / f"{split}-{shard}.tar", "w") as archive:
                for number, file in enumerate(files[shard::2]):
                    archive.add(file, arcname=f"{number:04}.png")
                    label = root / "label"
                    label.write_text(str(["blue", "green", "red"].index(file.parent.name)))
                    archive.add(label, arcname=f"{number:04}.cls")
            shards.append(f"{split}-{shard}.tar")
        info["splits"][split] = {
            "name": split,
            "num_samples": len(files),
            "filenames": shards,
            "shard_lengths": [len(files[shard::2]) for shard in range(2)],
        }
    (root / "_info.json").write_text(json.dumps(info))
    return len(files)


@pytest.mark.filterwarnings("ignore")  # webdataset's own
@pytest.mark.parametrize("workers", [0, 2])
def test_webdataset_streams(tmp_path, workers):
    count = write_shards(tmp_path)
    data = DataConfig(source="wds/colours", root=str(tmp_path), size=(16, 16))
    source = open_source(data)
    assert isinstance(source.train, StreamingDataset)
    assert (len(source.train), len(source.val), source.classes) == (count, count, ("blue", "green", "red"))
    show = ClassificationTransform(evaluation_transform(data))
    batches = evaluation_batches(source.val, show, 5, rank=0, processes=1, channels=3, workers=workers)
    assert sorted(label for batch in batches for label in batch.targets.tolist()) == [0] * 8 + [1] * 8 + [2] * 8
    recipe = small_recipe("", optim={"batch": 4, "device_batch": 4})
    plan = make_plan(recipe, len(source.train), 1)
    how = {"seed": 0, "rank": 0, "channels": 3, "workers": workers}
    shown = ClassificationTransform(training_transform(data, replace(recipe.augment, auto="")))
    whole = list(training_batches(source.train, shown, plan, start=0, **how))
    rest = list(training_batches(source.train, shown, plan, start=8, **how))
    assert len(whole) == plan.steps
    assert len(rest) == plan.steps - 8
    assert all((a.pixels == b.pixels).all() for a, b in zip(whole[8:], rest, strict=True))


@pytest.mark.filterwarnings("ignore")  # the library's own
def test_hugging_face_datasets(tmp_path, monkeypatch):
    import datasets
    from timm.data.readers import reader_hfds

    write_images(tmp_path / "train", 3)
    write_images(tmp_path / "validation", 2)
    load = datasets.load_dataset

    def local(name, *, split, cache_dir, trust_remote_code):
        assert name == "owner/colours"
        return load("imagefolder", data_dir=str(tmp_path), split=split, cache_dir=str(tmp_path / "cache"))

    monkeypatch.setattr(reader_hfds.datasets, "load_dataset", local)
    source = open_source(DataConfig(source="hfds/owner/colours"))
    assert (len(source.train), len(source.val), source.classes) == (9, 6, ("blue", "green", "red"))
    assert source.val.load(5, 3)[1] == 2


def test_fashion_mnist_as_it_is_packed(tmp_path):
    for name, count in (("train", 30), ("t10k", 10)):
        pixels = np.arange(count * 784, dtype=np.uint32).astype(np.uint8).tobytes()
        (tmp_path / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(16) + pixels, mtime=0))
        (tmp_path / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(8) + bytes(n % 10 for n in range(count))))
    source = open_source(DataConfig(source="fashion-mnist", root=str(tmp_path)))
    assert (len(source.train), len(source.val), source.classes[9]) == (30, 10, "boot")
    image, label = source.train.load(1, 1)
    assert (image.size, image.mode, label) == ((28, 28), "L", 1)
    assert image.getpixel((1, 0)) == (784 + 1) % 256
    with pytest.raises(ValueError, match=r"there is no Fashion-MNIST in .*nowhere: apt install dataset-fashion-mnist"):
        open_source(DataConfig(source="fashion-mnist", root=str(tmp_path / "nowhere")))


@pytest.mark.parametrize(
    ("part", "content", "message"),
    [
        ("images-idx3", b"", r"t10k-images-idx3-ubyte\.gz cannot be read, perhaps it is damaged"),
        (
            "images-idx3",
            gzip.compress(bytes(800), mtime=0)[:-9],
            r"t10k-images-idx3-ubyte\.gz cannot be read, perhaps it is damaged",
        ),
        ("images-idx3", gzip.compress(bytes(801), mtime=0), "801 bytes are no header and rows of 784"),
        ("labels-idx1", b"text", r"t10k-labels-idx1-ubyte\.gz cannot be read, perhaps it is damaged: Not a gzipped file"),
        ("labels-idx1", gzip.compress(bytes(10), mtime=0), "the t10k images and labels do not fit together"),
        ("labels-idx1", gzip.compress(bytes(8) + b"\x0a", mtime=0), "the t10k images and labels do not fit together"),
    ],
)
def test_damaged_files_of_fashion_mnist_are_named(part, content, message, tmp_path):
    for name in ("train", "t10k"):
        (tmp_path / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(16 + 784), mtime=0))
        (tmp_path / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(8 + 1), mtime=0))
    (tmp_path / f"t10k-{part}-ubyte.gz").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        open_source(DataConfig(source="fashion-mnist", root=str(tmp_path)))


def test_what_is_wrong_with_a_folder_raises(tmp_path):
    def told(path):
        with pytest.raises(ValueError, match=r".") as caught:
            open_source(DataConfig(source=str(path)))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert told(tmp_path / "nowhere").startswith(f"there is no folder {tmp_path / 'nowhere'}; sources by name: digits, ")
    (tmp_path / "empty").mkdir()
    assert told(tmp_path / "empty").startswith(f"{tmp_path / 'empty'} holds no class folders")
    write_images(tmp_path / "one", 2, classes=("red",))
    assert told(tmp_path / "one") == f"{tmp_path / 'one'} has one class, red: at least two classes are needed"
    (tmp_path / "one" / "void").mkdir()
    assert told(tmp_path / "one") == f"{tmp_path / 'one' / 'void'} holds no images"
    write_images(tmp_path / "split" / "train", 2, classes=("red", "blue"))
    write_images(tmp_path / "split" / "val", 2)
    assert told(tmp_path / "split") == f"{tmp_path / 'split' / 'val'} has an unknown class 'green'; the classes are: blue, red"
    write_images(tmp_path / "half" / "val", 2)
    assert told(tmp_path / "half") == f"{tmp_path / 'half'} has val/ but no train/"
    write_images(tmp_path / "few", 1)
    assert told(tmp_path / "few") == f"{tmp_path / 'few'}: class blue has one image: none is left for validation"
    with pytest.raises(ValueError, match="there is no folder /nowhere"):
        open_split(DataConfig(source="/nowhere"), None, ("a", "b"))


MODES = {
    "L": (90, 90, 90),
    "RGB": (30, 60, 90),
    "RGBA": (30, 60, 90),
    "CMYK": None,
    "I;16": (90, 90, 90),
    "I": (90, 90, 90),
    "F": (90, 90, 90),
    "1": (255, 255, 255),
    "P": None,
    "LA": (90, 90, 90),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(1, 1), (9, 5)])
def test_any_kind_of_image(tmp_path, mode, size):
    """16-bit images are scaled and not clipped; an image of one pixel is an image."""
    folder = write_images(tmp_path / "data", 2)
    fill = {"L": 90, "RGB": (30, 60, 90), "RGBA": (30, 60, 90, 255), "CMYK": (225, 195, 165, 0), "I;16": 90 * 257}
    fill |= {"I": 90 * 257, "F": 90.4, "1": 1, "P": 7, "LA": (90, 255)}
    file = folder / "red" / ("new.tif" if mode in ("CMYK", "F", "I", "I;16") else "new.png")
    Image.new(mode, size, fill[mode]).save(file)
    data = DataConfig(source=str(folder), size=(16, 16), val_share=0.5)
    source = open_source(data)
    places = [(part, i) for part in (source.train, source.val) for i in range(len(part)) if "new." in part.name(i)]
    [(part, index)] = places
    for channels in (3, 1):
        image, label = part.load(index, channels)
        assert (image.mode, image.size, label) == ("RGB" if channels == 3 else "L", size, 2)
        shown = replace(data, channels=channels)
        assert training_transform(shown, small_recipe("").augment)(image).shape == (channels, 16, 16)
        assert evaluation_transform(shown)(image).shape == (channels, 16, 16)
    if MODES[mode]:
        image, _ = part.load(index, 3)
        assert image.getpixel((0, 0)) == MODES[mode]


def test_bad_images_are_named(tmp_path):
    folder = write_images(tmp_path, 3)
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "red" / "cut.jpg", quality=95)
    whole = (folder / "red" / "cut.jpg").read_bytes()
    (folder / "red" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "red" / "text.png").write_text("not an image")
    (folder / "red" / "void.png").write_bytes(b"")
    images = open_split(DataConfig(source=str(folder)), None, ("blue", "green", "red")).val
    told = {}
    for index in range(len(images)):
        try:
            images.load(index, 3)
        except BadImageError as error:
            told[images.name(index).rsplit("/", 1)[-1]] = str(error)
    assert set(told) == {"cut.jpg", "text.png", "void.png"}
    assert told["cut.jpg"].startswith(f"{folder / 'red' / 'cut.jpg'} cannot be read: image file is truncated")
    assert told["text.png"] == f"{folder / 'red' / 'text.png'} cannot be read: not an image"


def test_the_recipe_is_chosen_by_the_size_of_images(tmp_path):
    for side, name in ((32, "small_images"), (64, "medium_images"), (120, "large_images")):
        folder = write_images(tmp_path / str(side), 3, size=(side, side + 8))
        assert choose_recipe(str(folder), open_source(DataConfig(source=str(folder))))[0] == name
    assert choose_recipe("digits", open_source(DataConfig()))[0] == "digits"


def test_which_folders_are_classes(tmp_path):
    def told(path):
        with pytest.raises(ValueError, match=r".") as caught:
            open_source(DataConfig(source=str(path)))
        return str(caught.value)

    camera = write_images(tmp_path / "camera", 3)
    for file in camera.rglob("*.png"):
        file.rename(file.with_suffix(".PNG"))
    assert len(open_source(DataConfig(source=str(camera))).train) == 6
    hidden = write_images(tmp_path / "hidden", 3)
    write_images(hidden / ".trash", 2, classes=("red",))
    assert told(hidden).startswith(f"{hidden / '.trash' / 'red'} is a hidden folder with images")
    beside = write_images(tmp_path / "beside", 3)
    (beside / "red" / "0.png").rename(beside / "0.png")
    assert told(beside).startswith(f"{beside} holds images beside its class folders")
    twice = write_images(tmp_path / "twice" / "a", 3).parent
    write_images(twice / "b", 3, classes=("red",))
    assert told(twice).startswith("two folders have the name of one class: ")
    for split in ("train", "val"):
        write_images(tmp_path / "nested" / split / "colours", 3)
    nested = open_source(DataConfig(source=str(tmp_path / "nested")))
    assert (nested.classes, len(nested.val)) == (("blue", "green", "red"), 9)
    write_images(tmp_path / "flat" / "train", 3)
    (tmp_path / "flat" / "val").mkdir()
    (tmp_path / "flat" / "val" / "0.png").write_bytes(b"")
    assert told(tmp_path / "flat").startswith(f"{tmp_path / 'flat' / 'val'} holds no class folders")


@pytest.mark.parametrize(
    ("classes", "count", "message"),
    [
        (("a", "b", "a"), None, "here: the classes 0 and 2 are both called 'a': rename one"),
        (("a", " ", "b"), None, "here: class 1 has no name, of 3 classes: name it"),
        (tuple(map(str, range(99))), 10, "here names 99 classes, and the model has 10: give one name for each"),
    ],
)
def test_every_class_has_a_name_of_its_own(classes, count, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        check_classes(classes, "here", count)
    assert check_classes(("a", "b"), "here", 2) == ("a", "b")


def test_an_empty_source_is_not_the_folder_here():
    with pytest.raises(ValueError, match=r"^data.source must not be empty, got ''"):
        open_source(DataConfig(source=""))


def test_broken_tars_are_named(tmp_path):
    """Truncated in a header or in an image, compressed and cut, noise, empty."""
    write_images(tmp_path / "data", 3)
    with tarfile.open(tmp_path / "whole.tar", "w") as archive:
        archive.add(tmp_path / "data", arcname=".")
    whole = (tmp_path / "whole.tar").read_bytes()
    noise = np.random.default_rng(0).bytes(5000)
    for content in (
        whole[:700],
        whole[: len(whole) // 2],
        gzip.compress(whole, mtime=0)[:500],
        noise,
        b"",
        noise[:512] + whole[512:],
    ):
        broken = tmp_path / "broken.tar"
        broken.write_bytes(content)
        with pytest.raises(ValueError, match=r"^.*broken\.tar (is neither a folder nor a tar|cannot be read)"):
            open_source(DataConfig(source=str(broken)))
        with pytest.raises(ValueError, match=r"^.*broken\.tar "):
            open_split(DataConfig(source=str(broken)), None, ("blue", "green", "red"))
    assert len(open_source(DataConfig(source=str(tmp_path / "whole.tar"))).classes) == 3


@pytest.mark.parametrize(
    ("name", "said"), [(b"\xff\xfe", r"\\udcff\\udcfe"), (b"a\nb", r"a\\nb"), (b"\x1b[31m", r"\\x1b\[31m")]
)
def test_class_folders_whose_names_cannot_be_printed_are_refused(tmp_path, name, said):
    write_images(tmp_path, 2, classes=("blue", "red"))
    (tmp_path / "red").rename(tmp_path / os.fsdecode(name))
    with pytest.raises(ValueError, match=f"the class name '{said}' has control characters or is not UTF-8: rename the class"):
        open_source(DataConfig(source=str(tmp_path)))


def test_files_whose_names_are_not_utf_8_are_used(tmp_path):
    write_images(tmp_path, 3, classes=("blue", "red"))
    (tmp_path / "red" / "0.png").rename(tmp_path / "red" / os.fsdecode(b"\xff.png"))
    source = open_source(DataConfig(source=str(tmp_path)))
    assert (len(source.train), len(source.val)) == (4, 2)
    assert source.fingerprint() == open_source(DataConfig(source=str(tmp_path))).fingerprint()


def test_bad_files_are_listed_in_printable_lines(tmp_path):
    """By worker processes too."""
    write_images(tmp_path, 3, classes=("blue", "red"))
    for number in range(3):
        (tmp_path / "red" / f"{number}.png").unlink()
        (tmp_path / "red" / f"{number}\n\x1b[31m.png").write_bytes(b"no image")
    images = open_source(DataConfig(source=str(tmp_path))).train
    transform = ClassificationTransform(evaluation_transform(DataConfig()))
    batches = evaluation_batches(images, transform, 2, rank=0, processes=1, channels=3, workers=1)
    bad = [line for batch in batches for line in batch.bad]
    assert len(bad) >= 2
    assert all(line.endswith(r"\n\x1b[31m.png cannot be read: not an image") for line in bad)


def test_webdataset_refuses_a_member_of_absurd_size():
    """Python's tarfile would go on for years to skip it."""
    from webdataset import tariterators

    from inline_attention.compat import open_webdataset_images

    open_webdataset_images(Image.open)
    member = tarfile.TarInfo("0.cls")
    member.size = 2**80
    archive = BytesIO(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(tarfile.ReadError, match=r"'0.cls' claims 1,208,925,819,614,629,174,706,176 bytes"):
        list(tariterators.tar_file_iterator(archive))


def test_webdataset_opens_the_same_formats(monkeypatch):
    from timm.data.readers import reader_wds

    from inline_attention.compat import open_webdataset_images
    from inline_attention.lite.decode import open_pillow

    monkeypatch.setattr(reader_wds, "Image", Image)
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_: pytest.fail("Ghostscript was started"))
    open_webdataset_images(open_pillow)
    for kind in ("EPS", "PNG"):
        image = BytesIO()
        Image.new("RGB", (5, 4)).save(image, format=kind)
        sample = {"png": image.getvalue(), "cls": b"1"}
        if kind == "PNG":
            assert reader_wds._decode(sample, "png")["jpg"].size == (5, 4)
        else:
            with pytest.raises(UnidentifiedImageError):
                reader_wds._decode(sample, "png")

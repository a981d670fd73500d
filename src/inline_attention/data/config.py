"""Which images a run reads, and how they are transformed: two sections of a recipe."""

from dataclasses import dataclass
from typing import Literal

from ..lite.limits import HUGE, TINY, input_fault

Target = Literal["auto", "class", "labels", "number"]
"""What is learned of a slide: one class, several labels that are 0 or 1 each, or a number."""
OffGrid = Literal["nearest", "refuse"]
"""What to do with a tile between the cells of the grid: put it into the nearest free cell, or refuse the file."""


@dataclass(frozen=True)
class DataConfig:
    """Which images, and how they become the model's input."""

    source: str = "digits"
    """A folder or tar of class folders, wds/..., hfds/..., torch/..., digits, fashion-mnist; other tasks: docs/dense.md."""
    root: str | None = None
    """Folder of a wds/, hfds/ or torch/ source."""
    train: str = "train"
    """Name of the training split of a source that has named splits."""
    val: str = "validation"
    """Name of the split that the model is scored on; 'train' for the training images themselves, and never 'test'."""
    val_share: float = 0.2
    """Share (of each class) of the training images used for validation where a source has no validation split."""
    limit: int = 0
    """To detect and segment: only the first so many images of each split, for a quick try; 0: all."""
    images: str = ""
    """To segment, or detect with instance masks: folder of the images, such as '{split}'; unset: a common name."""
    masks: str = ""
    """Folder of their masks, such as '{split}annot' or 'labels/*_mask.png', where * is the image's name."""
    ignore: tuple[int, ...] = ()
    """Labels of the masks that are ignored, to segment besides 255: they are no classes, or no objects."""
    class_name: str = "object"
    """To detect with instance masks: the name of their one class."""
    labels: str = ""
    """To learn from slides: a CSV with a column that names them, such as slide_id, and their labels; it may have split and
    patient_id."""
    columns: tuple[str, ...] = ()
    """Columns of this table that are learned; unset: label, or the only other column, or all others if they are 0 or 1."""
    level: int | None = None
    """Slides from their images: level of a file's pyramid to read, 0 for the finest; unset: 0."""
    mpp: float | None = None
    """Pixel size to read them at, in micrometres (slides) or metres (maps), in place of a level."""
    select: tuple[str, ...] = ()
    """Channels of a file that the model sees, by number or name, as many as data.channels; unset: all but alpha."""
    value_range: tuple[float, float] | None = None
    """Values of a file that become black and white; unset: all of 8 or 16 bits, 0 to 1 of floating-point numbers."""
    valid: str | None = None
    """Which pixels of a slide count: tissue, nodata, none for all, or an image file; unset: those that hold data."""
    size: tuple[int, int] = (32, 32)
    """Height and width that images are resized to; to segment, of the crop, whose shorter side images are scaled to; of bags,
    the grid that position embeddings are made for."""
    channels: Literal[1, 3] = 3
    """3 for colour, 1 for grey."""
    crop_mode: Literal["squash", "center"] = "squash"
    """Evaluation: 'squash' resizes both sides as the paper does, 'center' the shorter one as timm usually does."""
    crop: float = 0.875
    """Evaluation: the share of the resized side that the centre crop keeps."""
    interpolation: Literal["bicubic", "bilinear", "nearest"] = "bicubic"
    """How images are resized."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Subtracted from red, green and blue in 0..1; a grey image takes the mean of the three."""
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """Divides them after that."""
    workers: int | None = None
    """Processes that read images, for each training process; unset: by the cores there are."""
    skip_bad: bool = False
    """Go on without images that cannot be read, and list them at the end, instead of stopping."""


def data_faults(data: DataConfig) -> list[str]:
    """What is wrong with how images become the model's input, a line for each value."""
    if min(data.size) < 1:
        return [f"data.size must be two positive numbers, got {data.size}"]
    if not 0 < data.crop <= 1:
        return [f"data.crop must be within 0..1 and not 0, got {data.crop}"]
    faults = [found] if (found := input_fault(data.size, data.crop)) else []
    if not all(abs(value) < HUGE for value in data.mean):
        faults.append(f"data.mean must be three finite numbers, got {data.mean}")
    if not all(TINY < value < HUGE for value in data.std):
        faults.append(f"data.std must be three positive numbers, got {data.std}")
    return faults


@dataclass(frozen=True)
class AugmentConfig:
    """Random augmentation of training images."""

    scale: tuple[float, float] = (0.08, 1.0)
    """Share of the image's area that a random crop covers."""
    ratio: tuple[float, float] = (0.75, 1.3333)
    """Width over height of a random crop."""
    resize: tuple[float, float] = (0.5, 2.0)
    """Segmentation: factors between which images are scaled before they are cropped, in place of `scale` and `ratio`."""
    hflip: float = 0.5
    """Probability of a horizontal flip."""
    vflip: float = 0.0
    """Probability of a vertical flip."""
    turn: float = 0.0
    """Probability of turning a slide by one, two or three quarters."""
    drop_tiles: float = 0.0
    """Share of a bag's tiles that are left out."""
    color_jitter: float = 0.0
    """Strength of random brightness, contrast and saturation (and hue, to detect and segment); RandAugment takes its place."""
    auto: str = ""
    """Policy of timm's auto-augment, such as rand-m9-mstd0.5-inc1."""
    erase: float = 0.0
    """Probability of erasing a rectangle with noise."""
    mixup: float = 0.0
    """Alpha of mixup; 0: none."""
    cutmix: float = 0.0
    """Alpha of cutmix; 0: none."""
    mix_prob: float = 1.0
    """Probability of mixing a batch at all."""
    mix_switch: float = 0.5
    """Probability of cutmix where both are on."""
    smoothing: float = 0.0
    """Label smoothing."""

"""What is run on malformed inputs: commands and functions of the package, each with the seed that it reads."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A command, or a piece of Python, that reads one input."""

    seed: str
    """What is copied from the seeds into the case, and damaged: a file or a folder."""
    words: str
    """The words after `inline`; {} is the path of the copy. For Python, the code, which finds the path in sys.argv[1]."""
    damaged: tuple[str, ...] = ()
    """Patterns of the files of a folder that are damaged."""
    python: bool = False
    weight: int = 1
    """How often it is drawn, compared to the others."""
    renamed: bool = False
    """Whether what is copied may get an odd name."""
    names: tuple[str, ...] = ()
    """What an error may name instead of the damaged file, such as data that no longer fit it."""
    codes: tuple[int, ...] = (0, 2)
    """Exit codes that it may end with."""


def images(words: str, weight: int, *files: str) -> tuple[Target, ...]:
    """A target for each kind of image."""
    return tuple(Target(f"images/{file}", words, weight=weight, renamed=True) for file in files)


PICTURES = ("a.png", "a.jpg", "a.tif", "a.webp", "a.gif", "a.ppm", "a.bmp", "deflated.tiff", "animated.webp", "palette.png")
DEEP = ("sixteen.png", "float.tiff")
LARGE = ("pyramid.tif", "a.ome.tif", "a.svs", "map.tif", "map.jp2")
ZARR = ("zarr.json", "**/zarr.json", "**/.z*", "**/c/*", "0/*/*/*")
CLASSES = ("*/*.png",)
COCO = ("annotations/*_val2017.json",) * 8 + ("val2017/*.png",)
MAPS = ("masks/val/*.png",) * 3 + ("images/val/*.png",) + ("classes.txt",) * 2
SHARDS = ("_info.json",) * 2 + ("validation-0000.tar",)
RUN = ("best.safetensors",) * 3 + ("recipe.toml",)
PYRAMID = "seeds/large/pyramid.tif"
OPTIONS = (
    "predict seeds/images/a.png --model seeds/run --top {}",
    "predict seeds/images/a.png --model seeds/run --batch {}",
    "predict seeds/images/a.png --model seeds/run --device {}",
    "predict seeds/images/a.png --model seeds/detect --threshold {}",
    "predict seeds/images/a.png --model seeds/segment --side {}",
    "predict seeds/images/a.png --model {}",
    "predict seeds/images/a.png --onnx {}",
    "predict {} --model seeds/run",
    f"predict {PYRAMID} --model seeds/run --stream --level {{}}",
    f"predict {PYRAMID} --model seeds/run --stream --channels {{}}",
    f"predict {PYRAMID} --model seeds/run --stream --value-range {{}}",
    f"predict {PYRAMID} --model seeds/run --stream --mask {{}}",
    "eval seeds/run --workers 0 --out out --crop {}",
    "eval seeds/run --workers 0 --out out --split {}",
    "eval seeds/run --workers 0 --out out --data {}",
    "train --recipe seeds/recipe.toml --dry-run --data.val-share {}",
    "train --recipe seeds/recipe.toml --dry-run --optim.lr {}",
    "train --recipe seeds/recipe.toml --dry-run --schedule.epochs {}",
    "train --recipe seeds/recipe.toml --dry-run --seed {}",
    "train --recipe seeds/recipe.toml --dry-run --model.args {}",
    "train --recipe seeds/recipe.toml --dry-run --augment.auto {}",
    "train --recipe seeds/recipe.toml --dry-run --model.weights {}",
    "train --recipe seeds/recipe.toml --dry-run --data {}",
    "train --dry-run --recipe {}",
    "linearize seeds/softmax --batch 2 --device cpu --out out/l --epochs {}",
    "linearize seeds/softmax --batch 2 --device cpu --dry-run --keep-cost 0 --keep {}",
    "analyze maps seeds/run --data seeds/classes --count 1 --out out --image {}",
    "analyze confusion seeds/run --count 1 --out out --tolerance {}",
    "analyze rank seeds/run --out out --count {}",
    "reproduce --dry-run --data digits --budget {}",
    "reproduce --dry-run --data digits --scale {}",
    "bench compare seeds/results/stream.json seeds/results/stream.json --tolerance {}",
    "list {}",
    "export seeds/run --format hub --out out/hub --weights {}",
    "convert seeds/pickle/weights.pth out/new.safetensors --model {}",
)
"""Commands with an odd value for one option."""
FROM_PRETRAINED = "import sys; from inline_attention.deploy.hub import from_pretrained; from_pretrained(sys.argv[1])"
LOAD_OFFICIAL = """
import sys, timm, inline_attention
model = timm.create_model("inline_deit_nano", num_classes=3)
inline_attention.load_official(model, sys.argv[1])
"""
STREAM = """
import sys
from inline_attention import stream
from inline_attention.training.load_trained import load_trained
stream(load_trained("seeds/run").model, sys.argv[1])
"""
LOAD_RECIPE = "import sys; from inline_attention.training import load_recipe; load_recipe(sys.argv[1])"
MODEL_CACHE = "import sys; from inline_attention.explorer.model_cache import ModelCache; ModelCache(sys.argv[1:])"
EVALUATE = "import sys; from inline_attention.training import evaluate; evaluate('seeds/run', sys.argv[1], workers=0)"
IMAGE = "seeds/images/a.png"
SLIDES = "train --data seeds/slides/features --dry-run --device cpu --json"
QUIET = "--device cpu --json --out out"

TARGETS: tuple[Target, ...] = (
    *(Target("", words, weight=2) for words in OPTIONS),
    Target("", f"predict {PYRAMID} --model seeds/run --stream --mpp {{}}", weight=2, names=("images must be at least",)),
    # images
    *images("predict --model seeds/run -- {}", 1, *PICTURES, *DEEP),
    *images("predict --model seeds/run --stream -- {}", 1, "a.png", "sixteen.png", "palette.png", "float.tiff"),
    *images("predict --model seeds/run --stream -- {}", 3, "a.npy", "float.npy"),
    *images("predict --model seeds/run --skip-bad --stream -- {} seeds/images/a.png", 1, "a.png", "a.npy"),
    *images("predict --model seeds/run --skip-bad -- {} seeds/images/a.png", 1, "a.jpg", "a.tif"),
    *images("predict --model seeds/run -", 1, "a.png", "a.bmp"),
    *images("predict --onnx seeds/onnx/model.onnx -- {}", 1, "a.png", "a.gif", "float.tiff"),
    *images("predict --model seeds/segment -- {}", 1, "a.png"),
    *images("predict --model seeds/detect -- {}", 1, "a.png"),
    *images("analyze maps seeds/run --data seeds/classes --count 1 --out out --image {}", 1, "a.png"),
    *(Target(f"large/{file}", "predict --model seeds/run --stream -- {}", weight=4, renamed=True) for file in LARGE),
    Target("large/pyramid.tif", "predict --model seeds/run --stream --mpp 0.7 --mask tissue -- {}", weight=2),
    Target("large/map.tif", f"predict --model seeds/run --stream --mask {{}} -- {IMAGE}", weight=2),
    *(
        Target(f"large/{file}.zarr", "predict --model seeds/run --stream -- {}", ZARR, weight=3)
        for file in ("plain", "ome2", "ome3")
    ),
    # weights and their metadata
    Target("run/best.safetensors", f"predict {IMAGE} --model {{}}", weight=14, renamed=True, names=(IMAGE,)),
    Target("run/best.safetensors", f"eval {{}} --data seeds/classes --workers 0 {QUIET}", weight=4, names=("seeds/classes",)),
    Target("run/best.safetensors", f"predict {IMAGE} --model inline_deit_nano --weights {{}}", weight=4, names=(IMAGE,)),
    Target("run/best.safetensors", "analyze rank {} --count 1 --out out --json", weight=3),
    Target("run/best.safetensors", "train --recipe seeds/recipe.toml --dry-run --json --model.weights {}", weight=2),
    Target("segment/best.safetensors", f"predict {IMAGE} --model {{}}", weight=5, names=(IMAGE,)),
    Target("detect/best.safetensors", f"predict {IMAGE} --model {{}}", weight=5, names=(IMAGE,)),
    Target("pickle/weights.pth", "convert {} out/new.safetensors --model inline_deit_nano", weight=4, renamed=True),
    Target("pickle/weights.pth", f"predict {IMAGE} --model inline_deit_nano --weights {{}}", weight=2, names=(IMAGE,)),
    # run folders
    Target("run", f"eval {{}} --workers 0 {QUIET}", RUN, weight=5, names=("seeds/classes",)),
    Target("run", "export {} --format hub --out out/hub", ("result.json", "environment.json", "recipe.toml"), weight=4),
    Target(
        "stopped", "train --resume --device cpu --json --out {}", ("checkpoints/*/*", "metrics.jsonl", "recipe.toml"), weight=5
    ),
    Target("softmax", "linearize {} --steps 0 0 1 --batch 2 --workers 0 --device cpu --out out/l", RUN, weight=2),
    Target("linear", "linearize --resume --device cpu --out {}", ("options.json",), weight=3, names=("run.seed",)),
    # recipes
    Target("recipe.toml", "train --recipe {} --dry-run --device cpu --json", weight=24, renamed=True),
    # data sets
    Target("classes", f"eval seeds/run --data {{}} --workers 0 {QUIET}", CLASSES, weight=5, renamed=True),
    Target(
        "classes", "train --recipe seeds/recipe.toml --dry-run --device cpu --json --data {}", CLASSES, weight=3, renamed=True
    ),
    Target(
        "tar",
        "train --recipe seeds/recipe.toml --dry-run --device cpu --json --data {}",
        ("train.tar",),
        weight=6,
        names=("classes/",),
    ),
    Target("tar/train.tar", f"eval seeds/run --data {{}} --workers 0 {QUIET}", weight=5, names=("classes/",)),
    Target("coco", f"eval seeds/detect --data {{}} --workers 0 {QUIET}", COCO, weight=12),
    Target("coco", f"eval seeds/detect --data {{}} --workers 0 --skip-bad {QUIET}", COCO, weight=5),
    Target("maps", f"eval seeds/segment --data {{}} --workers 0 {QUIET}", MAPS, weight=8),
    Target("maps", f"eval seeds/segment --data {{}} --workers 0 --skip-bad {QUIET}", MAPS, weight=3),
    Target("fashion-mnist", "train --data fashion-mnist --data.root {} --dry-run --device cpu --json", ("*.gz",), weight=4),
    Target(
        "wds",
        f"eval seeds/run --data wds/small --root {{}} --workers 0 {QUIET}",
        SHARDS,
        weight=4,
        names=("no image to evaluate on",),
    ),
    # slides
    Target("slides/features/s1.h5", "predict --model seeds/bag_run -- {}", weight=6, renamed=True),
    Target("slides/s1.pt", "predict --model seeds/bag_run -- {}", weight=4, renamed=True),
    Target("large/pyramid.tif", "features {} --model inline_deit_nano.digits --device cpu --out out/f", weight=3, renamed=True),
    Target("slides/labels.csv", f"{SLIDES} --data.columns label --labels {{}}", weight=5, names=("seeds/slides/features",)),
    Target("bag_run/best.safetensors", "predict seeds/slides/features/s1.h5 --model {}", weight=4, names=("s1.h5",)),
    # exported models and results
    Target("onnx", "predict --onnx {}/model.onnx seeds/images/a.png", ("*.json",) * 3 + ("*.onnx",), weight=14),
    Target("openvino", "predict --openvino {}/model.xml seeds/images/a.png", ("*.json",) * 3 + ("*.xml", "*.bin"), weight=6),
    Target("results/results.json", "reproduce --from {} --out out --json", weight=5),
    Target("results/stream.json", "bench compare seeds/results/stream.json {}", weight=6, codes=(0, 1, 2)),
    # Python
    Target("hub", FROM_PRETRAINED, ("config.json", "*.safetensors"), python=True, weight=6),
    Target("pickle/weights.pth", LOAD_OFFICIAL, python=True, weight=4),
    Target("images/float.npy", STREAM, python=True, weight=3, names=("in rows",)),
    Target("recipe.toml", LOAD_RECIPE, python=True, weight=3),
    Target("run/best.safetensors", MODEL_CACHE, python=True, weight=3),
    Target("classes", EVALUATE, CLASSES, python=True, weight=2),
)

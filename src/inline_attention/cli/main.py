"""Runs a command of `inline` and turns what a user can cause into one line and an exit code."""

import sys
from importlib import import_module

from inline_command import pick, quick_answer

from ..lite.text import printable

EXTRAS = {
    **dict.fromkeys(("accelerate", "scipy", "sklearn", "torchmetrics", "tensorboard"), "train"),
    **dict.fromkeys(("pycocotools", "segmentation_models_pytorch"), "dense"),
    **dict.fromkeys(("onnx", "onnx_ir", "onnxruntime", "onnxscript"), "onnx"),
    **dict.fromkeys(("imagecodecs", "openslide", "rasterio", "tifffile", "zarr"), "large"),
    **dict.fromkeys(("nncf", "openvino"), "openvino"),
    "gradio": "explore",
    "h5py": "bags",
}
"""Which extra of the package brings a module that is missing; the others come with `cli`."""


def main(words: list[str] | None = None) -> None:
    """Run a command. What a user can cause ends in one line and exit code 2, never in a traceback."""
    accept_any_character()
    try:
        _run(sys.argv[1:] if words is None else words)
    except ModuleNotFoundError as missing:
        name = (missing.name or "").partition(".")[0]
        if name == "inline_attention":
            raise  # a mistake in the package, not an extra that is missing
        warn(f"the command needs {name}: pip install 'inline-attention[{EXTRAS.get(name, 'cli')}]'")
        sys.exit(2)
    except KeyboardInterrupt as stop:
        warn(f"stopped: {stop}" if str(stop) else "stopped")
        sys.exit(130)
    except BrokenPipeError:
        # The reader, such as `head`, closed the pipe. Python would flush to it once more at exit, and complain.
        sys.stdout = None
        sys.exit(1)
    except (ValueError, OSError, FloatingPointError) as error:
        warn(error)
        sys.exit(2)
    except MemoryError as error:
        warn(f"there is not enough memory{f': {error}' if str(error) else ''}")
        sys.exit(2)


def _run(words: list[str]) -> None:
    answer = quick_answer(words)
    if answer is not None:
        print(answer)
        return
    title, command, rest = pick(words)
    from .arguments import parse, refuse_empty

    refuse_empty(rest)
    kind = getattr(import_module(f"inline_attention.cli.{command.module}"), command.name)
    if hasattr(kind, "from_words"):  # commands that read their words in another way than the others
        kind.from_words(rest).run()
        return
    parse(kind, rest, title).run()


def warn(text: object) -> None:
    """Print a line about something that went wrong."""
    # The newline is part of the text: several processes may write at once, and print would write it separately.
    print(f"inline: {printable(text)}\n", end="", file=sys.stderr)


def accept_any_character() -> None:
    """Let both outputs escape characters that their encoding does not have, such as that of `LANG=C`, instead of raising."""
    for output in (sys.stdout, sys.stderr):
        if hasattr(output, "reconfigure"):
            output.reconfigure(errors="backslashreplace")

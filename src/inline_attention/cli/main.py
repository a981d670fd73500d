"""`inline`: the table of contents of the package."""

import io
import sys
from contextlib import redirect_stderr
from importlib.metadata import version
from typing import Annotated, Any


def main(arguments: list[str] | None = None) -> None:
    """Run a command. What a user can cause ends in one line and exit code 2, never in a traceback."""
    try:
        _run(sys.argv[1:] if arguments is None else arguments)
    except ModuleNotFoundError as missing:
        extras = dict.fromkeys(("accelerate", "sklearn", "torchmetrics", "tensorboard"), "train") | {"gradio": "explore"}
        extras |= dict.fromkeys(("pycocotools", "segmentation_models_pytorch"), "dense")
        extras |= dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), "onnx")
        name = (missing.name or "").partition(".")[0]
        extra = extras.get(name, "cli")
        print(f"inline: the command needs {name}: pip install 'inline-attention[{extra}]'", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("inline: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # whoever read the output has seen enough
        sys.stdout = None
        sys.exit(1)
    except (ValueError, OSError, FloatingPointError) as error:
        print(f"inline: {error}\n", end="", file=sys.stderr)  # in one piece: several processes may say it at once
        sys.exit(2)


def _run(arguments: list[str]) -> None:
    if arguments in (["--version"], ["-V"]):
        print(f"inline-attention {version('inline-attention')}")
        return
    if arguments[:1] == ["predict"] and any(word.partition("=")[0] == "--onnx" for word in arguments):
        from .predict_onnx import parse

        parse(arguments[1:]).run()  # before anything that a machine without torch does not have
        return
    import tyro
    from tyro.conf import subcommand

    from .analyze import (
        AnalyzeConfusion,
        AnalyzeLocality,
        AnalyzeMaps,
        AnalyzeMasking,
        AnalyzeRank,
        AnalyzeRays,
    )
    from .analyze_report import AnalyzeReport
    from .bench import BenchCompare, BenchDense, BenchExport, BenchLayer, BenchModels, BenchResolution, BenchStream
    from .convert import Convert
    from .eval import Eval
    from .explore import Explore
    from .export import Export
    from .linearize import Linearize
    from .list import List
    from .options import explain_unknown, in_one_line
    from .predict import Predict
    from .reproduce import Reproduce
    from .train import Train, begin

    commands: Any = (
        Annotated[Train, subcommand("train", default=begin(arguments))]
        | Annotated[Eval, subcommand("eval")]
        | Annotated[Predict, subcommand("predict")]
        | Annotated[List, subcommand("list")]
        | Annotated[Convert, subcommand("convert")]
        | Annotated[Export, subcommand("export")]
        | Annotated[Linearize, subcommand("linearize")]
        | Annotated[
            Annotated[BenchLayer, subcommand("layer")]
            | Annotated[BenchModels, subcommand("models")]
            | Annotated[BenchResolution, subcommand("resolution")]
            | Annotated[BenchStream, subcommand("stream")]
            | Annotated[BenchDense, subcommand("dense")]
            | Annotated[BenchExport, subcommand("export")]
            | Annotated[BenchCompare, subcommand("compare")],
            subcommand("bench", description="How fast, compared with what one would use instead."),
        ]
        | Annotated[
            Annotated[AnalyzeMaps, subcommand("maps")]
            | Annotated[AnalyzeRays, subcommand("rays")]
            | Annotated[AnalyzeConfusion, subcommand("confusion")]
            | Annotated[AnalyzeLocality, subcommand("locality")]
            | Annotated[AnalyzeMasking, subcommand("masking")]
            | Annotated[AnalyzeRank, subcommand("rank")]
            | Annotated[AnalyzeReport, subcommand("report")],
            subcommand("analyze", description="What models look at: the paper's figures, from any model."),
        ]
        | Annotated[Explore, subcommand("explore")]
        | Annotated[Reproduce, subcommand("reproduce")]
    )
    description = "Injective Linear Attention: train, see, measure, compare. `inline --version` tells which."
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            command, unknown = tyro.cli(
                commands, prog="inline", description=description, args=arguments, return_unknown_args=True
            )
    except SystemExit as stop:
        if stop.code:
            raise ValueError(in_one_line(complaint.getvalue())) from stop
        raise
    if unknown:
        raise ValueError(explain_unknown(unknown, command))
    command.run()

"""The command `inline`: which commands there are, and which of them the first words ask for.

This module lies beside the package, not in it, and imports only the standard library. Importing the package loads torch and
timm, which takes seconds; `inline --help` and `inline --version` answer without them.
"""

import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec
from typing import NamedTuple, TypeVar

HELP = ("-h", "--help", "--help-all")
VERSION = ("-V", "--version")


class Command(NamedTuple):
    """Where a command is: a class of a module in `inline_attention.cli`. The module is imported when the command is used."""

    module: str
    name: str
    summary: str


class Group(NamedTuple):
    """Commands behind a common word, such as `inline bench layer`."""

    summary: str
    commands: dict[str, Command]


Entry = TypeVar("Entry", bound=Command | Group)

BENCH = {
    "layer": Command("bench", "BenchLayer", "the attention layer against softmax and plain matrix products"),
    "mixers": Command("bench", "BenchMixers", "all sixteen kinds of attention against four products"),
    "models": Command("bench", "BenchModels", "whole models, forward and training, against timm's"),
    "resolution": Command("bench", "BenchResolution", "time and memory against the size of the image"),
    "stream": Command("bench", "BenchStream", "images in bands, up to 16,384 x 16,384"),
    "dense": Command("bench", "BenchDense", "segmentation of one image, up to 2,048 x 2,048"),
    "bags": Command("bench", "BenchBags", "slides as bags of tiles, against softmax and pooling"),
    "export": Command("bench", "BenchExport", "files in onnxruntime and OpenVINO, against torch"),
    "compare": Command("bench", "BenchCompare", "what got slower between two results"),
}
ANALYZE = {
    "maps": Command("analyze_maps", "AnalyzeMaps", "attention of one point of an image, layer by layer"),
    "rays": Command("analyze", "AnalyzeRays", "attention of one query made shorter and longer"),
    "confusion": Command("analyze", "AnalyzeConfusion", "how often different queries get the same attention"),
    "locality": Command("analyze", "AnalyzeLocality", "how much attention stays near the query"),
    "masking": Command("analyze", "AnalyzeMasking", "accuracy without the tokens near each query"),
    "rank": Command("analyze", "AnalyzeRank", "rank and entropy of the attention weights"),
    "report": Command("analyze_report", "AnalyzeReport", "all analyses of several models on one HTML page"),
}
COMMANDS: dict[str, Command | Group] = {
    "train": Command("train", "Train", "train a model on images; without options, on digits, in a minute"),
    "eval": Command("eval", "Eval", "measure how good a trained model is"),
    "predict": Command("predict", "Predict", "classify images, or draw objects or segments over them"),
    "features": Command("features", "Features", "features of slides' tiles, from any model, for `inline train --labels`"),
    "list": Command("list", "List", "list the models: input size, parameters, FLOPs, reported accuracy"),
    "weights": Command("weights", "Weights", "the published weights: show, fetch, verify, convert and remove them"),
    "convert": Command("convert", "Convert", "convert a published checkpoint to safetensors"),
    "export": Command("export", "Export", "export a model: ONNX, OpenVINO, torch.export, AOTInductor, a hub folder"),
    "linearize": Command("linearize", "Linearize", "distil a trained softmax model into a linear copy"),
    "bench": Group("measure speed and memory", BENCH),
    "analyze": Group("analyse attention: the paper's figures, from any model", ANALYZE),
    "explore": Command("explore", "Explore", "show attention in the browser"),
    "reproduce": Command("reproduce", "Reproduce", "measure the paper's claims on small models"),
}
EXPORTED = {
    "--onnx": Command("predict_exported", "PredictOnnx", "classify or segment images by an ONNX file, without torch"),
    "--openvino": Command("predict_exported", "PredictOpenVino", "the same by OpenVINO's IR"),
}
"""`inline predict` with these options. They have their own module, which runs where neither torch nor tyro is installed."""


def quick_answer(words: list[str]) -> str | None:
    """What is answered without any command: the help of `inline` or of a group, or the version. None for all else."""
    if not words or words[0] in HELP:
        return _table("inline COMMAND [OPTIONS]", "Injective Linear Attention for vision transformers.", COMMANDS)
    if words[0] == "version" or any(word in VERSION for word in words):
        return f"inline-attention {version('inline-attention')}"
    group = COMMANDS.get(words[0])
    if isinstance(group, Group) and words[1:2] and words[1] in HELP:
        summary = f"{group.summary[0].upper()}{group.summary[1:]}."
        return _table(f"inline {words[0]} COMMAND [OPTIONS]", summary, group.commands)
    return None


def pick(words: list[str]) -> tuple[str, Command, list[str]]:
    """The command that the first words name: its name in full, where it is, and the words after its name."""
    found = _find(words[0], COMMANDS, "inline")
    if isinstance(found, Group):
        if len(words) == 1:
            raise ValueError(f"inline {words[0]} needs one of: {', '.join(found.commands)}")
        return f"{words[0]} {words[1]}", _find(words[1], found.commands, f"inline {words[0]}"), words[2:]
    given = [option for word in words if (option := word.partition("=")[0]) in EXPORTED]
    if words[0] == "predict" and given:
        found = EXPORTED[given[0]]
    return words[0], found, words[1:]


def _find(word: str, commands: Mapping[str, Entry], before: str) -> Entry:
    if word in commands:
        return commands[word]
    close = get_close_matches(word, list(commands), n=1, cutoff=0.5)
    hint = f" (did you mean {before} {close[0]}?)" if close else ""
    raise ValueError(f"unknown command {before} {word}{hint}; there are: {', '.join(commands)}")


def _table(usage: str, summary: str, commands: Mapping[str, Command | Group]) -> str:
    lines = [f"usage: {usage}", "", summary, "", "commands:"]
    lines += [f"  {name:<12}{entry.summary}" for name, entry in commands.items()]
    lines += ["", "options:", "  -h, --help     print this help", "  -V, --version  print the version"]
    return "\n".join([*lines, "", f"{usage.partition(' [')[0]} --help prints the options of a command."])


def _needs_torch(words: list[str]) -> bool:
    """Whether a command will run that computes with torch; help, wrong commands and exported files do not."""
    if quick_answer(words) is not None or any(word in HELP for word in words):
        return False
    try:
        return pick(words)[1] not in EXPORTED.values()
    except ValueError:
        return False


def main() -> None:
    """The console script."""
    words = sys.argv[1:]
    spec = find_spec("inline_attention")
    if spec is not None and not _needs_torch(words):
        # The package without its `__init__`, which loads torch and timm to register the models: its modules can be imported.
        sys.modules["inline_attention"] = module_from_spec(spec)
    from inline_attention.cli.main import main as run

    run(words)

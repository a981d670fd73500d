"""One page about several models: figures, what they show, and the numbers. A single file without scripts."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from .findings import Finding
from .study import Study

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; }
body { max-width: 66rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.4rem; }
img { max-width: 100%; height: auto; } figure { margin: 0.8rem 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; } td, th { padding: 0.25rem 0.8rem 0.25rem 0; text-align: left; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; } thead th { border-bottom: 1px solid #888; }
.verdict { border-left: 4px solid #0072B2; padding-left: 0.8rem; } .verdict.not { border-color: #D55E00; }
.verdict.open { border-color: #999; } small { color: #555; } pre { overflow-x: auto; font-size: 0.8rem; }
"""


def write_report(
    studies: Sequence[Study], found: Mapping[str, Finding], figures: Mapping[str, Path], notes: Sequence[str], path: Path
) -> Path:
    """Lay figures (name -> PNG), findings and numbers into one file.

    Args:
        notes: how the models were made and the pictures chosen, a line each.
    """
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>What the models look at</title><style>{STYLE}</style></head><body>",
        "<h1>What the models look at</h1>",
        f"<p>{escape(' '.join(notes))}</p>",
        _table(studies),
    ]
    parts += [_section(found[name], figure) for name, figure in figures.items()]
    if "accuracy" in found:
        parts.append(_section(found["accuracy"], None))
    numbers = json.dumps([_shortened(study) for study in studies], indent=1)
    parts.append(f"<h2>Numbers</h2><details><summary>As JSON</summary><pre>{escape(numbers)}</pre></details></body></html>")
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")
    return path


def _table(studies: Sequence[Study]) -> str:
    rows = "".join(
        f"<tr><td>{escape(study.label)}</td><td>{escape(study.kind)}</td><td>{escape(study.name)}</td>"
        f'<td class="number">{study.parameters / 1e6:.2f}</td>'
        f'<td class="number">{"" if study.masking is None else f"{study.masking.top1:.1f}"}</td></tr>'
        for study in studies
    )
    head = (
        "<th>model</th><th>attention</th><th>architecture</th>"
        '<th class="number">parameters, M</th><th class="number">top-1, %</th>'
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _section(finding: Finding, figure: Path | None) -> str:
    kind = {"agrees": "", "does not agree": " not"}.get(finding.verdict, " open")
    picture = "" if figure is None else _picture(figure, finding.says)
    return (
        f"<h2>{escape(finding.title)}</h2>{picture}<p>{escape(finding.says)}</p>"
        f'<p class="verdict{kind}"><small>The paper: {escape(finding.paper)}</small><br>'
        f"<b>{finding.verdict.capitalize()}</b>: {escape(finding.why)}</p>"
    )


def _picture(figure: Path, alternative: str) -> str:
    data = b64encode(figure.read_bytes()).decode()
    return f'<figure><img alt="{escape(alternative, quote=True)}" src="data:image/png;base64,{data}"></figure>'


def _shortened(study: Study) -> dict[str, object]:
    """Without the weights themselves, which are many: the JSON file has them."""
    numbers = study.numbers()
    if study.ray is not None:
        numbers["ray"] = {key: value for key, value in numbers["ray"].items() if key != "weights"}
    return numbers

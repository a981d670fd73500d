"""The HTML report about several models: figures, what they show, and the numbers. One file without scripts."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from .findings import Finding
from .model_analysis import ModelAnalysis

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
    analyses: Sequence[ModelAnalysis],
    found: Mapping[str, Finding],
    figures: Mapping[str, Path],
    notes: Sequence[str],
    path: Path,
) -> Path:
    """Write figures (name -> PNG), findings (by the same names) and numbers to one file.

    Args:
        analyses: one for each model.
        found: what each figure shows.
        figures: in the order of the page.
        notes: sentences about the models and the images.
        path: the HTML file.
    """
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>What the models attend to</title><style>{STYLE}</style></head><body>",
        "<h1>What the models attend to</h1>",
        f"<p>{escape(' '.join(notes))}</p>",
        _table(analyses),
    ]
    parts += [_section(found[name], figure) for name, figure in figures.items()]
    if "accuracy" in found:
        parts.append(_section(found["accuracy"], None))
    numbers = json.dumps([_without_weights(one) for one in analyses], indent=1)
    parts.append(f"<h2>Numbers</h2><details><summary>As JSON</summary><pre>{escape(numbers)}</pre></details></body></html>")
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")
    return path


def _table(analyses: Sequence[ModelAnalysis]) -> str:
    rows = "".join(
        f"<tr><td>{escape(one.label)}</td><td>{escape(one.kind)}</td><td>{escape(one.name)}</td>"
        f'<td class="number">{one.parameters / 1e6:.2f}</td>'
        f'<td class="number">{"" if one.masking is None else f"{one.masking.top1:.1f}"}</td></tr>'
        for one in analyses
    )
    head = (
        "<th>model</th><th>attention</th><th>architecture</th>"
        '<th class="number">parameters, M</th><th class="number">top-1, %</th>'
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _section(finding: Finding, figure: Path | None) -> str:
    image = "" if figure is None else _image(figure, finding.says)
    if finding.verdict is None:
        return f"<h2>{escape(finding.title)}</h2>{image}<p>{escape(f'{finding.says} {finding.why}'.strip())}</p>"
    kind = {"agrees": "", "does not agree": " not"}.get(finding.verdict, " open")
    return (
        f"<h2>{escape(finding.title)}</h2>{image}<p>{escape(finding.says)}</p>"
        f'<p class="verdict{kind}"><small>The paper: {escape(finding.paper)}</small><br>'
        f"<b>{finding.verdict.capitalize()}</b>: {escape(finding.why)}</p>"
    )


def _image(figure: Path, alternative: str) -> str:
    data = b64encode(figure.read_bytes()).decode()
    return f'<figure><img alt="{escape(alternative, quote=True)}" src="data:image/png;base64,{data}"></figure>'


def _without_weights(analysis: ModelAnalysis) -> dict[str, object]:
    """The numbers without the weights of the ray, which are many; the JSON file has them."""
    numbers = analysis.numbers()
    if analysis.ray is not None:
        numbers["ray"] = {key: value for key, value in numbers["ray"].items() if key != "weights"}
    return numbers

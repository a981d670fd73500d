"""The notebooks run from beginning to end, and are stored without outputs."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))

PRINTED = {
    "large_images.ipynb": r"(9[5-9]|100)% of the pixels are right; 0 differ.*ome-tiff \d+ polygons.*EPSG:32633.* without data",
    "tour.ipynb": r"\(101, 67\) -> logits \(1, 10\).*the three queries the same weights: True",
    "your_images.ipynb": r"last weights: (8[5-9]|9\d|100)\.\d % of the validation images.*best weights",
}
"""A part of what each prints."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # those of jupyter's own packages
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_runs(name, tmp_path):
    notebook = nbformat.read(FOLDER / name, as_version=4)
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in notebook.cells)
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert re.search(PRINTED[name], "".join(output.get("text", "") for output in outputs), re.DOTALL)
    assert any("image/png" in output.get("data", {}) for output in outputs)


def test_every_notebook_is_listed():
    assert sorted(PRINTED) == NOTEBOOKS

"""Tests of the notebooks: they match their sources, contain no outputs, and run from the first cell to the last."""

import html
import re
from pathlib import Path

import jupytext
import nbclient
import nbformat
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SOURCES = sorted(EXAMPLES.glob("*.py"))


def cells(notebook):
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def printed(cell) -> str:
    return "".join(output.get("text", "") for output in cell.get("outputs", []))


def execute(name: str):
    """Run a notebook in a kernel of this environment."""
    notebook = jupytext.read(EXAMPLES / name)
    return nbclient.NotebookClient(notebook, timeout=300).execute()


@pytest.fixture(scope="module")
def executed():
    """Return the executed ladder notebook."""
    return execute("ladder.py")


def test_the_notebooks_are_listed():
    assert [source.name for source in SOURCES] == ["first_attempt.py", "ladder.py"]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_notebook_matches_its_source_and_contains_no_outputs(source):
    notebook = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(notebook)
    assert cells(notebook) == cells(jupytext.read(source)), (
        f"run: jupytext --to ipynb --update examples/{source.name}"
    )
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


def test_the_ladder_runs(executed):
    """Every code cell shows something. An error in a cell would raise during execution."""
    silent = [
        cell.source for cell in executed.cells if cell.cell_type == "code" and not cell.outputs
    ]
    assert all(source.startswith("import torch") for source in silent)
    assert len(silent) == 1
    assert "error" not in {
        output.output_type for cell in executed.cells for output in cell.get("outputs", [])
    }


def test_recordings_are_displayed(executed):
    recordings = [
        output.data["text/html"]
        for cell in executed.cells
        for output in cell.get("outputs", [])
        if output.output_type == "execute_result" and "text/html" in output.data
    ]
    assert len(recordings) == 4
    assert all("weights" in html for html in recordings)


def test_all_implementations_agree_in_what_the_ladder_prints(executed):
    differences = [
        float(line.rsplit(":", 1)[1])
        for cell in executed.cells
        for line in printed(cell).splitlines()
        if line.startswith(("largest difference", "at once", "by einsum"))
    ]
    assert len(differences) == 5
    assert max(differences) < 1e-6


def test_three_bugs_are_found_in_the_first_attempt():
    """The line of each bug in the cell is marked."""
    reports = [
        output.data["text/html"]
        for cell in execute("first_attempt.py").cells
        for output in cell.get("outputs", [])
        if output.output_type == "execute_result" and "text/html" in output.data
    ]
    first, corrected = reports
    assert "3 bugs" in first
    marked = re.findall(r"<mark[^>]*>(.*?)</mark>", first)
    lines = [html.unescape(re.sub(r"<[^>]*>", "", line)).strip() for line in marked]
    assert sorted(lines) == [
        "scaled = attn_scores / keys.shape[-1] ** 0.5",
        "scores.masked_fill(self.mask[:T, :T], -torch.inf)",
        "weights = torch.softmax(scaled, dim=1)",
    ]
    assert "no bug" in corrected
    assert "<mark" not in corrected

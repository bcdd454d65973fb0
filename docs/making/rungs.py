"""What the tour says and draws of each rung of the ladder: its explanation, its picture and its page."""

import html
from pathlib import Path

import torch

from heedful.drawing import STYLE, heat_map
from heedful.errors import ArgumentError
from heedful.tour.inputs import Tokens, sentence
from heedful.tour.ladder import LADDER, Rung
from heedful.tour.recordings import SEED, RecordedRun, RungResult, tensor_of
from heedful.tour.report.html import views_of
from heedful.viewer.page import Page
from making.markdown import escaped


def write_rungs(folder: Path, pages: Path) -> None:
    """Write what is included in the page of each rung into one folder, and its page of `show` into another."""
    for it in (folder, pages):
        it.mkdir(parents=True, exist_ok=True)
    tokens = sentence()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for rung in LADDER:
            torch.manual_seed(SEED)
            result = rung.run(tokens)
            page = Page(rung.title, tuple(views_of(result, tokens)))
            page.save(pages / f"{rung.name}.html")
            shown = [escaped(rung.explanation), _picture(rung, result, page, tokens, folder)]
            shown.append(_link(rung))
            shown += [escaped(finding) for finding in result.findings]
            text = "\n\n".join(shown) + "\n"
            (folder / f"{rung.name}.txt").write_text(text, encoding="utf-8")


def _picture(rung: Rung, result: RungResult, page: Page, tokens: Tokens, folder: Path) -> str:
    """Return the picture of the attention in a rung, or else heat maps of its steps."""
    try:
        page.save(folder / f"{rung.name}.svg")
    except ArgumentError:
        return _raw(
            f"<style>{STYLE}</style>" + "".join(_maps(run, tokens.labels) for run in result.runs)
        )
    return f"![The maps of the rung “{rung.title}” on six tokens.](/generated/{rung.name}.svg)"


def _maps(run: RecordedRun, labels: tuple[str, ...]) -> str:
    """Return a heat map of each step of a run that has an entry for each pair of tokens."""
    count = len(labels)
    maps = [
        heat_map(value, row_labels=labels, column_labels=labels, caption=step.name)
        for step in run.steps
        if (value := tensor_of(step)).shape[-2:] == (count, count)
    ]
    return f"<p>{html.escape(run.title)}</p>{''.join(maps)}"


def _link(rung: Rung) -> str:
    return _raw(
        f'<p><a href="../steps/{rung.name}.html">Every step of it as a page</a>: point at any number to see those '
        "that it was made from.</p>"
    )


def _raw(content: str) -> str:
    return f"```{{raw}} html\n{content}\n```"

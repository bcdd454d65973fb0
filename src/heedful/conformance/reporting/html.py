"""The report as HTML, for a notebook: compact, without scripts, legible on light and dark."""

from __future__ import annotations

import linecache
from html import escape
from typing import TYPE_CHECKING

from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.catalogue import remedy_of
from heedful.conformance.reporting.finding import Finding
from heedful.conformance.reporting.text import shown_path

if TYPE_CHECKING:
    from heedful.conformance.reporting.report import Report

CONTEXT = 2  # lines shown before and after the one that is wrong

STYLE = """
.heedful-check { font: 13px/1.45 system-ui, sans-serif; color: inherit; max-width: 60em; }
.heedful-check p { margin: 0.2em 0; }
.heedful-check section { margin: 0.7em 0; padding-left: 0.8em; border-left: 4px solid; }
.heedful-check .bug { border-color: #d6604d; }
.heedful-check .suspicious { border-color: #c9950c; }
.heedful-check .convention { border-color: #4393c3; }
.heedful-check .not-testable, .heedful-check .expected { border-color: #8c8c8c; }
.heedful-check .aside { opacity: 0.75; }
.heedful-check pre { margin: 0.4em 0; padding: 0.3em 0; color: inherit; overflow-x: auto;
  background: rgba(128, 128, 128, 0.12); }
.heedful-check pre span { display: block; padding: 0 0.6em; }
.heedful-check pre mark { display: block; padding: 0 0.6em; color: inherit; font-weight: 600;
  background: rgba(214, 96, 77, 0.3); }
.heedful-check dl { display: grid; grid-template-columns: max-content auto; gap: 0.1em 1em; margin: 0.6em 0 0; }
.heedful-check dt { opacity: 0.75; }
.heedful-check dd { margin: 0; }
"""


def as_html(report: Report) -> str:
    """The whole report as one element with its own style."""
    parts = [f"<p><strong>{escape(report.target)}</strong>: {escape(report.summary)}</p>"]
    parts += [_finding(it, report.expected_failures.get(it.name)) for it in report.findings]
    parts += [
        f"<p>{escape(name)} no longer fails; it was expected to: {escape(report.expected_failures[name])}</p>"
        for name in report.no_longer_failing
    ]
    facts = [f"<dt>{escape(it.name)}</dt><dd>{escape(it.value)}</dd>" for it in report.facts]
    if facts:
        parts.append(f"<dl>{''.join(facts)}</dl>")
    return f'<style>{STYLE}</style><div class="heedful-check">{"".join(parts)}</div>'


def _finding(finding: Finding, expected: str | None) -> str:
    kind = finding.level if expected is None else "expected"
    level = finding.level if expected is None else f"{finding.level}, expected: {expected}"
    parts = [
        f'<p><strong>{escape(finding.name)}</strong> <span class="aside">{escape(level)}</span></p>',
        f"<p>{escape(finding.proof)}</p>",
    ]
    if finding.case:
        parts.append(f'<p class="aside">{escape(finding.case)}</p>')
    if finding.place is not None:
        parts.append(_excerpt(finding.place))
    parts.append(f"<p>Remedy: {escape(remedy_of(finding))}</p>")
    return f'<section class="{kind}">{"".join(parts)}</section>'


def _excerpt(place: SourceLine) -> str:
    """The line that is wrong, marked, among its neighbours; alone where the file cannot be read."""
    lines = linecache.getlines(place.file)
    first = max(place.line - CONTEXT, 1)
    around = [it.rstrip() for it in lines[first - 1 : place.line + CONTEXT]]
    if len(lines) < place.line:
        first, around = place.line, [place.source]
    width = len(str(first + len(around)))
    rows = [
        f"<{tag}>{number:>{width}}  {escape(line)}</{tag}>"
        for number, line in enumerate(around, first)
        for tag in ("mark" if number == place.line else "span",)
    ]
    where = f'<p class="aside">{escape(shown_path(place.file))}:{place.line}</p>'
    return f"{where}<pre>{''.join(rows)}</pre>"

"""A page of views: one HTML file that asks the network for nothing, or a picture of its maps."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from heedful.errors import ArgumentError
from heedful.listing import STYLE as CODE_STYLE
from heedful.listing import Listing
from heedful.viewer.data import Arrays, as_script_text
from heedful.viewer.heads.heads import Heads
from heedful.viewer.heads.payload import heads_as_json
from heedful.viewer.steps.payload import line_id, run_of
from heedful.viewer.steps.recording import Recording
from heedful.writing import reserved

TEMPLATE = "page.html.j2"
WHAT_IF = "what if"
FRAME_HEIGHT = "min(85vh, 780px)"
LARGEST = 1 << 18  # entries of one value in a page
ROOM = 1 << 21  # entries of all values of a page, which take about 10 MB
FORMATS = (".html", ".svg", ".png")


@dataclass(frozen=True, eq=False)
class View:
    """A view of a page.

    Attributes:
        recordings: The runs that it shows step by step, side by side if there are two; none: what if.
        heading: Its heading; "" for none.
    """

    recordings: tuple[Recording, ...] = ()
    heading: str = ""


@dataclass(frozen=True, eq=False)
class HeadsView:
    """A view of a model's heads.

    Attributes:
        models: One model's heads, or those of two that are compared.
        tiles: Whether the page comes from a server that answers requests for tiles of weights.
        heading: Its heading; "" for none.
    """

    models: tuple[Heads, ...]
    tiles: bool = False
    heading: str = ""

    @property
    def count(self) -> int:
        """The number of its heads."""
        return sum(heads for model in self.models for heads, _, _ in model.sizes)


AnyView = View | HeadsView


@dataclass(frozen=True)
class Embedded:
    """The parts of a page that show its views.

    Attributes:
        style: The content of a style element.
        views: For each view, the element that the script fills.
        scripts: The data and the script, at the end of the body.
    """

    style: Markup
    views: tuple[Markup, ...]
    scripts: Markup


def embedded(views: Sequence[AnyView]) -> Embedded:
    """Return the parts of a page for its views. All of the page's views go into one call."""
    arrays = Arrays()
    content, elements = [], []
    nodes = sum(2 * len(it.trace) for it in _recordings(views))
    largest = min(LARGEST, ROOM // max(nodes, 1))
    heads = max(1, sum(view.count for view in views if isinstance(view, HeadsView)))
    for i, view in enumerate(views):
        if isinstance(view, HeadsView):
            share = view.count / heads
            content.append(heads_as_json(view.models, arrays, tiles=view.tiles, share=share))
            elements.append(Markup(f'<div class="view heads" id="view-{i}"></div>'))
            continue
        runs, listings = [], ""
        for r, recording in enumerate(view.recordings):
            prefix = f"line-{i}-{r}"
            run, listed = run_of(recording, arrays, prefix, largest)
            runs.append(run)
            listings += _listings_as_html(listed, prefix)
        kind = "steps" if runs else WHAT_IF
        content.append({"kind": kind, "runs": runs} if runs else {"kind": kind})
        css = kind.replace(" ", "-")
        elements.append(Markup(f'<div class="view {css}" id="view-{i}">{listings}</div>'))
    scripts = (
        f'<script type="application/json" id="heedful-data">{as_script_text({"views": content})}</script>\n'
        f'<script type="text/plain" id="heedful-arrays">{arrays.base64()}</script>\n'
        f"<script>\n{_asset('viewer.js')}</script>"
    )
    return Embedded(Markup(_asset("viewer.css") + CODE_STYLE), tuple(elements), Markup(scripts))


def _recordings(views: Sequence[AnyView]) -> list[Recording]:
    return [it for view in views if isinstance(view, View) for it in view.recordings]


def _listings_as_html(listings: tuple[Listing, ...], prefix: str) -> str:
    return "".join(_listing_as_html(it, listings, prefix) for it in listings)


def _listing_as_html(listing: Listing, listings: tuple[Listing, ...], prefix: str) -> str:
    title = html.escape(listing.title)
    lines = (
        f'<span id="{line_id(prefix, listings, listing.file, number)}" data-line="{number}">{code}</span>'
        for number, code in listing.lines
    )
    return (
        f'<div class="listing" role="group" aria-label="{title}"><p class="file">{title}</p>'
        f"<pre>{''.join(lines)}</pre></div>"
    )


@cache
def _asset(name: str) -> str:
    return resources.files("heedful.viewer").joinpath(name).read_text("utf-8")


@dataclass(frozen=True, eq=False)
class Page:
    """A page of views. A notebook shows it in a frame of its own; `save` writes it.

    Attributes:
        title: Its title.
        views: What it shows.
        introduction: Text before the views.
        body: Further HTML before the views, which is the caller's own and trusted.

    Examples:
        >>> import torch, heedful
        >>> page = heedful.show(heedful.record(torch.softmax, torch.zeros(2, 3), -1))
        >>> page
        Page('Recorded steps', 1 view)
    """

    title: str
    views: tuple[AnyView, ...] = ()
    introduction: str = ""
    body: str = field(default="", repr=False)

    def __repr__(self) -> str:
        return f"Page({self.title!r}, {len(self.views)} view{'s' * (len(self.views) != 1)})"

    def html(self) -> str:
        """Return the page as one self-contained HTML document."""
        import heedful

        environment = Environment(
            autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        return environment.from_string(_asset(TEMPLATE)).render(
            page=self,
            body=Markup(self.body),
            parts=embedded(self.views),
            tiles=any(isinstance(view, HeadsView) and view.tiles for view in self.views),
            version=heedful.__version__,
        )

    def _repr_html_(self) -> str:
        """Return the page in a frame that can read nothing of the notebook that shows it."""
        return (
            f'<iframe sandbox="allow-scripts" title="{html.escape(self.title)}" srcdoc="{html.escape(self.html())}" '
            f'style="width:100%;height:{FRAME_HEIGHT};border:0;color-scheme:light dark"></iframe>'
        )

    def save(self, path: str | Path, option: str = "path") -> None:
        """Write the page, or a picture of its attention maps; the suffix of the name decides.

        Args:
            path: A file: .html for the page, .svg or .png for a picture of the scores and weights, or of all heads.
            option: What errors call the path.

        Raises:
            ArgumentError: The suffix is another one, the page has no attention map, or the file cannot be written.
            MissingExtraError: A picture needs Matplotlib, which is not installed.
        """
        file = Path(path)
        check_name(file, option)
        suffix = file.suffix.lower()
        if suffix == ".html":
            content: str | bytes = self.html()
        else:
            content = self._picture(suffix.removeprefix("."))
        with reserved(file, option) as write:
            write(content)

    def _picture(self, form: str) -> bytes:
        from heedful.viewer.heads.picture import picture_of_heads
        from heedful.viewer.steps.picture import picture_of

        of_heads = [view for view in self.views if isinstance(view, HeadsView)]
        if not of_heads:
            return picture_of(_recordings(self.views), form)
        named = [
            (name, model)
            for view in of_heads
            for name, model in zip(_names_of(view), view.models, strict=True)
        ]
        return picture_of_heads(named, form, self.title)


def _names_of(view: HeadsView) -> tuple[str, ...]:
    """Return what a picture calls the models of a view."""
    return ("the first", "the second") if len(view.models) == 2 else (view.heading,)


def check_name(path: Path, option: str) -> None:
    """Raise `ArgumentError` unless the suffix of a file's name is one that a page can be saved as."""
    if path.suffix.lower() not in FORMATS:
        raise ArgumentError(
            option,
            expected=f"a name that ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}",
            received=str(path),
            remedy="The suffix decides what is written.",
        )

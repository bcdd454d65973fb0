"""The command `heedful show --model`: from the name of a model and a text to a page of its heads, or a server of it."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from heedful.errors import ArgumentError, HeedfulError
from heedful.model_attention import AttentionOfModel, attention_of
from heedful.problem import AttentionProblem
from heedful.reading import read_file
from heedful.screen import print_out, progress, visible
from heedful.summaries import Summary
from heedful.viewer import show, statistics_of_page
from heedful.viewer.heads.payload import ROOM
from heedful.viewer.models import server
from heedful.viewer.models.files import OPTION, find_model
from heedful.viewer.models.kept_attention import KeptAttention, in_megabytes
from heedful.viewer.models.text_model import Attention, Decoder, TextModel, load_model
from heedful.viewer.page import HeadsView, Page, check_name

MAX_TEXT = 1 << 26  # bytes
MEMORY = 1 << 28  # bytes of all maps; a page has room for a twentieth of them
HOPELESS_TOP_KEYS = 2  # times a page's room, which compression does not save
FLOAT = 4  # bytes
BYTES_OF_TOP_KEY = 8  # of a page: a weight and an index


class Chosen(NamedTuple):
    """Which attentions and query heads are shown; None: all."""

    layers: list[int] | None
    heads: list[int] | None


class Read(NamedTuple):
    """The tokens that a model reads.

    Attributes:
        text: Those of the text; of an encoder-decoder, the encoder's.
        of_decoder: Those that its decoder reads; none for a model of one text.
    """

    text: Sequence[int]
    of_decoder: Sequence[int] = ()


def show_model(
    name: str,
    *,
    text: str | None,
    text_file: Path | None,
    target_text: str | None,
    tokens: int | None,
    layers: str | None,
    heads: str | None,
    out: Path,
    port: int | None,
) -> None:
    """Write a page, or a picture, of a model's heads on a text; or serve the page.

    Args:
        name: A folder of transformers or of `heedful train`, or a package that carries a model.
        text: The text.
        text_file: A file with the text instead.
        target_text: What the decoder of an encoder-decoder is to write; None: what it finds most likely.
        tokens: How many of the first tokens to read; None: all.
        layers: The indices of layers such as "0,3-5"; None: all.
        heads: The indices of query heads, likewise.
        out: The file: .html, .svg or .png. It is not written if the page is served.
        port: The port to serve the page at, 0 for a free one; None to write it.

    Raises:
        ArgumentError: An option cannot be used, or the model cannot read the text.
        MissingExtraError: An extra is not installed.
    """
    if port is None:
        check_name(out, "--out")
    else:
        server.check_installed()
    words = _text(text, text_file)
    chosen = Chosen(_indices(layers, "--layers"), _indices(heads, "--heads"))
    with progress(1) as announce:
        announce("Reading the model's configuration and tokenizer")
        model = load_model(find_model(name), Path(name).resolve().name)
        read = Read(_tokens(model, words, tokens))
    if len(read.text) > model.positions:
        _say(
            f"The model was trained on {model.positions:,} tokens at most; these are {len(read.text):,}."
        )
    if model.decoder is not None:
        read = Read(read.text, _tokens_of_decoder(model, model.decoder, read.text, target_text))
    elif target_text is not None:
        raise ArgumentError(
            "--target-text",
            expected="no such option for a model of one text",
            received=f"it, and {model.title}, which is no encoder-decoder",
            remedy="Leave it out: the model reads --text alone.",
        )
    with _kept(model, read, chosen, wanted=port is not None) as kept:
        page = page_of(model, read, run(model, read, chosen, kept))
        if kept is not None and port is not None:
            server.serve(_with_tiles(page).html(), kept, port)
            return
    page.save(out, "--out")
    print_out(f"Wrote {visible(str(out))}.")


def page_of(model: TextModel, read: Read, attention: AttentionOfModel) -> Page:
    """Return the page of a model's attention on its tokens."""
    labels, title = model.texts(read.text), f"{model.title} reads {len(read.text):,} tokens"
    if model.decoder is None:
        return show(attention, labels=labels, title=title)
    title += f", and its decoder {len(read.of_decoder):,}"
    return show(attention, labels=labels, target_labels=model.texts(read.of_decoder), title=title)


def run(
    model: TextModel, read: Read, chosen: Chosen, kept: KeptAttention | None = None
) -> AttentionOfModel:
    """Return the attention of a model on its tokens, from one forward pass.

    Args:
        model: The model.
        read: The tokens.
        chosen: Which layers and heads.
        kept: Receives the queries and keys; None: they are let go.
    """
    sizes = _attentions(model, read, chosen)
    names = len(sizes)
    longest = max(len(read.text), len(read.of_decoder))
    texts = [torch.tensor([it]) for it in read if it]
    with progress(names + 2) as announce:
        announce("Reading the weights")
        module = model.module()
        announce(f"Attention 1 of {names}")
        seen = 0

        def each(name: str, problem: AttentionProblem, summary: Summary) -> None:
            nonlocal seen
            seen += 1
            if kept is not None:
                kept.add(problem, summary)
            announce(f"Attention {seen + 1} of {names}" if seen < names else "Making the page")

        with _named_errors(model):
            return attention_of(
                module,
                model.inputs(*texts),
                _places(model, chosen),
                chosen.heads,
                each=each,
                **statistics_within(longest, max(1, sum(it.heads for it in sizes))),
            )


@contextlib.contextmanager
def _named_errors(model: TextModel) -> Iterator[None]:
    """Turn what a model raises, which may be anything, into an `ArgumentError`."""
    try:
        yield
    except HeedfulError:
        raise
    except Exception as error:
        raise ArgumentError(
            OPTION,
            expected="a model that runs on the tokens of its texts alone",
            received=f"{model.title}, which raises {type(error).__name__}: {error}",
            remedy="Call heedful.attention_of(model, inputs) with the inputs that it needs.",
        ) from error


def statistics_within(tokens: int, heads: int) -> dict[str, Any]:
    """Return what to compute of each attention: what a page shows, as far as all heads fit into memory.

    >>> statistics_within(16384, heads=270)
    {'top_k': 0, 'pool': 256}
    """
    statistics = statistics_of_page(tokens)
    if "rows" in statistics and heads * tokens**2 * FLOAT > MEMORY:
        statistics = {"top_k": statistics["top_k"], "pool": tokens}
    while (pool := statistics.get("pool", 1)) > 1 and heads * pool**2 * 2 * FLOAT > MEMORY:
        statistics["pool"] = pool // 2
    most = HOPELESS_TOP_KEYS * ROOM // (heads * tokens * BYTES_OF_TOP_KEY)
    return statistics | {"top_k": min(statistics["top_k"], most)}


def size_to_keep(model: TextModel, read: Read, chosen: Chosen) -> int:
    """Return how many bytes the queries, keys, log-sum-exps and biases of a run take."""
    number = torch.empty(0, dtype=model.dtype).element_size()
    size = 0
    for it in _attentions(model, read, chosen):
        size += it.heads * it.queries * (model.head_size * number + max(number, FLOAT))
        size += it.key_heads * it.keys * model.head_size * number
        size += it.heads * it.queries * it.keys * number * model.biased
    return size


@contextlib.contextmanager
def _kept(
    model: TextModel, read: Read, chosen: Chosen, *, wanted: bool
) -> Iterator[KeptAttention | None]:
    """Yield the file for queries and keys, after a word about its size; None if the page is not served."""
    if not wanted:
        yield None
        return
    size = size_to_keep(model, read, chosen)
    with KeptAttention(size) as kept:
        _say(
            f"The queries and keys take {in_megabytes(size)} in {kept.folder} until the server ends."
        )
        yield kept


def _attentions(model: TextModel, read: Read, chosen: Chosen) -> list[Attention]:
    """Return the sizes of the attentions that are shown, with as many heads as are."""
    layers = model.attentions(len(read.text), len(read.of_decoder))
    every = [it for layer in layers for it in layer]
    places = _places(model, chosen)
    found = every if places is None else [it for i, it in enumerate(every) if i in places]
    if chosen.heads is None:
        return found
    count = len(chosen.heads)
    return [it._replace(heads=count, key_heads=count) for it in found]


def _places(model: TextModel, chosen: Chosen) -> list[int] | None:
    """Return the places of the chosen layers' attentions among all; None: all.

    Layers are counted in the encoder and in the decoder, each of whose layers has two attentions.
    """
    if chosen.layers is None or model.decoder is None:
        return chosen.layers
    most = max(model.layers, model.decoder.layers)
    if max(chosen.layers) >= most:
        raise ArgumentError(
            "--layers",
            expected=f"indices from 0 to {most - 1}, of layers of the encoder and of the decoder",
            received=str(chosen.layers),
            remedy="Leave it out to see all.",
        )
    of_encoder = [it for it in chosen.layers if it < model.layers]
    of_decoder = [it for it in chosen.layers if it < model.decoder.layers]
    return of_encoder + [model.layers + 2 * it + second for it in of_decoder for second in (0, 1)]


def _with_tiles(page: Page) -> Page:
    """Return the page as one whose server answers requests for tiles."""
    views = tuple(
        replace(view, tiles=True) if isinstance(view, HeadsView) else view for view in page.views
    )
    return replace(page, views=views)


def _say(text: str) -> None:
    print(visible(text), file=sys.stderr)


def _text(text: str | None, file: Path | None) -> str:
    if (text is None) == (file is None):
        raise ArgumentError(
            "--text, --text-file",
            expected="one of the two",
            received="neither" if text is None else "both",
            remedy='Write --text "The cat sat on the mat", or name a file in UTF-8.',
        )
    option = "--text" if file is None else "--text-file"
    content = _read(file) if file is not None else text or ""
    if not content.strip():
        raise ArgumentError(
            option,
            expected="a text of several words",
            received="an empty one" if file is None else f"{file}, which is empty",
            remedy="A map of attention needs at least two tokens.",
        )
    return content


def _read(file: Path) -> str:
    try:
        return str(read_file(file, MAX_TEXT), "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ArgumentError(
            "--text-file",
            expected=f"a file with text in UTF-8, of at most {MAX_TEXT >> 20} MiB",
            received=f"{file}: {reason}",
            remedy="Convert it first: iconv -t UTF-8."
            if isinstance(error, UnicodeDecodeError)
            else "Name a file that can be read.",
        ) from error


def _encoded(encode: Callable[[str], list[int]], text: str, option: str) -> list[int]:
    """Return the tokens of a text."""
    try:
        return encode(text)
    except UnicodeEncodeError as error:  # half a surrogate pair, from a terminal that is not UTF-8
        raise ArgumentError(
            option,
            expected="Unicode text",
            received=f"{text[error.start]!r} at character {error.start}",
            remedy="Write the text to a file in UTF-8, and name it by --text-file."
            if option == "--text"
            else "Write it on a terminal that is set to UTF-8.",
        ) from error


def _tokens_of_decoder(
    model: TextModel, decoder: Decoder, ids: Sequence[int], text: str | None
) -> list[int]:
    """Return the tokens that a decoder reads: for a text that it is to write, or for its own."""
    if text is None:
        with progress(1) as announce, _named_errors(model):
            announce("Generating what the decoder writes")
            found = decoder.generate(ids)
        _say("The decoder's text is what the model finds most likely; --target-text sets another.")
        return found
    if not text.strip():
        raise ArgumentError(
            "--target-text",
            expected="a text",
            received="an empty one",
            remedy="Leave it out to let the model write one.",
        )
    found = _encoded(decoder.encode, text, "--target-text")
    if len(found) > model.positions:
        raise ArgumentError(
            "--target-text",
            expected=f"a text of at most {model.positions:,} tokens, the positions of {model.title}",
            received=f"{len(found):,} tokens",
            remedy="Shorten it.",
        )
    return found


def _tokens(model: TextModel, text: str, count: int | None) -> list[int]:
    """Return the tokens of a text that the model is to read."""
    ids = _encoded(model.encode, text, "--text")
    if count is not None:
        ids = ids[:count]
    if len(ids) < 2:
        raise ArgumentError(
            "--text",
            expected="a text of at least two tokens",
            received=f"{len(ids)}, {model.texts(ids)}",
            remedy="One token attends to itself with weight 1.",
        )
    if len(ids) > model.positions and not (model.rotary and count is not None):
        remedy = f"Read the first ones: --tokens {model.positions}."
        if model.rotary:
            remedy += " This model computes positions, so that --tokens may also ask for more than it was trained on."
        raise ArgumentError(
            "--text",
            expected=f"a text of at most {model.positions:,} tokens, the positions of {model.title}",
            received=f"{len(ids):,} tokens",
            remedy=remedy,
        )
    return ids


def _indices(text: str | None, option: str) -> list[int] | None:
    """Return the numbers of a list such as "0,3-5"; None if there is none."""
    if text is None:
        return None
    found: set[int] = set()
    for part in text.split(","):
        span = re.fullmatch(r"\s*([0-9]{1,4})(?:-([0-9]{1,4}))?\s*", part)
        if span is None or int(span[1]) > int(span[2] or span[1]):
            raise ArgumentError(
                option,
                expected='indices from 0 and ranges of them, such as "0,3-5"',
                received=repr(text),
                remedy="Leave it out to see all.",
            )
        found |= set(range(int(span[1]), int(span[2] or span[1]) + 1))
    return sorted(found)

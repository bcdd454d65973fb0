"""The server of one page and of the tiles of weights that the reader zooms into: on this machine only."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch

from heedful.errors import ArgumentError, MissingExtraError
from heedful.screen import print_out
from heedful.viewer.models.kept_attention import KeptAttention

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
MOST_CELLS = 1024
HEADERS = {
    "Cache-Control": "no-store",  # the next page at this address has other weights
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
PARAMETERS = ("layer", "head", "rows", "columns", "cells")


def serve(html: str, kept: KeptAttention, port: int) -> None:
    """Serve a page and its tiles until Ctrl-C.

    Args:
        html: The page.
        kept: The attention that its tiles are computed from.
        port: The port; 0 takes a free one.

    Raises:
        ArgumentError: The port is taken.
        MissingExtraError: The extra "serve" is not installed.
    """
    check_installed()
    with listening(port) as listener:
        port = listener.getsockname()[1]
        server = make_server(html, kept, port)
        print_out(f"http://{HOST}:{port}/  (Ctrl-C ends it)")
        with suppress(KeyboardInterrupt):  # the way to end it, which is no failure
            server.run(sockets=[listener])


def check_installed() -> None:
    """Raise `MissingExtraError` unless the extra "serve" is installed."""
    try:
        import starlette  # noqa: F401 # pyright: ignore[reportMissingImports] - an extra
        import uvicorn  # noqa: F401 # pyright: ignore[reportMissingImports] - an extra
    except ImportError as error:
        raise MissingExtraError("--serve", "serve") from error


@contextlib.contextmanager
def listening(port: int) -> Iterator[socket.socket]:
    """Yield a socket that listens on this machine only."""
    try:
        listener = socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        raise ArgumentError(
            "--port",
            expected="a free port of this machine, or 0 for any",
            received=f"{port}: {error}",
            remedy="Leave it out to take a free one.",
        ) from error
    with listener:
        yield listener


def make_server(html: str, kept: KeptAttention, port: int) -> Any:
    """Return the `uvicorn.Server` of a page and its tiles for a socket that listens at a port."""
    import uvicorn  # pyright: ignore[reportMissingImports] - an extra

    headers = HEADERS | {"Content-Security-Policy": content_security_policy(html)}
    config = uvicorn.Config(
        guarded(make_application(html, kept), port, headers),
        log_level="critical",
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)


def make_application(html: str, kept: KeptAttention) -> Any:
    """Return the ASGI application: the page at "/", and its tiles at "/tile"."""
    from starlette.applications import Starlette  # pyright: ignore[reportMissingImports] - an extra
    from starlette.responses import (  # pyright: ignore[reportMissingImports] - an extra
        HTMLResponse,
        PlainTextResponse,
        Response,
    )
    from starlette.routing import Route  # pyright: ignore[reportMissingImports] - an extra

    one_by_one = threading.Lock()  # a tile is computed on all cores

    def page(request: Any) -> Response:
        return HTMLResponse(html)

    def tile(request: Any) -> Response:
        try:
            where = parse_query(request.query_params.multi_items(), kept.sizes)
        except ArgumentError as error:
            return PlainTextResponse(str(error), status_code=400)
        with one_by_one:
            found = kept.tile(**where)
        rows, columns = found.mean.shape
        sizes = {"X-Rows": str(rows), "X-Columns": str(columns)}
        content = torch.stack(found).cpu().numpy().astype("<f4").tobytes()
        return Response(content, media_type="application/octet-stream", headers=sizes)

    return Starlette(routes=[Route("/", page), Route("/tile", tile)])


def guarded(application: Any, port: int, added: dict[str, str]) -> Any:
    """Return the application behind a door that only its own page comes through.

    A page of another site could otherwise read the text: its name may be made to stand for this machine's address
    (DNS rebinding), and then the browser sends that name as the host.

    Args:
        application: The ASGI application.
        port: The port that it is served at.
        added: The headers that every answer gets.
    """
    from starlette.datastructures import (  # pyright: ignore[reportMissingImports] - an extra
        Headers,
        MutableHeaders,
    )
    from starlette.responses import PlainTextResponse  # pyright: ignore[reportMissingImports] - an extra

    hosts = [f"{name}:{port}" for name in NAMES] + ([*NAMES] if port == 80 else [])
    origins = [f"http://{host}" for host in hosts]

    async def door(scope: Any, receive: Any, send: Any) -> None:
        headers = Headers(scope=scope)
        answer = application
        if headers.getlist("host") not in [[host] for host in hosts]:
            text = f"Host: expected {' or '.join(hosts)}. Open the address that heedful printed."
            answer = PlainTextResponse(text, status_code=403)
        elif any(origin not in origins for origin in headers.getlist("origin")):
            text = f"Origin: expected {' or '.join(origins)}. Other pages may not read this one."
            answer = PlainTextResponse(text, status_code=403)

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(added)
            await send(message)

        await answer(scope, receive, send_with_headers)

    return door


def content_security_policy(html: str) -> str:
    """Return what the page may do: run its own scripts, and ask its own server."""
    scripts = re.findall(r"<script>(.*?)</script>", html, flags=re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(it.encode()).digest()).decode() for it in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def parse_query(
    parameters: list[tuple[str, str]], sizes: list[tuple[int, int, int]]
) -> dict[str, Any]:
    """Return the arguments of `KeptAttention.tile` that a query names.

    Args:
        parameters: The query's names and values.
        sizes: The numbers of heads, queries and keys of each attention.

    Raises:
        ArgumentError: The query is not one for a tile of these.

    Examples:
        >>> query = [("layer", "0"), ("head", "1"), ("rows", "2:4"), ("columns", "0:9"), ("cells", "8")]
        >>> parse_query(query, [(2, 9, 9)])
        {'layer': 0, 'head': 1, 'rows': (2, 4), 'columns': (0, 9), 'cells': 8}
    """
    if sorted(name for name, _ in parameters) != sorted(PARAMETERS):
        raise _bad("query", "each of " + ", ".join(PARAMETERS) + " once", str(parameters))
    values = dict(parameters)
    layer = _number(values, "layer", 0, len(sizes) - 1)
    heads, queries, keys = sizes[layer]
    return {
        "layer": layer,
        "head": _number(values, "head", 0, heads - 1),
        "rows": _span(values, "rows", queries),
        "columns": _span(values, "columns", keys),
        "cells": _number(values, "cells", 1, MOST_CELLS),
    }


def _number(values: dict[str, str], name: str, least: int, most: int) -> int:
    text = values[name]
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise _bad(name, f"a number from {least} to {most}", text)
    return int(text)


def _span(values: dict[str, str], name: str, length: int) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", values[name])
    span = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 0 <= span[0] < span[1] <= length:
        raise _bad(name, f"start:stop with 0 <= start < stop <= {length}", values[name])
    return span


def _bad(name: str, expected: str, received: str) -> ArgumentError:
    return ArgumentError(
        name,
        expected=expected,
        received=repr(received),
        remedy=f"Ask for tile?layer=0&head=0&rows=0:64&columns=0:64&cells=64, at most {MOST_CELLS} cells.",
    )

"""A served page in a browser: its policy lets it work, and it gets the tiles that the reader zooms into, no more."""

import threading
from dataclasses import replace

import pytest
import torch

import heedful
from heedful import Causal, summarize
from heedful.problem import AttentionProblem
from heedful.viewer.models.kept_attention import KeptAttention
from heedful.viewer.models.server import HOST, listening, make_server
from viewer.browser import HOSTILE, violations

for package in ("starlette", "uvicorn"):
    pytest.importorskip(package, reason="install it with: pip install 'heedful[serve]'")

T = 700
MARKUP = next(iter(HOSTILE))


@pytest.fixture(scope="module")
def address():
    """Serve the page of two heads over hostile tokens, whose map is pooled, and return its address."""
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, heads, T, 16, generator=generator) for heads in (2, 1))
    summary = summarize(query, key, Causal(), top_k=1, pool=64)
    page = heedful.show({"layer": summary}, labels=([*HOSTILE] * T)[:T], title=MARKUP)
    served = replace(page, views=(replace(page.views[0], tiles=True),))
    with KeptAttention(size=0) as kept, listening(0) as listener:
        kept.add(AttentionProblem(query, key, key, Causal()), summary)
        port = listener.getsockname()[1]
        server = make_server(served.html(), kept, port)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield f"http://{HOST}:{port}/"
        server.should_exit = True
        thread.join()


def test_it_zooms_down_to_single_tokens(open_address, address):
    it = open_address(address)
    for _ in range(8):
        it.page.get_by_role("button", name="Zoom in").click()
    it.page.get_by_text("a cell for each weight").first.wait_for()
    assert it.page.get_by_role("heading", level=1).inner_text() == MARKUP
    assert it.complaints == []
    tiles = f"{address}tile?layer=0&head=0&"
    assert any(url.startswith(tiles) for url, _ in it.answers)
    assert {status for url, status in it.answers if not url.startswith("data:")} == {200}
    assert all(url.startswith((address, "data:")) for url, _ in it.answers)


def test_axe_finds_no_violation_in_a_served_page(open_address, address):
    page = open_address(address).page
    page.wait_for_selector("[data-shown]")
    assert violations(page) == []

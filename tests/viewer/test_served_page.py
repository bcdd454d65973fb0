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
from viewer.browser import chromium

for package in ("starlette", "uvicorn"):
    pytest.importorskip(package, reason="install it with: pip install 'heedful[serve]'")

T = 700
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\u202e\x1b[2J",
    "🙂",
]


@pytest.fixture(scope="module")
def address():
    """Serve the page of two heads over hostile tokens, whose map is pooled, and return its address."""
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, heads, T, 16, generator=generator) for heads in (2, 1))
    summary = summarize(query, key, Causal(), top_k=1, pool=64)
    page = heedful.show({"layer": summary}, labels=(HOSTILE * T)[:T], title=HOSTILE[0])
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


def test_it_zooms_down_to_single_tokens(address):
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        complaints, answers = [], []
        page.on("console", lambda it: complaints.append(it.text))
        page.on("pageerror", lambda it: complaints.append(str(it)))
        page.on("dialog", lambda it: (complaints.append(it.message), it.dismiss()))
        page.on("response", lambda it: answers.append((it.url, it.status)))
        page.goto(address)
        for _ in range(8):
            page.get_by_role("button", name="Zoom in").click()
        page.get_by_text("a cell for each weight").first.wait_for()
        assert page.get_by_role("heading", level=1).inner_text() == HOSTILE[0]
    assert complaints == []
    assert any(url.startswith(f"{address}tile?layer=0&head=0&") for url, _ in answers)
    assert {status for url, status in answers if not url.startswith("data:")} == {200}
    assert all(url.startswith((address, "data:")) for url, _ in answers)

"""The command `heedful show --serve` on SmolLM2 and 16,384 tokens, end to end, down to single tokens in the browser.

`pytest -m slow -rP tests/viewer/test_served_book.py` prints the figures. It takes about ten minutes on two cores.
"""

import importlib.util
import re
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest
import torch

from heedful import attention_of
from heedful.kernels.native import library
from heedful.viewer.models.files import find_model
from heedful.viewer.models.text_model import load_model
from viewer.browser import number, violations, wait_until
from viewer.test_book import BOOK, PACKAGE, TOKENS

PATIENCE = 3600  # seconds, on a busy machine
LAYER, HEAD = 2, 7
ROWS, COLUMNS = slice(12_000, 12_032), slice(11_980, 12_020)


@pytest.fixture(scope="module")
def address():
    """Run the command in a process of its own, and return what it prints."""
    for package in ("transformers", "gguf", "accelerate", "starlette", "uvicorn", PACKAGE):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is missing")
    if library.missing is not None:
        pytest.skip("the native library is missing")
    command = [
        sys.executable,
        "-m",
        "heedful",
        "show",
        "--model",
        PACKAGE,
        "--text-file",
        str(BOOK),
    ]
    began = time.monotonic()
    with subprocess.Popen(
        [*command, "--tokens", str(TOKENS), "--serve"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        print(f"the page is served after {time.monotonic() - began:,.0f} s")
        yield line.split()[0]
        process.terminate()


def dense_weights(layer: int) -> torch.Tensor:
    """Return the weights (Hq, Tq, Tk) of some rows of a layer, from its queries and keys, all at once in float64."""
    model = load_model(find_model(PACKAGE), "SmolLM2")
    ids = model.encode(BOOK.read_text("utf-8"))[:TOKENS]
    module = model.module()
    module.layers = module.layers[: layer + 1]
    kept = []
    attention_of(
        module,
        model.inputs(torch.tensor([ids])),
        layers=[layer],
        each=lambda name, problem, summary: kept.append((problem.query, problem.key)),
    )
    query, key = (it[0].double() for it in kept[0])
    key = key.repeat_interleave(len(query) // len(key), dim=0)
    scores = query[:, ROWS] @ key.mT / query.shape[-1] ** 0.5
    later = torch.arange(TOKENS) > torch.arange(TOKENS)[ROWS, None]
    return scores.masked_fill(later, -torch.inf).softmax(dim=-1)


def tile_of(address: str, layer: int, head: int) -> np.ndarray:
    """Ask the server for single weights."""
    rows, columns = (f"{it.start}:{it.stop}" for it in (ROWS, COLUMNS))
    query = f"tile?layer={layer}&head={head}&rows={rows}&columns={columns}&cells=64"
    began = time.monotonic()
    with urllib.request.urlopen(address + query, timeout=PATIENCE) as answer:
        numbers = np.frombuffer(answer.read(), "<f4").reshape(2, 32, 40)
    print(f"a tile of single weights takes {1000 * (time.monotonic() - began):,.0f} ms")
    assert np.array_equal(numbers[0], numbers[1])  # a block of one weight: its mean is its maximum
    return numbers[0]


@pytest.mark.slow
def test_a_served_book_is_seen_down_to_single_tokens(open_address, address):
    expected = dense_weights(LAYER)
    tile = torch.from_numpy(tile_of(address, LAYER, HEAD).copy()).double()
    torch.testing.assert_close(tile, expected[HEAD, :, COLUMNS], rtol=1e-4, atol=1e-6)

    began = time.monotonic()
    it = open_address(address)
    page = it.page
    page.wait_for_selector("[data-shown='0.0']")
    print(f"the page shows its first head after {time.monotonic() - began:.1f} s")
    assert page.get_by_text("270 heads of 30 layers").count() == 1
    page.get_by_role("option", name=f"layers.{LAYER}.self_attn, head {HEAD}", exact=False).click()
    page.wait_for_selector(f"[data-shown='{LAYER}.{HEAD}']")
    field = page.get_by_role("searchbox")
    field.fill("summer")
    field.press("Enter")
    status = page.locator(".tools [role=status]")
    for _ in range(14):
        page.get_by_role("button", name="Zoom in").click()
    wait_until(page, lambda: status.inner_text().endswith("a cell for each weight"))
    page.locator(".heatmap canvas").first.focus()
    page.keyboard.press("ArrowLeft")
    reading = page.locator(".reading").first.inner_text()
    query, key, weight = re.search(r"query ([\d,]+)\) → .*key ([\d,]+)\): (\S+)", reading).groups()
    print(f"the page reads: {reading}")
    place = {"rows": int(query.replace(",", "")), "columns": int(key.replace(",", ""))}
    asked = "&".join(f"{name}={at}:{at + 1}" for name, at in place.items())
    tile = f"{address}tile?layer={LAYER}&head={HEAD}&{asked}&cells=1"
    with urllib.request.urlopen(tile, timeout=PATIENCE) as answer:
        exact = np.frombuffer(answer.read(), "<f4")[0].item()
    assert number(weight) == pytest.approx(exact, abs=6e-5)
    assert violations(page) == []
    assert it.complaints == []
    assert {code for url, code in it.answers if url.startswith("http")} == {200}

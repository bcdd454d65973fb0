"""The server answers its own page only: tiles as bytes, bad queries with a reason, foreign pages not at all."""

import base64
import hashlib
import http.client
import threading

import numpy as np
import pytest
import torch

from heedful import ArgumentError, Causal, summarize
from heedful.problem import AttentionProblem
from heedful.viewer.models.kept_attention import KeptAttention
from heedful.viewer.models.server import HOST, content_security_policy, listening, make_server
from summaries.dense import pooled, weights_of

for package in ("starlette", "uvicorn"):
    pytest.importorskip(package, reason="install it with: pip install 'heedful[serve]'")

PAGE = "<!doctype html><title>é</title><script>\nlet a = 1;</script>"
T = 37
GOOD = "/tile?layer=0&head=3&rows=2:30&columns=0:37&cells=8"


@pytest.fixture(scope="module")
def arguments():
    torch.manual_seed(0)
    return {"query": torch.randn(1, 4, T, 8), "key": torch.randn(1, 2, T, 8), "mask": Causal()}


@pytest.fixture(scope="module")
def port(arguments):
    """Serve a page and one attention in a thread, and return the port."""
    with KeptAttention(size=0) as kept, listening(0) as listener:
        problem = AttentionProblem(
            arguments["query"], arguments["key"], arguments["key"], arguments["mask"]
        )
        kept.add(problem, summarize(**arguments))
        port = listener.getsockname()[1]
        server = make_server(PAGE, kept, port)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield port
        server.should_exit = True
        thread.join()


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, dict, bytes]:
    """Return status, headers and content of an answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_the_page_is_served_as_it_is(port):
    status, headers, content = ask(port, "/")
    assert status == 200
    assert content.decode() == PAGE
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert headers["content-security-policy"] == content_security_policy(PAGE)


def test_the_policy_allows_the_pages_own_script_alone():
    digest = base64.b64encode(hashlib.sha256(b"\nlet a = 1;").digest()).decode()
    policy = dict(it.split(" ", 1) for it in content_security_policy(PAGE).split("; "))
    assert policy["script-src"] == f"'sha256-{digest}'"
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"


def test_a_tile_is_mean_and_maximum_as_float32(port, arguments):
    status, headers, content = ask(port, GOOD)
    exact, _ = weights_of(arguments)
    mean, maximum = pooled(exact[:, 3:4, 2:30], (4, 5))
    assert (status, headers["x-rows"], headers["x-columns"]) == (200, "7", "8")
    received = np.frombuffer(content, "<f4").reshape(2, 7, 8)
    np.testing.assert_allclose(received[0], mean[0, 0], atol=1e-6)
    np.testing.assert_allclose(received[1], maximum[0, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("", "query"),
        ("layer=0&head=0&rows=0:4&columns=0:4", "query"),
        ("layer=0&head=0&rows=0:4&columns=0:4&cells=2&cells=3", "query"),
        ("layer=0&head=0&rows=0:4&columns=0:4&cells=2&file=/etc/passwd", "query"),
        ("layer=1&head=0&rows=0:4&columns=0:4&cells=2", "layer"),
        ("layer=-1&head=0&rows=0:4&columns=0:4&cells=2", "layer"),
        ("layer=0&head=4&rows=0:4&columns=0:4&cells=2", "head"),
        ("layer=0&head=0&rows=4:4&columns=0:4&cells=2", "rows"),
        ("layer=0&head=0&rows=0:38&columns=0:4&cells=2", "rows"),
        ("layer=0&head=0&rows=0:4&columns=4&cells=2", "columns"),
        ("layer=0&head=0&rows=0:4&columns=0:4&cells=0", "cells"),
        ("layer=0&head=0&rows=0:4&columns=0:4&cells=99999", "cells"),
        ("layer=0&head=0&rows=0:4&columns=0:4&cells=1e3", "cells"),
        ("layer=0&head=0&rows=0:4&columns=0:4&cells=٣", "cells"),
        ("layer=0&head=0&rows=0:4&columns=0:4&cells=" + "9" * 5000, "cells"),
    ],
)
def test_a_bad_query_is_answered_with_the_reason(port, query, reason):
    status, headers, content = ask(port, "/tile?" + query.replace("٣", "%D9%A3"))
    assert status == 400
    assert headers["content-type"].startswith("text/plain")
    assert content.decode().startswith(f"{reason}: expected ")
    assert b"Traceback" not in content


@pytest.mark.parametrize("path", ["/", GOOD, "/nothing"])
@pytest.mark.parametrize(
    "foreign",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:{port}"},
        {"Host": "127.0.0.1.evil.example:{port}"},
        {"Host": "localhost"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "https://127.0.0.1:{port}"},
        {"Origin": "null"},
    ],
)
def test_foreign_pages_are_refused(port, path, foreign):
    status, headers, content = ask(
        port, path, **{k: v.format(port=port) for k, v in foreign.items()}
    )
    assert status == 403
    assert "access-control-allow-origin" not in headers
    assert b"script" not in content


@pytest.mark.parametrize("host", [HOST, "localhost"])
def test_its_own_page_is_answered(port, host):
    own = f"{host}:{port}"
    assert ask(port, GOOD, Host=own, Origin=f"http://{own}")[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/", 405),
        ("DELETE", GOOD, 405),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/%2e%2e/pyproject.toml", 404),
    ],
)
def test_nothing_else_is_served(port, method, path, status):
    found, headers, _ = ask(port, path, method)
    assert found == status
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"


def test_it_listens_on_this_machine_only(port):
    with listening(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_a_port_that_is_taken_is_an_error(port):
    with pytest.raises(ArgumentError, match=f"--port: .*{port}") as caught, listening(port):
        pass
    assert "free one" in caught.value.remedy

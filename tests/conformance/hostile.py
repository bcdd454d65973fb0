"""Targets that would end, hold up, fool or spoil a check, with the exit code that `heedful check` must give them."""

from __future__ import annotations

from dataclasses import dataclass

SOUND, BUG, UNUSABLE = 0, 1, 2

MODULE = """\
import os
import sys

import torch
from torch import nn

{at_import}


class Attention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.W_query, self.W_key, self.W_value = (nn.Linear(d_model, d_model) for _ in range(3))
        {when_built}

    def forward(self, x):
        {when_called}
        query, key, value = self.W_query(x), self.W_key(x), self.W_value(x)
        scores = query @ key.transpose(-2, -1) / key.shape[-1] ** 0.5
        result = scores.softmax(dim=-1) @ value
        return {returned}
"""


@dataclass(frozen=True)
class Hostile:
    """A target in a file.

    Attributes:
        name: What it does.
        source: The content of the file; its class is called Attention.
        code: The exit code of the command.
        text: What the command says about it.
    """

    name: str
    source: str | bytes
    code: int
    text: str = ""


def at_import(statement: str, code: int, text: str = "", name: str = "") -> Hostile:
    return Hostile(f"import: {name or statement}", module(at_import=statement), code, text)


def when_built(statement: str, code: int, text: str = "", name: str = "") -> Hostile:
    return Hostile(f"build: {name or statement}", module(when_built=statement), code, text)


def when_called(statement: str, code: int, text: str = "", name: str = "") -> Hostile:
    return Hostile(f"call: {name or statement}", module(when_called=statement), code, text)


def returning(expression: str, code: int, text: str = "", name: str = "") -> Hostile:
    return Hostile(f"return: {name or expression}", module(returned=expression), code, text)


def module(
    at_import: str = "",
    when_built: str = "pass",
    when_called: str = "pass",
    returned: str = "result",
) -> str:
    """Return the source of a sound attention with statements at three places, and with another result."""
    return MODULE.format(
        at_import=at_import, when_built=when_built, when_called=when_called, returned=returned
    )


EXITS = [
    at_import("sys.exit(0)", UNUSABLE, "hostile.py:7: sys.exit(0)"),
    at_import("os._exit(0)", UNUSABLE, "ended the process with exit code 0"),
    at_import("os._exit(1)", UNUSABLE, "ended the process with exit code 1"),
    at_import("raise BaseException('no')", UNUSABLE, "BaseException: no, at "),
    at_import("raise KeyboardInterrupt", UNUSABLE, "hostile.py:7: raise KeyboardInterrupt"),
    at_import("raise GeneratorExit", UNUSABLE, "hostile.py:7: raise GeneratorExit"),
    at_import("os.kill(os.getpid(), 9)", UNUSABLE, "SIGKILL"),
    at_import("os.abort()", UNUSABLE, "SIGABRT"),
    at_import("import signal; signal.alarm(1); signal.pause()", UNUSABLE, "SIGALRM"),
    at_import("import atexit; atexit.register(os._exit, 5)", SOUND),
    when_built("sys.exit(0)", UNUSABLE, "hostile.py:14: sys.exit(0)"),
    when_built("os._exit(0)", UNUSABLE, "ended the process with exit code 0"),
    when_built("raise BaseException('no')", UNUSABLE, "BaseException: no, at "),
    when_built("raise KeyboardInterrupt", UNUSABLE, "hostile.py:14: raise KeyboardInterrupt"),
    when_called("sys.exit(0)", UNUSABLE, "SystemExit: 0"),
    when_called("os.fork()", SOUND),
    when_called("os._exit(0)", UNUSABLE, "ended the process with exit code 0"),
    when_called("os._exit(1)", UNUSABLE, "ended the process with exit code 1"),
    when_called("raise BaseException('no')", UNUSABLE, "BaseException: no"),
    when_called("raise GeneratorExit", UNUSABLE, "GeneratorExit"),
    when_called("raise KeyboardInterrupt", UNUSABLE, "hostile.py:17: raise KeyboardInterrupt"),
    when_called("raise TimeoutError('no')", UNUSABLE, "TimeoutError: no"),
    when_called("raise StopIteration", UNUSABLE, "StopIteration"),
    when_called("os.kill(os.getpid(), 15)", UNUSABLE, "SIGTERM"),
    when_called("import ctypes; ctypes.string_at(0)", UNUSABLE, "SIGSEGV"),
    when_called("import signal; signal.alarm(1); signal.pause()", UNUSABLE, "SIGALRM"),
    when_called("import signal; signal.raise_signal(2)", UNUSABLE, "KeyboardInterrupt"),
]

RESULTS = [
    returning("result * float('nan')", BUG, "output-not-finite"),
    returning("result / 0", BUG, "output-not-finite"),
    returning("result.to('meta')", UNUSABLE, "nonzero"),
    returning("None", UNUSABLE, "one row for each token"),
    returning("'text'", UNUSABLE, "one row for each token"),
    returning("3", UNUSABLE, "one row for each token"),
    returning("(row for row in result)", UNUSABLE, "one row for each token", "a generator"),
    returning("result.detach().numpy()", UNUSABLE, "one row for each token"),
    returning("result.sum()", UNUSABLE, "one row for each token"),
    returning("result[:, :0]", UNUSABLE, "one row for each token"),
    returning("result.to_sparse()", UNUSABLE, "SparseCPU"),
    returning("result.to(torch.complex64)", UNUSABLE, "one row for each token"),
    returning("self", UNUSABLE, "one row for each token"),
    returning("{1: {2: {}}}", UNUSABLE, "one row for each token"),
    Hostile(
        "return: a list that contains itself",
        module(when_called="loop = []; loop.append(loop); return loop"),
        UNUSABLE,
        "one row for each token",
    ),
]

RESOURCES = [
    at_import("torch.empty(100 * 2**30, dtype=torch.uint8).fill_(1)", UNUSABLE, "hostile.py:7"),
    at_import("bytearray(100 * 2**30)", UNUSABLE, "MemoryError"),
    when_built("self.w = nn.Parameter(torch.ones(2**34))", UNUSABLE, "hostile.py:14"),
    when_built("self.w = nn.Parameter(torch.empty(2**40, device='meta'))", UNUSABLE, "allocate"),
    when_called("torch.empty(100 * 2**30, dtype=torch.uint8).fill_(1)", UNUSABLE, "hostile.py"),
    when_called("self.forward(x)", UNUSABLE, "RecursionError"),
    at_import("def f(): f()\nf()", UNUSABLE, "RecursionError", "recursion without end"),
    when_called("import threading; threading.Thread(target=threading.Event().wait).start()", SOUND),
    when_called("import subprocess; subprocess.Popen(['sleep', '60'])", SOUND),
    at_import("os.fork()", SOUND),
    at_import("os.fork() and os._exit(0)", UNUSABLE, "ended the process with exit code 0"),
    at_import("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))", UNUSABLE),
]

OUTPUT = [
    at_import("os.write(1, b'\\x1b[2J'); os.write(2, b'\\x1b]0;x\\x07')", SOUND),
    at_import("sys.__stdout__.write('\\x1b[2J')", SOUND),
    when_called("print('\\x1b[2J', flush=True)", SOUND),
    at_import("raise ValueError('\\x1b[2J')", UNUSABLE, "ValueError: \\x1b[2J"),
    when_built("raise ValueError('\\x1b[2J')", UNUSABLE, "ValueError: \\x1b[2J"),
    when_called("raise ValueError('\\x1b[2J')", UNUSABLE, "ValueError: \\x1b[2J"),
    when_called("raise ValueError('\\udc80')", UNUSABLE, "ValueError: "),
    when_called("raise ValueError('x' * 10**7)", UNUSABLE, "ValueError: xxx"),
    when_called("raise ValueError", UNUSABLE, "ValueError"),
    when_called("raise type('\\x1b[2J', (Exception,), {})", UNUSABLE, "\\x1b[2J"),
    when_called(
        "raise type('E', (Exception,), {'__str__': lambda self: 1 / 0})",
        UNUSABLE,
        "E: <exception str() failed>",
        "an error without text",
    ),
    Hostile(
        "a class with escapes in its name",
        module() + "\nAttention.__name__ = Attention.__qualname__ = '\\x1b[2J'\n",
        SOUND,
        "\\x1b[2J",
    ),
    at_import("sys.stdout.close(); sys.stderr.close()", SOUND),
    at_import("os.close(0); os.close(1); os.close(2)", SOUND),
    at_import("os.closerange(0, 256)", SOUND),
    at_import("sys.stdout = sys.stderr = None", SOUND),
]

REPLACEMENTS = [
    at_import("import builtins; builtins.print = None; builtins.open = None", SOUND),
    at_import("import json; json.dumps = json.loads = lambda *a, **k: '{}'", SOUND),
    at_import("import pickle; pickle.dumps = lambda *a, **k: b''", SOUND),
    at_import("os._exit = sys.exit", SOUND),
    at_import("os.getpid = lambda: 0", SOUND),
    at_import("torch.Tensor.__repr__ = None", SOUND),
    at_import("import time; time.perf_counter = lambda: float('nan')", SOUND),
    at_import("sys.modules.clear()", UNUSABLE),
    at_import("sys.modules[__name__] = None", SOUND),
    at_import("del sys.modules[__name__]", SOUND),
    at_import("sys.modules['torch'] = None", UNUSABLE),
    at_import("os.remove(__file__)", SOUND),
    at_import("import tempfile; os.chdir(d := tempfile.mkdtemp()); os.rmdir(d)", SOUND),
    when_called("import tempfile; os.chdir(d := tempfile.mkdtemp()); os.rmdir(d)", SOUND),
    at_import("os.environ.clear(); sys.path.clear(); sys.argv.clear()", SOUND),
    at_import("import signal; signal.alarm(600)", SOUND),
    when_called("torch.set_default_device('meta')", BUG),
    when_called("torch.set_default_dtype(torch.float16)", SOUND),
    when_called("torch.manual_seed(3)", SOUND),
    when_called("input()", UNUSABLE, "EOFError"),
    at_import("input()", UNUSABLE, "EOFError"),
]

ENDLESS = [
    at_import("while True: pass", UNUSABLE, "did not finish within"),
    when_built("while True: pass", UNUSABLE, "did not finish within"),
    when_called("while True: pass", UNUSABLE, "did not finish within"),
    at_import("os.kill(os.getpid(), 19)", UNUSABLE, "did not finish within"),
]

BROKEN = [
    Hostile("a null byte", module().encode() + b"\0", UNUSABLE, "null bytes"),
    Hostile("another encoding", b"x = '\xff'\n" + module().encode(), UNUSABLE, "SyntaxError"),
    Hostile("an unknown encoding", b"# coding: none\n", UNUSABLE, "none"),
    Hostile("binary", bytes(range(256)) * 100, UNUSABLE, "SyntaxError"),
    Hostile("nested parentheses", "(" * 10_000 + ")" * 10_000, UNUSABLE, "parentheses"),
    Hostile("nested operators", "x = " + "-" * 100_000 + "1", UNUSABLE),
    Hostile("a long line", "x = 1 +" + " 1 +" * 100_000, UNUSABLE, "SyntaxError"),
    Hostile("more than 16 MiB", "#" * (2**24 + 1), UNUSABLE, "16,777,217 bytes"),
    Hostile("empty", "", UNUSABLE, "'Attention' does not exist"),
]

HOSTILE: list[Hostile] = [
    *EXITS,
    *RESULTS,
    *RESOURCES,
    *OUTPUT,
    *REPLACEMENTS,
    *ENDLESS,
    *BROKEN,
]

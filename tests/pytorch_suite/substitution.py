"""A pytest plugin that puts heedful in the place of PyTorch's attention, and writes the outcome of every test."""

import json
from pathlib import Path

import pytest
from torch.nn import functional as F

import heedful

MODES = ("plain", "accelerate", "replace")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--attention", choices=MODES, default="plain")
    parser.addoption("--outcomes", type=Path, help="a file to which the outcomes are appended")


def pytest_configure(config: pytest.Config) -> None:
    """Substitute before any test module is imported, because some import the function by name."""
    mode = config.getoption("--attention")
    if mode == "accelerate":
        heedful.accelerate()
    elif mode == "replace":
        F.scaled_dot_product_attention = heedful.scaled_dot_product_attention
    path = config.getoption("--outcomes")
    if path is not None:
        config.pluginmanager.register(OutcomeLog(path))


class OutcomeLog:
    """Writes a line when a test starts and when a phase of it ends, so that a crash leaves its test without outcome."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _write(self, test: str, outcome: str, message: str = "") -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([test, outcome, message]) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(nodeid, "crashed")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._write(report.nodeid, report.outcome, report.longreprtext[-2000:])

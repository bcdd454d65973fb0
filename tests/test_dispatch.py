"""The choice of kernels, how explain() describes it, and that a kernel requested by name runs or raises."""

import contextlib
import dataclasses

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import heedful
from heedful import (
    ArgumentError,
    Band,
    Causal,
    Dense,
    Documents,
    KernelError,
    KeyRanges,
    Padding,
    Prefix,
    Sinks,
    Window,
    attention,
    explain,
)
from heedful.kernels import native

Q, K, V = torch.randn(2, 4, 16, 8), torch.randn(2, 2, 16, 8), torch.randn(2, 2, 16, 6)


@pytest.fixture
def without_native(monkeypatch):
    """Run the test as if the library could not be compiled."""
    monkeypatch.setattr("heedful.kernels.native.library.missing", "no compiler")


def reasons(plan: heedful.Plan) -> dict[str, str]:
    return dict(plan.others)


def test_a_plan_counts_the_work():
    plan = explain(Q, K, V, Causal())
    pairs = 2 * 4 * (16 * 17 // 2)
    assert plan.pairs == pairs
    assert plan.flops == 2 * (8 + 6) * pairs
    assert plan.bytes == 4 * (Q.numel() + K.numel() + V.numel() + 2 * 4 * 16 * 6)


def test_a_plan_names_every_kernel_once():
    plan = explain(Q, K, V)
    assert {plan.kernel, *reasons(plan)} == set(heedful.dispatch.KERNELS)
    assert plan.kernel not in reasons(plan)
    assert all(reasons(plan).values())


@pytest.mark.parametrize(
    ("options", "refusing", "reason", "chosen"),
    [
        ({"softcap": 5.0}, "torch_sdpa", "no soft-cap", "reference"),
        ({"sinks": torch.zeros(4)}, "torch_sdpa", "no sink logits", "reference"),
        ({"return_lse": True}, "torch_sdpa", "log-sum-exp", "reference"),
        ({"dropout_p": 0.5}, "flex", "no dropout", "torch_sdpa"),
        ({"mask": torch.rand(16, 16) > 0.5}, "flex", "dense", "torch_sdpa"),
        ({"sinks": torch.zeros(4)}, "flex", "log-sum-exp on CPUs", "reference"),
    ],
)
def test_refusals_have_a_reason(options, refusing, reason, chosen, without_native):
    plan = explain(Q, K, V, **options)
    assert plan.kernel == chosen
    assert reason in reasons(plan)[refusing]
    with pytest.raises(KernelError, match=reason):
        attention(Q, K, V, kernel=refusing, **options)


@pytest.mark.parametrize("isa", native.UNMEASURED)
def test_on_arm_ours_comes_first_and_says_that_it_is_unmeasured(isa, monkeypatch):
    monkeypatch.setattr("heedful.kernels.native.library.isa", isa)
    plan = explain(Q, K, V)
    assert plan.kernel == "native"
    assert plan.notes == f"{isa}; its speed is expected, not measured: no Arm machine has timed it"


def test_on_arm_torch_multiplies_bf16_if_it_skips_as_much(monkeypatch):
    monkeypatch.setattr("heedful.kernels.native.library.isa", "neon_bf16")
    query, key, value = Q.bfloat16(), K.bfloat16(), V.bfloat16()
    plan = explain(query, key, value)
    assert plan.kernel == "torch_sdpa"
    assert "no Arm machine has measured either" in reasons(plan)["native"]
    assert explain(query, key, value, Window(4)).kernel == "native"
    assert explain(query[:, :, :1], key, value).kernel == "native"


def test_flex_refuses_a_backward_pass_on_cpus():
    with pytest.raises(KernelError, match=r"no backward pass.*These can: .*torch_sdpa"):
        attention(Q.clone().requires_grad_(), K, V, kernel="flex")


@pytest.mark.skipif(
    native.library.missing is not None, reason="the native library is not installed"
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_our_kernel_comes_first_on_cpus(dtype, monkeypatch):
    monkeypatch.setattr("heedful.dispatch.AMX", False)
    plan = explain(Q.to(dtype), K.to(dtype), V.to(dtype), Causal(), return_lse=True)
    assert plan.kernel == "native"
    assert native.library.isa in plan.notes
    assert explain(Q[..., ::2], K[..., ::2], V).notes.endswith(
        "copies query, key, whose last dimension is not contiguous"
    )


@pytest.mark.skipif(
    native.library.missing is not None, reason="the native library is not installed"
)
def test_pytorch_comes_first_where_it_alone_multiplies_in_amx_tiles(monkeypatch):
    monkeypatch.setattr("heedful.dispatch.AMX", True)
    monkeypatch.setattr(native.library, "isa", "avx512bf16")
    small = Q.bfloat16(), K.bfloat16(), V.bfloat16()
    plan = explain(*small, Causal())
    assert plan.kernel == "torch_sdpa"
    assert "AMX" in reasons(plan)["native"]
    assert explain(*small, Window(3)).kernel == "native"
    assert explain(Q, K, V).kernel == "native"
    monkeypatch.setattr(native.library, "isa", "amx")
    assert explain(*small, Causal()).kernel == "native"


@pytest.mark.skipif(
    native.library.missing is not None, reason="the native library is not installed"
)
def test_without_vector_instructions_our_kernel_runs_only_what_it_can_skip(monkeypatch):
    monkeypatch.setattr("heedful.dispatch.AMX", False)
    before = native.library.isa
    native.library.use_isa("generic")
    try:
        plan = explain(Q, K, V, Causal())
        assert plan.kernel == "torch_sdpa"
        assert "no code for this machine's vector instructions" in reasons(plan)["native"]
        assert explain(Q, K, V, Window(3)).kernel == "native"
        assert explain(Q[:, :, :1], K, V).kernel == "native"
        assert explain(Q, K, V, Causal(), dropout_p=0.1).kernel == "native"
    finally:
        native.library.use_isa(before)


def test_float64_goes_to_the_reference():
    plan = explain(Q.double(), K.double(), V.double())
    assert plan.kernel == "reference"
    assert "comes first" in reasons(plan)["online"]
    assert "by name" in reasons(plan)["torch_sdpa"]


def test_the_explained_kernel_is_the_one_that_runs(monkeypatch):
    ran = []
    for name, kernel in heedful.dispatch.KERNELS.items():
        run = kernel.run
        monkeypatch.setattr(kernel, "run", lambda p, n=name, r=run: (ran.append(n), r(p))[1])
    for options in ({}, {"softcap": 1.0}, {"kernel": "online"}, {"mask": Padding([3, 4])}):
        attention(Q, K, V, **options)
        assert ran.pop() == explain(Q, K, V, **options).kernel


def test_a_plan_prints_as_a_table(without_native):
    text = str(explain(Q, K, V, Causal() & (Window(3) | Sinks(1)), softcap=5.0))
    labels = [line.split("  ")[0] for line in text.splitlines()]
    assert labels == ["problem", "mask", "kernel", "FLOPs", "memory", *labels[5:]]
    assert {"not native", "not torch_sdpa", "not online", "not flex"} == set(labels[5:])
    assert "not native      no compiler" in text
    assert "up to 2 key ranges" in text
    assert "(2, 4, 16, 8)" in text


def test_a_plan_notes_what_pytorchs_kernel_does_differently(without_native):
    assert "PyTorch draws" in explain(Q, K, V, dropout_p=0.1).notes
    assert "Tq x Tk" in explain(Q, K, V, Window(3)).notes
    assert explain(Q, K, V, Causal()).notes == ""


def test_a_plan_explains_why_a_mask_is_dense():
    assert "dense, because 2 key ranges" in explain(Q, K, V, torch.rand(16, 16) > 0.5).mask


def test_a_plan_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        explain(Q, K, V).kernel = "other"


def test_explain_draws_no_random_number():
    state = torch.get_rng_state()
    explain(Q, K, V, dropout_p=0.5, kernel="reference")
    assert torch.equal(torch.get_rng_state(), state)


def masks_on(device):
    lengths = torch.ones(2, dtype=torch.long, device=device)
    documents = Documents(torch.zeros(2, 16, dtype=torch.long, device=device))
    dense = Dense(torch.ones(16, 16, dtype=torch.bool, device=device))
    lowered = KeyRanges(Window(2).intervals(16, device=device))
    positional = (Causal(), Window(2), Band(1, 1), Sinks(1), Sinks(1) | Window(2))
    sequences = (Prefix(lengths), Padding(lengths), Padding(lengths, "left"), documents)
    return *positional, *sequences, dense, lowered, Causal() & Padding(lengths), Causal() | dense


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_masks_without_values_are_explained_and_run(device):
    """On the device "meta", and with fake tensors, which seem to be on the CPU."""
    with FakeTensorMode() if device == "cpu" else contextlib.nullcontext():
        query = torch.empty(2, 4, 16, 8, device=device)
        for mask in masks_on(device):
            plan = explain(query, query, query, mask)
            assert plan.pairs is plan.flops is None
            assert "unknown" in str(plan)
            assert plan.kernel != "flex"
            assert "values" in reasons(plan)["flex"] or device == "meta"
            assert attention(query, query, query, mask).shape == query.shape


@pytest.mark.parametrize("kernel", ["fastest", ["native"], {}, None, 1])
def test_what_names_no_kernel_is_refused(kernel):
    with pytest.raises(ArgumentError, match="kernel: expected 'auto'"):
        attention(Q, K, V, kernel=kernel)

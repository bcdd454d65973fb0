"""The corpus, without the check: every base computes attention, and every mutant behaves differently from its base."""

from collections.abc import Callable

import pytest
import torch
from corpus.correct import CORRECT
from corpus.mutants import BASES, MUTANTS, OPTIONS, Mutant, bugs, built, load
from torch import Tensor, nn

from heedful.conformance.reporting.catalogue import CATALOGUE

B, T, C, H, MAX_LENGTH = 3, 7, 24, 4, 80

ARGUMENTS = {
    "single": {"d_in": C, "d_out": C, "context_length": MAX_LENGTH, "dropout": 0.25},
    "split": {"d_in": C, "d_out": C, "context_length": MAX_LENGTH, "dropout": 0.25, "num_heads": H},
    "packed": {"n_embd": C, "n_head": H, "block_size": MAX_LENGTH, "resid_pdrop": 0.0},
    "einsums": {"dim": C, "heads": H, "dim_head": 5, "dropout": 0.25},
    "fused": {"d_model": C, "num_heads": H, "num_kv_heads": 2, "dropout": 0.25},
    "listed": {"n_embd": C, "num_heads": H, "block_size": MAX_LENGTH},
    "folded": {"embed_dim": C, "num_heads": H, "dropout": 0.25},
    "cached": {"dim": C, "n_heads": H, "n_kv_heads": 2, "max_seq_len": MAX_LENGTH},
    "encoder": {"hidden_size": C, "num_attention_heads": H},
    "windowed": {"d_model": C, "num_heads": H, "window": 3, "max_len": MAX_LENGTH},
    "annotated": {"h": H, "d_model": C},
    "padded": {"embed_dim": C, "num_heads": H, "dropout": 0.25},
    "decoder": {"hidden_size": C, "num_heads": H, "num_kv_heads": 2},
    "slots": {"d_model": C, "n_heads": H, "max_seq_len": MAX_LENGTH},
    "cross": {"dim": C, "context_dim": C, "heads": H},
    "circuits": {"d_model": C, "n_heads": H, "d_head": 5},
    "positioned": {"d_model": C, "n_heads": H},
    "alibi": {"embed_dim": C, "num_heads": H, "max_positions": MAX_LENGTH, "dropout": 0.25},
}
CAUSAL = [base for base, options in OPTIONS.items() if options.get("causal")]
# The bases that are not called as module(x): with a mask of real tokens, or with more results than the output.
CALLS: dict[str, Callable[[nn.Module, Tensor, Tensor], Tensor]] = {
    "folded": lambda module, x, real: module(x.transpose(0, 1)).transpose(0, 1),
    "encoder": lambda module, x, real: module(x, real.long()),
    "windowed": lambda module, x, real: module(x, real)[0],
    "annotated": lambda module, x, real: module(x, 2 * x, 3 * x, real[:, None]),
    "padded": lambda module, x, real: module(x, ~real),
    "decoder": lambda module, x, real: module(x, real.long())[0],
    "slots": lambda module, x, real: module(x)[0],
    "positioned": lambda module, x, real: module(x, real.long()),
    "cross": lambda module, x, real: module(x, x + 1, real),
}
TAKES_PADDING = ("encoder", "windowed", "annotated", "padded", "decoder", "cross", "positioned")


def created(definition: type[nn.Module], base: str) -> nn.Module:
    torch.manual_seed(0)
    return definition(**ARGUMENTS[base]).double().eval()


def call(module: nn.Module, base: str, x: Tensor, real: Tensor | None = None) -> Tensor:
    real = torch.ones(x.shape[:2], dtype=torch.bool) if real is None else real
    run = CALLS.get(base, lambda module, x, real: module(x))
    return run(module, x, real)


def tokens(length: int = T) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(B, length, C, dtype=torch.float64)


def padding(side: str) -> Tensor:
    real = torch.arange(T) < torch.tensor([T, 4, 2])[:, None]
    return real if side == "right" else real.flip(1)


def in_steps(module: nn.Module, base: str, x: Tensor, real: Tensor | None = None) -> Tensor:
    """Return the output of three calls with a cache, on consecutive tokens."""
    state, rows = (), []
    for start, stop in ((0, 4), (4, 6), (6, T)):
        new = x[:, start:stop]
        if base == "cached":
            row = module(new, start)
        elif base == "slots":
            row, *state = module(new, *(state or (None, None)), start)
        else:
            known = None if real is None else real[:, :stop]
            row, state = module(new, known, *([state] if start else []))
        rows.append(row)
    return torch.cat(rows, dim=1)


CACHING = ("cached", "slots", "windowed", "decoder")


# --- the bases are correct ---------------------------------------------------------------------------


def heads(x: Tensor, count: int = H) -> Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def grouped_heads(projection: nn.Module, x: Tensor) -> Tensor:
    """Return two heads of keys or values, each repeated for two heads of queries."""
    return heads(projection(x), 2).repeat_interleave(2, 1)


def packed_heads(projection: nn.Module, x: Tensor, count: int = 3) -> list[Tensor]:
    """Return the heads of several tensors from one projection."""
    return [heads(part) for part in projection(x).chunk(count, -1)]


def rotated(x: Tensor, layout: str) -> Tensor:
    D = x.shape[-1]
    angles = torch.outer(torch.arange(x.shape[-2]), 10000.0 ** -(torch.arange(0, D, 2) / D))
    turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex128)
    if layout == "interleaved":
        pairs = torch.complex(x[..., 0::2].contiguous(), x[..., 1::2].contiguous())
        return torch.view_as_real(pairs * turns).flatten(-2)
    pairs = torch.complex(x[..., : D // 2].contiguous(), x[..., D // 2 :].contiguous()) * turns
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def projected(
    m: nn.Module, base: str, x: Tensor, real: Tensor
) -> tuple[Tensor, Tensor, Tensor, Callable]:
    """Return queries, keys and values (B, H, T, D) from the parameters of a base, and its output projection."""
    match base:
        case "single":
            q, k, v = (x @ weight for weight in (m.W_query, m.W_key, m.W_value))
            return q[:, None], k[:, None], v[:, None], lambda context: context
        case "split":
            return heads(m.W_query(x)), heads(m.W_key(x)), heads(m.W_value(x)), m.out_proj
        case "packed":
            return *packed_heads(m.c_attn, x), m.c_proj
        case "einsums":
            return heads(m.to_q(x)), *packed_heads(m.to_kv, x, count=2), m.to_out
        case "fused":
            k, v = (grouped_heads(projection, x) for projection in (m.k_proj, m.v_proj))
            return heads(m.q_proj(x)), k, v, m.o_proj
        case "decoder":
            k, v = (grouped_heads(projection, x) for projection in (m.k_proj, m.v_proj))
            return rotated(heads(m.q_proj(x)), "half"), rotated(k, "half"), v, m.o_proj
        case "listed":
            q, k, v = (
                torch.stack([getattr(head, name)(x) for head in m.heads], dim=1)
                for name in ("query", "key", "value")
            )
            return q, k, v, m.proj
        case "folded":
            return heads(m.q_proj(x)), heads(m.k_proj(x)), heads(m.v_proj(x)), m.out_proj
        case "cached":
            k, v = (grouped_heads(projection, x) for projection in (m.wk, m.wv))
            return rotated(heads(m.wq(x)), "interleaved"), rotated(k, "interleaved"), v, m.wo
        case "encoder":
            return heads(m.query(x)), heads(m.key(x)), heads(m.value(x)), m.dense
        case "windowed":
            q, k, v = packed_heads(m.qkv, x)
            return rotated(q, "half"), rotated(k, "half"), v, m.out
        case "annotated":
            q, k, v = (heads(m.linears[n]((n + 1) * x)) for n in range(3))
            return q, k, v, m.linears[3]
        case "padded":
            return *packed_heads(m.in_proj, x), m.out_proj
        case "slots":
            return *packed_heads(m.wqkv, x), m.wo
        case "cross":
            return heads(m.to_q(x)), heads(m.to_k(x + 1)), heads(m.to_v(x + 1)), m.to_out
        case "circuits":
            q, k, v = (
                torch.stack([x @ weight[h] + bias[h] for h in range(H)], dim=1)
                for weight, bias in ((m.W_Q, m.b_Q), (m.W_K, m.b_K), (m.W_V, m.b_V))
            )
            return q, k, v, lambda context: context @ m.W_O.flatten(0, 1) + m.b_O
        case "positioned":
            first = real.int().argmax(1, keepdim=True)
            placed = x + m.wpe((torch.arange(T) - first).clamp(min=0))
            return heads(m.wq(placed)), heads(m.wk(placed)), heads(m.wv(x)), m.wo
        case "alibi":
            return *packed_heads(m.qkv_proj, x), m.output
    raise AssertionError(base)


def expected(module: nn.Module, base: str, x: Tensor, real: Tensor) -> Tensor:
    """Return softmax(q kᵀ / √D) v over the keys that each query may see, in float64."""
    q, k, v, project = projected(module, base, x, real)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    distance = torch.arange(T)[:, None] - torch.arange(T)
    if base == "alibi":
        scores = scores - 0.25 ** torch.arange(1.0, H + 1)[:, None, None] * distance
    visible = real[:, None, None, :] if base in TAKES_PADDING else torch.tensor(True)
    if base in CAUSAL:
        visible = visible & (distance >= 0)
    if base == "windowed":
        visible = visible & (distance < 3)
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return project((weights @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("base", OPTIONS)
def test_bases_agree_with_the_formula(base: str, side: str) -> None:
    module, x, real = created(load(BASES / f"{base}.py"), base), tokens(), padding(side)
    with torch.no_grad():
        output, reference = call(module, base, x, real), expected(module, base, x, real)
    torch.testing.assert_close(output[real], reference[real], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("base", CACHING)
def test_bases_with_a_cache_agree_with_a_run_on_all_tokens(base: str) -> None:
    module, x = created(load(BASES / f"{base}.py"), base), tokens()
    with torch.no_grad():
        torch.testing.assert_close(
            in_steps(module, base, x), call(module, base, x), rtol=1e-5, atol=1e-6
        )


# --- the mutants differ from their bases -------------------------------------------------------------

Results = dict[str, Tensor]


def evaluated(module: nn.Module, base: str) -> Results:
    results = {
        "all": call(module, base, tokens()),
        "right": call(module, base, tokens(), padding("right")),
    }
    if base in CACHING:
        results["steps"] = in_steps(module, base, tokens())
    return results


def left_padded(module: nn.Module, base: str) -> Results:
    results = {"left": call(module, base, tokens(), padding("left"))}
    if base in ("windowed", "decoder"):
        results["left, steps"] = in_steps(module, base, tokens(), padding("left"))
    return results


def with_large_scores(module: nn.Module, base: str) -> Results:
    real = padding("right")
    return {str(factor): call(module, base, factor * tokens(), real) for factor in (1, 1000)}


def trained(module: nn.Module, base: str) -> Results:
    torch.manual_seed(2)
    return {"train": call(module.train(), base, tokens())}


def twice(module: nn.Module, base: str) -> Results:
    call(module, base, tokens(5))
    call(module, base, -tokens())
    return {"again": call(module, base, tokens())}


def differentiated(module: nn.Module, base: str) -> Results:
    x = tokens().requires_grad_()
    call(module, base, x).square().sum().backward()
    gradients = {
        name: parameter.grad
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    return {"x": x.grad, **gradients}


def strided(module: nn.Module, base: str) -> Results:
    x = tokens().transpose(1, 2).contiguous().transpose(1, 2)
    return {"strided": call(module, base, x)}


def at_other_lengths(module: nn.Module, base: str) -> Results:
    return {str(length): call(module, base, tokens(length)) for length in (1, 8, 9, 16, 33, 65)}


def in_bfloat16(module: nn.Module, base: str) -> Results:
    return {"bf16": call(module.bfloat16(), base, tokens(64).bfloat16())}


def with_buffers(module: nn.Module, base: str) -> Results:
    return dict(module.named_buffers())


def with_parameters(module: nn.Module, base: str) -> Results:
    return dict(module.named_parameters())


# The runs in which a bug shows; `evaluated` for all others.
RUNS = {
    "mask-fill-too-small": with_large_scores,
    "nan-on-masked-rows": left_padded,
    "left-padding-positions": left_padded,
    "mask-not-a-buffer": with_buffers,
    "parameter-not-registered": with_parameters,
    "dropout-misplaced": trained,
    "dropout-rescale": trained,
    "stale-state": twice,
    "gradient-wrong": differentiated,
    "stride-dependent": strided,
    "length-dependent": at_other_lengths,
    "rotary-precision": in_bfloat16,
}


def results_of(definition: type[nn.Module], base: str, bug: str) -> Results:
    """Return the results of the runs in which a bug shows."""
    with torch.set_grad_enabled(bug == "gradient-wrong"):
        return RUNS.get(bug, evaluated)(created(definition, base), base)


def differs(mutant: Mutant, definition: type[nn.Module], base_results: Results) -> bool:
    """Check whether a mutant gives other results than its base, or raises."""
    try:
        results = results_of(definition, mutant.base, mutant.bug)
    except (RuntimeError, NameError, ValueError):
        return True
    return results.keys() != base_results.keys() or not all(
        base_results[name].shape == result.shape
        and torch.allclose(base_results[name], result, equal_nan=True)
        for name, result in results.items()
    )


@pytest.mark.parametrize("base", OPTIONS)
def test_mutants_differ_from_their_base(base: str, tmp_path) -> None:
    definition = load(BASES / f"{base}.py")
    equal = [
        f"{mutant.bug}: {mutant.new}"
        for mutant in MUTANTS
        if mutant.base == base
        and not differs(mutant, built(mutant, tmp_path), results_of(definition, base, mutant.bug))
    ]
    assert equal == []


# --- the corpus as a whole ---------------------------------------------------------------------------


def test_the_corpus_is_large_and_uses_names_of_the_catalogue() -> None:
    assert len(bugs()) >= 35
    assert len(OPTIONS) >= 6
    assert len(MUTANTS) >= 210
    assert len(CORRECT) >= 25
    assert {name for mutant in MUTANTS for name in mutant.names} <= set(CATALOGUE)


def test_an_edit_that_does_not_fit_its_base_raises() -> None:
    with pytest.raises(ValueError, match="0 times"):
        _ = Mutant("split", "scale-missing", "no such line", "").source

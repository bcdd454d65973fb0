"""The corpus without the checker: every base is right; every mutant does otherwise than its base, as its bug says."""

from collections.abc import Callable

import pytest
import torch
from corpus.correct import CORRECT
from corpus.mutants import BASES, MUTANTS, OPTIONS, Mutant, bugs, built, load
from torch import Tensor, nn

from heedful.conformance.reporting.catalogue import CATALOGUE

B, T, C, H, LONGEST = 3, 7, 24, 4, 80

ARGUMENTS = {
    "single": {"d_in": C, "d_out": C, "context_length": LONGEST, "dropout": 0.25},
    "split": {"d_in": C, "d_out": C, "context_length": LONGEST, "dropout": 0.25, "num_heads": H},
    "packed": {"n_embd": C, "n_head": H, "block_size": LONGEST, "resid_pdrop": 0.0},
    "einsums": {"dim": C, "heads": H, "dim_head": 5, "dropout": 0.25},
    "fused": {"d_model": C, "num_heads": H, "num_kv_heads": 2, "dropout": 0.25},
    "listed": {"n_embd": C, "num_heads": H, "block_size": LONGEST},
    "folded": {"embed_dim": C, "num_heads": H, "dropout": 0.25},
    "cached": {"dim": C, "n_heads": H, "n_kv_heads": 2, "max_seq_len": LONGEST},
    "encoder": {"hidden_size": C, "num_attention_heads": H},
    "windowed": {"d_model": C, "num_heads": H, "window": 3, "max_len": LONGEST},
    "annotated": {"h": H, "d_model": C},
    "padded": {"embed_dim": C, "num_heads": H, "dropout": 0.25},
    "decoder": {"hidden_size": C, "num_heads": H, "num_kv_heads": 2},
    "slots": {"d_model": C, "n_heads": H, "max_seq_len": LONGEST},
    "cross": {"dim": C, "context_dim": C, "heads": H},
    "circuits": {"d_model": C, "n_heads": H, "d_head": 5},
    "positioned": {"d_model": C, "n_heads": H},
    "alibi": {"embed_dim": C, "num_heads": H, "max_positions": LONGEST, "dropout": 0.25},
}
CAUSAL = [base for base, options in OPTIONS.items() if options.get("causal")]
# How each base is told which tokens are real, and what it gives back beside its output.
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
TOLD = ("encoder", "windowed", "annotated", "padded", "decoder", "cross", "positioned")


def made(kind: type[nn.Module], base: str) -> nn.Module:
    torch.manual_seed(0)
    return kind(**ARGUMENTS[base]).double().eval()


def call(module: nn.Module, base: str, x: Tensor, real: Tensor | None = None) -> Tensor:
    real = torch.ones(x.shape[:2], dtype=torch.bool) if real is None else real
    simply = CALLS.get(base, lambda module, x, real: module(x))
    return simply(module, x, real)


def tokens(length: int = T) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(B, length, C, dtype=torch.float64)


def padding(side: str) -> Tensor:
    real = torch.arange(T) < torch.tensor([T, 4, 2])[:, None]
    return real if side == "right" else real.flip(1)


def in_steps(module: nn.Module, base: str, x: Tensor, real: Tensor | None = None) -> Tensor:
    """The rows of the first tokens in one call, then of others in two more, with a cache."""
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


# --- the bases are right -----------------------------------------------------------------------------


def heads(x: Tensor, count: int = H) -> Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def rotated(x: Tensor, layout: str) -> Tensor:
    D = x.shape[-1]
    angles = torch.outer(torch.arange(x.shape[-2]), 10000.0 ** -(torch.arange(0, D, 2) / D))
    turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex128)
    if layout == "interleaved":
        pairs = torch.complex(x[..., 0::2].contiguous(), x[..., 1::2].contiguous())
        return torch.view_as_real(pairs * turns).flatten(-2)
    pairs = torch.complex(x[..., : D // 2].contiguous(), x[..., D // 2 :].contiguous()) * turns
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def parts(
    m: nn.Module, base: str, x: Tensor, real: Tensor
) -> tuple[Tensor, Tensor, Tensor, Callable]:
    """Queries, keys, values (B, H, T, D) as the base's parameters make them, and its output projection."""
    if base == "single":
        q, k, v = (x @ weight for weight in (m.W_query, m.W_key, m.W_value))
        return q[:, None], k[:, None], v[:, None], lambda it: it
    if base == "split":
        return heads(m.W_query(x)), heads(m.W_key(x)), heads(m.W_value(x)), m.out_proj
    if base == "packed":
        return *(heads(it) for it in m.c_attn(x).chunk(3, -1)), m.c_proj
    if base == "einsums":
        return heads(m.to_q(x)), *(heads(it) for it in m.to_kv(x).chunk(2, -1)), m.to_out
    if base in ("fused", "decoder"):
        k, v = (heads(it(x), 2).repeat_interleave(2, 1) for it in (m.k_proj, m.v_proj))
        q = heads(m.q_proj(x))
        if base == "decoder":
            q, k = rotated(q, "half"), rotated(k, "half")
        return q, k, v, m.o_proj
    if base == "listed":
        q, k, v = (
            torch.stack([getattr(head, name)(x) for head in m.heads], dim=1)
            for name in ("query", "key", "value")
        )
        return q, k, v, m.proj
    if base == "folded":
        return heads(m.q_proj(x)), heads(m.k_proj(x)), heads(m.v_proj(x)), m.out_proj
    if base == "cached":
        k, v = (heads(it(x), 2).repeat_interleave(2, 1) for it in (m.wk, m.wv))
        return rotated(heads(m.wq(x)), "interleaved"), rotated(k, "interleaved"), v, m.wo
    if base == "encoder":
        return heads(m.query(x)), heads(m.key(x)), heads(m.value(x)), m.dense
    if base == "windowed":
        q, k, v = (heads(it) for it in m.qkv(x).chunk(3, -1))
        return rotated(q, "half"), rotated(k, "half"), v, m.out
    if base == "annotated":
        q, k, v = (heads(m.linears[n]((n + 1) * x)) for n in range(3))
        return q, k, v, m.linears[3]
    if base == "padded":
        return *(heads(it) for it in m.in_proj(x).chunk(3, -1)), m.out_proj
    if base == "slots":
        return *(heads(it) for it in m.wqkv(x).chunk(3, -1)), m.wo
    if base == "cross":
        return heads(m.to_q(x)), heads(m.to_k(x + 1)), heads(m.to_v(x + 1)), m.to_out
    if base == "circuits":
        q, k, v = (
            torch.stack([x @ weight[h] + bias[h] for h in range(H)], dim=1)
            for weight, bias in ((m.W_Q, m.b_Q), (m.W_K, m.b_K), (m.W_V, m.b_V))
        )
        return q, k, v, lambda it: it @ m.W_O.flatten(0, 1) + m.b_O
    if base == "positioned":
        first = real.int().argmax(1, keepdim=True)
        placed = x + m.wpe((torch.arange(T) - first).clamp(min=0))
        return heads(m.wq(placed)), heads(m.wk(placed)), heads(m.wv(x)), m.wo
    assert base == "alibi"
    return *(heads(it) for it in m.qkv_proj(x).chunk(3, -1)), m.output


def expected(module: nn.Module, base: str, x: Tensor, real: Tensor) -> Tensor:
    """What attention is, in float64: softmax(q kᵀ / √D) v over what each query may see."""
    q, k, v, project = parts(module, base, x, real)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    distance = torch.arange(T)[:, None] - torch.arange(T)
    if base == "alibi":
        scores = scores - 0.25 ** torch.arange(1.0, H + 1)[:, None, None] * distance
    visible = real[:, None, None, :] if base in TOLD else torch.tensor(True)
    if base in CAUSAL:
        visible = visible & (distance >= 0)
    if base == "windowed":
        visible = visible & (distance < 3)
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return project((weights @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("base", OPTIONS)
def test_bases_attend_as_the_formula_says(base: str, side: str) -> None:
    module, x, real = made(load(BASES / f"{base}.py"), base), tokens(), padding(side)
    with torch.no_grad():
        found, right = call(module, base, x, real), expected(module, base, x, real)
    torch.testing.assert_close(found[real], right[real], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("base", CACHING)
def test_bases_with_a_cache_take_steps_as_they_take_all(base: str) -> None:
    module, x = made(load(BASES / f"{base}.py"), base), tokens()
    with torch.no_grad():
        torch.testing.assert_close(
            in_steps(module, base, x), call(module, base, x), rtol=1e-5, atol=1e-6
        )


# --- the mutants are not -----------------------------------------------------------------------------

Seen = dict[str, Tensor]


def evaluated(module: nn.Module, base: str) -> Seen:
    seen = {
        "all": call(module, base, tokens()),
        "right": call(module, base, tokens(), padding("right")),
    }
    if base in CACHING:
        seen["steps"] = in_steps(module, base, tokens())
    return seen


def left_padded(module: nn.Module, base: str) -> Seen:
    seen = {"left": call(module, base, tokens(), padding("left"))}
    if base in ("windowed", "decoder"):
        seen["left, steps"] = in_steps(module, base, tokens(), padding("left"))
    return seen


def with_large_scores(module: nn.Module, base: str) -> Seen:
    real = padding("right")
    return {str(factor): call(module, base, factor * tokens(), real) for factor in (1, 1000)}


def trained(module: nn.Module, base: str) -> Seen:
    torch.manual_seed(2)
    return {"train": call(module.train(), base, tokens())}


def twice(module: nn.Module, base: str) -> Seen:
    call(module, base, tokens(5))
    call(module, base, -tokens())
    return {"again": call(module, base, tokens())}


def differentiated(module: nn.Module, base: str) -> Seen:
    x = tokens().requires_grad_()
    call(module, base, x).square().sum().backward()
    gradients = {name: it.grad for name, it in module.named_parameters() if it.grad is not None}
    return {"x": x.grad, **gradients}


def strided(module: nn.Module, base: str) -> Seen:
    x = tokens().transpose(1, 2).contiguous().transpose(1, 2)
    return {"strided": call(module, base, x)}


def at_other_lengths(module: nn.Module, base: str) -> Seen:
    return {str(length): call(module, base, tokens(length)) for length in (1, 8, 9, 16, 33, 65)}


def in_bfloat16(module: nn.Module, base: str) -> Seen:
    return {"bf16": call(module.bfloat16(), base, tokens(64).bfloat16())}


def with_buffers(module: nn.Module, base: str) -> Seen:
    return dict(module.named_buffers())


WHERE_SEEN = {
    "mask-fill-too-small": with_large_scores,
    "nan-on-masked-rows": left_padded,
    "left-padding-positions": left_padded,
    "mask-not-a-buffer": with_buffers,
    "dropout-misplaced": trained,
    "dropout-rescale": trained,
    "stale-state": twice,
    "gradient-wrong": differentiated,
    "stride-dependent": strided,
    "length-dependent": at_other_lengths,
    "rotary-precision": in_bfloat16,
}


def look(kind: type[nn.Module], base: str, bug: str) -> Seen:
    with torch.set_grad_enabled(bug == "gradient-wrong"):
        return WHERE_SEEN.get(bug, evaluated)(made(kind, base), base)


def differs(mutant: Mutant, kind: type[nn.Module], seen: Seen) -> bool:
    """Whether the mutant, looked at as its base was, shows something else, or raises."""
    try:
        found = look(kind, mutant.base, mutant.bug)
    except (RuntimeError, NameError, ValueError):
        return True
    return found.keys() != seen.keys() or not all(
        seen[name].shape == value.shape and torch.allclose(seen[name], value, equal_nan=True)
        for name, value in found.items()
    )


@pytest.mark.parametrize("base", OPTIONS)
def test_mutants_do_otherwise_than_their_base(base: str, tmp_path) -> None:
    kind = load(BASES / f"{base}.py")
    alike = [
        f"{mutant.bug}: {mutant.new}"
        for mutant in MUTANTS
        if mutant.base == base
        and not differs(mutant, built(mutant, tmp_path), look(kind, base, mutant.bug))
    ]
    assert alike == []


# --- the corpus as a whole -----------------------------------------------------------------------------


def test_the_corpus_is_large_and_its_names_are_known() -> None:
    assert len(bugs()) >= 35
    assert len(OPTIONS) >= 6
    assert len(MUTANTS) >= 210
    assert len(CORRECT) >= 25
    assert {name for it in MUTANTS for name in it.names} <= set(CATALOGUE)


def test_an_edit_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="0 times"):
        _ = Mutant("split", "scale-missing", "no such line", "").source

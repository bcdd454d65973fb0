"""Who is compared, and how each is called: one attention each, prepared before it is timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.bench import foreign
from heedful.bench.contender import Contender
from heedful.bench.settings import SEED, Inputs, Setting
from heedful.errors import ArgumentError
from heedful.functional import attention

EXTRA = "bench"


@dataclass(frozen=True)
class Peer:
    """One who computes attention.

    Attributes:
        name: what `--peer` calls it.
        prepare: from tensors to what is timed.
        refusal: why a setting is not for it; None: it is.
        package: the package that it is; "": heedful or torch.
        apart: whether it runs in a process of its own: where two pools of threads would fight, and where what
            fails is not ours.
    """

    name: str
    prepare: Callable[[Inputs], Contender]
    refusal: Callable[[Setting], str | None] = lambda setting: None
    package: str = ""
    apart: bool = False

    @property
    def missing(self) -> str | None:
        """Why it cannot be compared here, and the command that changes that; None: it can."""
        if not self.package or find_spec(self.package) is not None:
            return None
        return f"{self.package} is not installed: pip install 'heedful[{EXTRA}]'"


def _heedful(inputs: Inputs) -> Contender:
    setting = inputs.setting

    def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = attention(query, key, value, inputs.mask, dropout_p=setting.dropout_p)
        assert isinstance(output, Tensor)  # not asked for the lse
        return output

    return _with_gradients(ours, inputs)


def _sdpa(inputs: Inputs) -> Contender:
    setting, mask = inputs.setting, inputs.sdpa_arguments

    def pytorch(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=setting.dropout_p,
            enable_gqa=setting.key_heads != setting.Hq,
            **mask,  # pyright: ignore[reportArgumentType]  # is_causal or attn_mask
        )

    return _with_gradients(pytorch, inputs)


def _textbook(inputs: Inputs) -> Contender:
    """Scores, weights and output as separate tensors."""
    setting = inputs.setting
    shown = None
    if inputs.mask is not None:
        shown = inputs.mask.dense(setting.Tq, setting.keys, batch=setting.B)

    def eager(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT / setting.D**0.5
        if shown is not None:
            scores = scores.masked_fill(~shown, -torch.inf)
        return scores.softmax(dim=-1) @ value

    return _with_gradients(eager, inputs)


def _flex(inputs: Inputs) -> Contender:
    """Compiled, with its block mask made beforehand: what it then costs to call."""
    from torch.nn.attention.flex_attention import flex_attention

    setting, compiled = inputs.setting, torch.compile(flex_attention, dynamic=False)
    block_mask = None
    if inputs.mask is not None:
        block_mask = inputs.mask.block_mask(setting.Tq, setting.keys, batch=setting.B)

    def flex(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        gqa = setting.key_heads != setting.Hq
        return compiled(query, key, value, block_mask=block_mask, enable_gqa=gqa)

    return _with_gradients(flex, inputs)


def _x_transformers(inputs: Inputs) -> Contender:
    from x_transformers.attend import Attend  # pyright: ignore[reportMissingImports] - an extra

    attend = Attend(causal=inputs.setting.mask == "causal", flash=True).eval()
    return _with_gradients(lambda query, key, value: attend(query, key, value)[0], inputs)


def _with_gradients(function: Callable[..., Tensor], inputs: Inputs) -> Contender:
    """The output, and the gradients where the setting wants them."""
    tensors = inputs.query, inputs.key, inputs.value

    def forward() -> tuple[Tensor, ...]:
        return (function(*tensors),)

    def forward_and_backward() -> tuple[Tensor, ...]:
        output = function(*tensors)
        return output, *torch.autograd.grad(output, tensors, inputs.grad_output)

    return Contender(forward_and_backward if inputs.setting.backward else forward)


# --- whole modules -----------------------------------------------------------------------------------


def torch_module(inputs: Inputs) -> tuple[torch.nn.MultiheadAttention, Tensor]:
    """PyTorch's module with weights from the seed, in evaluation, and its input (B, T, heads · head size)."""
    setting = inputs.setting
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        module = torch.nn.MultiheadAttention(setting.Hq * setting.D, setting.Hq, batch_first=True)
    return module.eval().to(inputs.query.dtype), inputs.query.transpose(1, 2).flatten(2)


def module_output(
    module: torch.nn.MultiheadAttention,
    x: Tensor,
    attend: Callable[[Tensor, Tensor, Tensor], Any],
) -> Tensor:
    """What the module computes, with another attention inside."""
    B, T, _ = x.shape
    projected = F.linear(x, module.in_proj_weight, module.in_proj_bias)
    query, key, value = projected.view(B, T, 3, module.num_heads, -1).permute(2, 0, 3, 1, 4)
    return module.out_proj(attend(query, key, value).transpose(1, 2).reshape(B, T, -1))


def _heedful_module(inputs: Inputs) -> Contender:
    module, x = torch_module(inputs)

    def forward() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return (module_output(module, x, attention),)

    return Contender(forward)


def _torch_module(inputs: Inputs) -> Contender:
    module, x = torch_module(inputs)

    def forward() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return (module(x, x, x, need_weights=False)[0],)

    return Contender(forward)


# --- the list ----------------------------------------------------------------------------------------


def _plain_forward(setting: Setting) -> str | None:
    plain = setting.mask in ("full", "causal") and setting.key_heads == setting.Hq
    plain = plain and setting.Tq == setting.keys and not setting.backward and not setting.dropout_p
    return None if plain else "it is compared on full and causal forward passes"


def _no_gradients(setting: Setting) -> str | None:
    return "it has no backward pass and no dropout on CPUs" if setting.backward else None


def _only_fp32(setting: Setting) -> str | None:
    return _plain_forward(setting) or (
        None if setting.dtype == "fp32" else "its CPU kernel takes fp32"
    )


OURS = {
    peer.name: peer for peer in (Peer("heedful", _heedful), Peer("heedful module", _heedful_module))
}
PEERS = {
    peer.name: peer
    for peer in (
        Peer("sdpa", _sdpa),
        Peer("nn.MultiheadAttention", _torch_module),
        Peer("flex", _flex, _no_gradients, apart=True),
        Peer("textbook", _textbook),
        Peer("x-transformers", _x_transformers, _plain_forward, "x_transformers", apart=True),
        Peer("onnxruntime", foreign.onnxruntime, _only_fp32, "onnxruntime", apart=True),
        Peer("openvino", foreign.openvino, _plain_forward, "openvino", apart=True),
        Peer("jax", foreign.jax, _plain_forward, "jax", apart=True),
    )
}


def choose(names: list[str]) -> tuple[str, ...]:
    """The peers named, all if none is; baselines are timed in any case.

    Raises:
        ArgumentError: there is no such peer.
    """
    for name in names:
        if name not in PEERS:
            raise ArgumentError(
                "--peer",
                expected=f"one of {', '.join(PEERS)}",
                received=repr(name),
                remedy="Without --peer, all that are installed are compared.",
            )
    return tuple(names or PEERS)

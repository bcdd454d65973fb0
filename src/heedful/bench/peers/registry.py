"""The lists of all peers."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec

from heedful.bench.peers import frameworks, modules, pytorch
from heedful.bench.peers.contender import Peer
from heedful.bench.workload import AttentionWorkload
from heedful.errors import ArgumentError


def _plain_forward_only(workload: AttentionWorkload) -> str | None:
    plain = (
        workload.mask in ("full", "causal")
        and workload.key_heads == workload.Hq
        and workload.Tq == workload.keys
        and not workload.backward
        and not workload.dropout_p
    )
    return None if plain else "it is compared on full and causal forward passes only"


def _forward_only(workload: AttentionWorkload) -> str | None:
    return "it has no backward pass and no dropout on CPUs" if workload.backward else None


def _fp32_only(workload: AttentionWorkload) -> str | None:
    dtype = None if workload.dtype == "fp32" else "its CPU kernel supports fp32 only"
    return _plain_forward_only(workload) or dtype


def _zentorch(workload: AttentionWorkload) -> str | None:
    reason = _plain_forward_only(workload)
    if reason is not None or find_spec("zentorch") is None:
        return reason
    made_for, used = (".".join(version(name).split(".")[:2]) for name in ("zentorch", "torch"))
    if made_for == used:
        return None
    return f"the installed one is made for torch {made_for}: pip install 'zentorch=={used}.*'"


OURS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("heedful", pytorch.heedful),
        Peer("heedful module", modules.heedful_module),
        Peer("summary", pytorch.summary),
        Peer("received mass", pytorch.received),
    )
}
PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("sdpa", pytorch.sdpa),
        Peer("attention", pytorch.heedful),
        Peer("nn.MultiheadAttention", modules.torch_module),
        Peer("flex", pytorch.flex, _forward_only, separate_process=True),
        Peer("textbook", pytorch.textbook),
        Peer(
            "x-transformers",
            pytorch.x_transformers,
            _plain_forward_only,
            "x_transformers",
            separate_process=True,
        ),
        Peer(
            "onnxruntime", frameworks.onnxruntime, _fp32_only, "onnxruntime", separate_process=True
        ),
        Peer(
            "openvino", frameworks.openvino, _plain_forward_only, "openvino", separate_process=True
        ),
        Peer("jax", frameworks.jax, _plain_forward_only, "jax", separate_process=True),
        Peer("zentorch", pytorch.zentorch, _zentorch, "zentorch", separate_process=True),
    )
}


def choose_peers(names: list[str]) -> tuple[str, ...]:
    """Return the given names of peers, or all names if none is given.

    Raises:
        ArgumentError: There is no peer of a given name.
    """
    for name in names:
        if name not in PEERS:
            raise ArgumentError(
                "--peer",
                expected=f"one of {', '.join(PEERS)}",
                received=repr(name),
                remedy="Without --peer, all installed peers are compared.",
            )
    return tuple(names or PEERS)

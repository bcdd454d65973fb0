"""The contenders of the benchmark: our attention, PyTorch's, and that of other libraries.

contender.py   what a peer is, and what a contender is that it prepares
pytorch.py     attention that runs on torch tensors, ours included
modules.py     whole attention modules
frameworks.py  other frameworks: onnxruntime, OpenVINO, JAX
registry.py    the lists of all peers
"""

from heedful.bench.peers.contender import Contender, Peer
from heedful.bench.peers.registry import OURS, PEERS, choose_peers

__all__ = ["OURS", "PEERS", "Contender", "Peer", "choose_peers"]

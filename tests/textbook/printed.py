"""The figures printed in the source documents, loaded from figures.json."""

import json
from pathlib import Path

import torch
from torch import Tensor

DOCUMENT = json.loads((Path(__file__).parents[1] / "data" / "figures.json").read_text())
FIGURES = {figure["id"]: figure for figure in DOCUMENT["figures"]}


def tensor(values) -> Tensor:
    """Convert nested lists of numbers, which may contain '-inf', to a float32 tensor."""
    return torch.tensor(json.loads(json.dumps(values).replace('"-inf"', "-Infinity")))


INPUTS = {name: tensor(entry["values"]) for name, entry in DOCUMENT["inputs"].items()}

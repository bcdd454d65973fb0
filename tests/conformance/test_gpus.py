"""The check runs on the CPU, also where the target would use a GPU."""

import os
import subprocess
import sys

import pytest
import torch

from heedful import check
from heedful.errors import ArgumentError

SOURCE = """import os
from torch import nn


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        return (query @ key.mT / key.shape[-1] ** 0.5).softmax(dim=-1) @ value
"""


def test_the_command_hides_gpus_from_the_target(tmp_path):
    file = tmp_path / "attention.py"
    file.write_text(SOURCE)
    command = [sys.executable, "-m", "heedful", "check", f"{file}:Attention"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


class OnAnotherDevice(torch.nn.Module):
    """Fails as code does that makes its mask on a GPU while its argument is on the CPU."""

    def __init__(self, width):
        super().__init__()
        self.qkv = torch.nn.Linear(width, 3 * width)

    def forward(self, x):
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        return masked_scores(query @ key.mT).softmax(dim=-1) @ value


def masked_scores(scores):
    raise RuntimeError(
        "expected self and mask to be on the same device, but got mask on cuda:0 and self on cpu"
    )


def test_tensors_on_another_device_get_a_remedy_of_their_own():
    with pytest.raises(ArgumentError, match=r"device=x\.device.*heedful check.*hides GPUs"):
        check(OnAnotherDevice)

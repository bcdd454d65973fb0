"""Checkpoints: what is restored, what is refused, and that nothing is overwritten by accident."""

import json
import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip(
    "safetensors", reason="safetensors is missing; install it with: pip install -e '.[train]'"
)

from heedful.errors import ArgumentError
from heedful.gpt import GPT, GPTConfig
from heedful.gpt.checkpoint import load, save

SMALL = {"vocab_size": 61, "context_length": 16, "d_model": 32, "num_layers": 2, "num_heads": 4}


def small(family: str = "gpt2", **changes) -> GPT:
    return GPT(getattr(GPTConfig, family)(**SMALL | {"num_kv_heads": 4} | changes))


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_model_is_loaded_unchanged(tmp_path, family, tied, dtype):
    model = small(family, tied=tied, window=5).to(dtype).eval()
    save(model, tmp_path)
    random_state = torch.get_rng_state()
    again = load(tmp_path)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert again.config == model.config
    assert not again.training
    assert (again.head.weight is again.token_embedding.weight) == tied
    assert all(parameter.requires_grad for parameter in again.parameters())
    tokens = torch.randint(61, (2, 16))
    assert torch.equal(again(tokens), model(tokens))


def test_newer_weights_replace_older_ones(tmp_path):
    save(small(), tmp_path)
    newer = small()
    save(newer, tmp_path)
    assert torch.equal(load(tmp_path).head.weight, newer.head.weight)
    assert sorted(contents(tmp_path)) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("existing", ["another", "transformers", "weights alone"])
def test_other_models_are_not_overwritten(tmp_path, existing):
    save(small(num_layers=1), tmp_path)
    if existing == "transformers":
        (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    if existing == "weights alone":
        (tmp_path / "config.json").unlink()
    before = contents(tmp_path)
    with pytest.raises(ArgumentError, match="nothing was overwritten"):
        save(small(), tmp_path)
    assert contents(tmp_path) == before


def test_a_full_disk_leaves_the_old_checkpoint_intact(tmp_path, monkeypatch):
    model = small()
    save(model, tmp_path)
    before = contents(tmp_path)

    def no_space(self, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", no_space)
    with pytest.raises(ArgumentError, match="No space left on device"):
        save(small(), tmp_path)
    assert contents(tmp_path) == before


def cut_short(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def no_safetensors(folder):
    (folder / "model.safetensors").write_bytes(b"PK\x03\x04 a pickle")


def other_sizes(folder):
    changed(folder, d_mlp=16)


def other_layers(folder):
    changed(folder, num_layers=3)


def unknown_field(folder):
    changed(folder, depth=3)


def wrong_type(folder):
    changed(folder, d_model="32")


def other_model_type(folder):
    changed(folder, model_type="bert")


def no_json(folder):
    (folder / "config.json").write_text("vocab_size: 61")


def no_object(folder):
    (folder / "config.json").write_text("[61]")


def no_weights(folder):
    (folder / "model.safetensors").unlink()


def no_config(folder):
    (folder / "config.json").unlink()


def changed(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_short, "damaged"),
        (no_safetensors, "damaged"),
        (other_sizes, r"2 tensors that differ|tensors that differ, the first .*mlp"),
        (other_layers, r"tensors that differ, the first .*blocks\.2"),
        (unknown_field, "depth"),
        (wrong_type, "d_model"),
        (other_model_type, "heedful did not write"),
        (no_json, "not JSON"),
        (no_object, "a JSON list"),
        (no_weights, "No such file"),
        (no_config, "No such file"),
    ],
)
def test_damaged_checkpoints_are_refused(tmp_path, damage, message):
    save(small(), tmp_path)
    damage(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ArgumentError, match=message):
        load(tmp_path)
    assert contents(tmp_path) == before


def test_a_file_is_not_read_whole_to_see_that_it_differs(tmp_path):
    with open(tmp_path / "config.json", "wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(ArgumentError, match=r"another or a damaged model's config\.json"):
        save(small(), tmp_path)


def test_weights_that_do_not_fit_into_the_limit_of_memory_are_refused(tmp_path):
    save(small(), tmp_path)
    os.truncate(tmp_path / "model.safetensors", 10 << 30)  # sparse
    script = (
        "import resource; from pathlib import Path; import safetensors.torch; from heedful.gpt import checkpoint\n"
        "pages = int(Path('/proc/self/statm').read_text().split()[0])\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4096 * pages + (1 << 30),) * 2)\n"
        f"checkpoint.load({str(tmp_path)!r})"
    )
    child = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert b"heedful.errors.ArgumentError: checkpoint: expected" in child.stderr

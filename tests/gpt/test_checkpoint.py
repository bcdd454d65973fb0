"""Our own checkpoints: what comes back, what is refused, and that nothing is overwritten by accident."""

import json

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
def test_what_was_saved_comes_back(tmp_path, family, tied, dtype):
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


def test_newer_weights_take_the_place_of_older_ones(tmp_path):
    save(small(), tmp_path)
    newer = small()
    save(newer, tmp_path)
    assert torch.equal(load(tmp_path).head.weight, newer.head.weight)
    assert sorted(contents(tmp_path)) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("there", ["another", "foreign", "weights alone"])
def test_nothing_else_is_overwritten(tmp_path, there):
    save(small(num_layers=1), tmp_path)
    if there == "foreign":
        (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    if there == "weights alone":
        (tmp_path / "config.json").unlink()
    before = contents(tmp_path)
    with pytest.raises(ArgumentError, match="nothing was overwritten"):
        save(small(), tmp_path)
    assert contents(tmp_path) == before


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
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


def foreign(folder):
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
    ("damage", "said"),
    [
        (cut_short, "damaged"),
        (no_safetensors, "damaged"),
        (other_sizes, r"2 tensors that differ|tensors that differ, the first .*mlp"),
        (other_layers, r"tensors that differ, the first .*blocks\.2"),
        (unknown_field, "depth"),
        (wrong_type, "d_model"),
        (foreign, "heedful did not write"),
        (no_json, "not JSON"),
        (no_object, "a JSON list"),
        (no_weights, "No such file"),
        (no_config, "No such file"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, damage, said):
    save(small(), tmp_path)
    damage(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ArgumentError, match=said):
        load(tmp_path)
    assert contents(tmp_path) == before

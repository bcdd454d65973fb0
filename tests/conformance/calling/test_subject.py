"""Subjects of the corpus and of transformers can be called, and the original target stays untouched."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import torch

from conformance.calling.attentions import BATCH_FIRST, IDS, Projected, Slots
from heedful.conformance.calling.loading import loaded
from heedful.conformance.calling.subject import find_subject
from heedful.textbook import multi_head

BASES = Path(__file__).parents[1] / "corpus" / "bases"


@pytest.mark.parametrize("file", sorted(it.stem for it in BASES.glob("*.py")))
def test_the_attentions_of_the_corpus_can_be_called(file):
    chosen = ":MultiHead" if file == "listed" else ""  # one of the two modules in the file
    with loaded(f"{BASES / file}.py{chosen}") as target:
        subject = find_subject(target)
        inputs = subject.draw(2, 7)
        observed = subject.record(inputs)
    named = {(it.kind, it.name) for step in observed.trace for it in step.inputs}
    assert {it for it in named if it[0] not in ("step", "constant")} <= observed.values.keys()
    assert observed.output.isfinite().all()


def from_transformers(name, implementation):
    transformers = pytest.importorskip(
        "transformers",
        reason="transformers is missing; install it with: pip install -e '.[transformers]'",
    )
    from transformers.models.bert import modeling_bert as bert
    from transformers.models.gpt2 import modeling_gpt2 as gpt2
    from transformers.models.llama import modeling_llama as llama
    from transformers.models.mistral import modeling_mistral as mistral

    sizes = {"vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 20, "max_position_embeddings": 32}
    chosen = {"attn_implementation": implementation}
    grouped = {**sizes, **chosen, "num_key_value_heads": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    small = {"vocab_size": 37, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 32, **ends}
    configs = {
        "llama": transformers.LlamaConfig(**grouped),
        "mistral": transformers.MistralConfig(**grouped, sliding_window=3),
        "gpt2": transformers.GPT2Config(**small, **chosen),
        "bert": transformers.BertConfig(**sizes, **chosen),
    }
    family, _, part = name.partition(" ")
    attentions = {
        "llama": lambda it: llama.LlamaAttention(it, 0),
        "mistral": lambda it: mistral.MistralAttention(it, 0),
        "gpt2": lambda it: gpt2.GPT2Attention(it, layer_idx=0),
        "bert": bert.BertAttention,
    }
    models = {
        "llama": transformers.LlamaForCausalLM,
        "mistral": transformers.MistralForCausalLM,
        "gpt2": transformers.GPT2LMHeadModel,
        "bert": transformers.BertModel,
    }
    return {"attention": attentions, "model": models}[part][family](configs[family])


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("part", ["attention", "model"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2", "bert"])
def test_transformers(family, part, implementation):
    subject = find_subject(from_transformers(f"{family} {part}", implementation))
    assert subject.layout == (IDS if part == "model" else BATCH_FIRST)
    inputs = subject.draw(2, 6)
    whole = subject.run(inputs)
    later = subject.run(inputs.changed(0, 5))
    assert torch.allclose(whole[0, :5], later[0, :5], atol=1e-5) == (family != "bert")
    if (family, part) == ("mistral", "attention"):  # a window of three tokens
        earlier = subject.run(inputs.changed(0, 1))
        same = [torch.allclose(whole[0, t], earlier[0, t], atol=1e-6) for t in range(6)]
        assert same == [True, False, False, False, True, True]
    for keep in ([True] * 4 + [False] * 2, [False] * 2 + [True] * 4):
        real = torch.tensor(keep)
        padded = subject.run(inputs, keep=torch.stack([torch.ones_like(real), real]))
        start = keep.index(True)
        alone = subject.run(inputs.entry(1).tokens(start, start + 4))
        if part == "model" or start == 0 or family in ("gpt2", "bert"):
            torch.testing.assert_close(padded[1:, start : start + 4], alone, atol=1e-5, rtol=1e-4)
    if family == "bert":
        assert subject.cache_use is None
        return
    for sizes in ([4, 2], [1] * 6):
        pieces = [it.output for it in subject.run_in_chunks(inputs, sizes)]
        torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-5, rtol=1e-4)


def test_a_subject_cannot_be_changed():
    subject = find_subject(Projected)
    with pytest.raises(FrozenInstanceError):
        subject.max_length = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_the_original_module_is_never_run_or_changed():
    class Counting(Slots):
        calls = 0

        def forward(self, x, start_pos=0):
            self.calls += 1
            return super().forward(x, start_pos)

    module = Counting(24, 3, 11).train()
    before = {name: it.clone() for name, it in module.state_dict().items()}
    subject = find_subject(module)
    subject.run_in_chunks(subject.draw(2, 6), [4, 2])
    subject.run(subject.draw(2, 6)).sum().backward()
    assert module.calls == 0
    assert module.training
    assert all(it.grad is None for it in module.parameters())
    for name, it in module.state_dict().items():
        assert it.dtype == torch.float32
        assert torch.equal(it, before[name])


class Counting(Projected):
    """Counts its calls in a buffer, in place, and scales its tokens by the count."""

    def __init__(self, d_model):
        super().__init__(d_model)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x * self.calls)


def test_every_run_starts_from_the_same_state_unless_it_is_kept():
    subject = find_subject(Counting)
    inputs = subject.draw(2, 5)
    torch.testing.assert_close(subject.run(inputs), subject.run(inputs))
    kept = subject.fresh(keep_state=True)
    assert not torch.equal(kept.run(inputs), kept.run(inputs))


def test_fresh_copies_can_be_cast_and_put_in_training_mode():
    subject = find_subject(multi_head.MultiHeadAttention)
    inputs = subject.draw(2, 7)
    torch.testing.assert_close(subject.fresh().run(inputs), subject.run(inputs))
    training = subject.fresh(train=True)
    assert not torch.equal(training.run(inputs), subject.run(inputs))
    low = subject.fresh(dtype=torch.bfloat16)
    assert low.run(low.draw(2, 7)).dtype == torch.bfloat16

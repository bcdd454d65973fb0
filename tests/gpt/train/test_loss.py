"""The loss: separate documents, large vocabularies, bfloat16 and evaluation."""

import pytest
import torch

from heedful.gpt import GPT, GPTConfig
from heedful.gpt.data.batches import Batch
from heedful.gpt.data.books import Book
from heedful.gpt.data.corpus import Corpus
from heedful.gpt.tokenizer import ByteTokenizer
from heedful.gpt.train import loss as loss_module
from heedful.gpt.train.loss import mean_loss, summed_loss

TINY = {
    "vocab_size": 257,
    "context_length": 16,
    "d_model": 16,
    "num_layers": 2,
    "num_heads": 2,
    "num_kv_heads": 1,
}


def model(**changes) -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig.llama(**TINY | changes))


def corpus(folder, text: str = "so it goes, " * 100) -> Corpus:
    return Corpus.build([Book("book", text)], ByteTokenizer(), folder)


def batch(ids: torch.Tensor, documents: torch.Tensor | None = None) -> Batch:
    documents = torch.zeros_like(ids[:, 1:]) if documents is None else documents
    return Batch(ids[:, :-1].clone(), ids[:, 1:].clone(), documents)


def test_documents_do_not_see_each_other():
    first, second = torch.randint(257, (1, 7)), torch.randint(257, (1, 10))
    ids = torch.cat([first, second], 1)
    documents = torch.tensor([[0] * 7 + [1] * 9])
    packed = batch(ids, documents)
    packed.targets[0, 6] = -100  # the boundary, which neither document alone has
    together = summed_loss(model(), packed, "float32")
    apart = [summed_loss(model(), batch(ids), "float32") for ids in (first, second)]
    torch.testing.assert_close(together, sum(apart))


def test_the_loss_of_a_large_vocabulary_is_computed_in_parts(monkeypatch):
    windows = batch(torch.randint(257, (3, 17)))
    losses, gradients = [], []
    for max_logits in (2**24, 257 * 5):
        monkeypatch.setattr(loss_module, "MAX_LOGITS", max_logits)
        gpt = model()
        loss = summed_loss(gpt, windows, "float32")
        loss.backward()
        losses.append(loss)
        gradients.append(gpt.head.weight.grad)
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*gradients)


def test_bfloat16_is_close_to_float32_and_keeps_float32_weights():
    windows, gpt = batch(torch.randint(257, (3, 17))), model()
    single, half = (summed_loss(gpt, windows, p) for p in ("float32", "bfloat16"))
    assert single.dtype == half.dtype == torch.float32
    assert single != half
    torch.testing.assert_close(single, half, rtol=1e-2, atol=0)
    assert {p.dtype for p in gpt.parameters()} == {torch.float32}


def test_evaluation_counts_every_token_once(tmp_path):
    split = corpus(tmp_path, "".join(chr(97 + n % 26) for n in range(1000))).validation
    gpt = model(context_length=len(split)).eval()
    ids = torch.from_numpy(split.tokens.astype("int64"))[None]
    with torch.no_grad():
        at_once = summed_loss(gpt, batch(ids), "float32") / (len(split) - 1)
    assert mean_loss(gpt, split, 2, "float32") == pytest.approx(at_once.item(), abs=1e-5)

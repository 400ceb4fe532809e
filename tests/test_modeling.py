"""What the model classes accept and return."""

import pytest
import torch
from torch import nn

from configs import END, build, tiny, words
from transduct import TransductForCausalLM, TransductForConditionalGeneration, TransductForMaskedLM

SOURCE, TARGET = words(2, 5), words(2, 4, seed=1)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("model_class", "inputs"),
    [
        (TransductForConditionalGeneration, {"decoder_input_ids": TARGET}),
        (TransductForMaskedLM, {}),
        (TransductForCausalLM, {}),
    ],
)
def test_logits_are_left_out_where_nobody_wants_them(model_class, inputs, training):
    """With labels or without; by default they are missing only beside a loss while training."""
    model = build(model_class, tiny()).train(training)
    assert model(SOURCE, **inputs, return_logits=False).logits is None
    assert model(SOURCE, **inputs).logits is not None
    labels = TARGET if "decoder_input_ids" in inputs else SOURCE
    assert (model(SOURCE, labels=labels).logits is None) == training
    assert model(SOURCE, labels=labels, return_logits=True).logits is not None
    assert model(SOURCE, labels=labels, return_logits=False).logits is None


def test_the_loss_is_the_same_with_and_without_logits():
    model = build(TransductForConditionalGeneration, tiny(label_smoothing=0.1, z_loss=1e-3))
    labels = TARGET.clone()
    labels[0, 2:] = -100
    labels[1, 3] = END
    losses = [model(SOURCE, labels=labels, return_logits=wanted, num_items_in_batch=7).loss for wanted in (True, False)]
    assert torch.allclose(*losses, rtol=1e-12)


class Adapter(nn.Module):
    """Adds a trained low-rank part to a module that is frozen, and shows its weight, as PEFT's layers do."""

    def __init__(self, base: nn.Module, correct: nn.Module):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.correct = correct.double()

    @property
    def weight(self) -> torch.Tensor:
        return self.base.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.base(inputs) + self.correct(inputs)


def test_adapters_on_the_head_and_the_embeddings_are_trained():
    """The loss must go through the module, not past it to its weight."""
    model = build(TransductForConditionalGeneration, tiny(tie_embeddings="none", label_smoothing=0.1))
    model.lm_head = Adapter(model.lm_head, nn.Linear(16, 23, bias=False))
    model.model.encoder.embed_tokens = Adapter(model.model.encoder.embed_tokens, nn.Embedding(23, 16))
    without_logits = model.train()(SOURCE, labels=TARGET).loss
    assert torch.allclose(without_logits, model(SOURCE, labels=TARGET, return_logits=True).loss, rtol=1e-12)
    without_logits.backward()
    assert model.lm_head.correct.weight.grad.abs().max() > 0
    assert model.model.encoder.embed_tokens.correct.weight.grad.abs().max() > 0

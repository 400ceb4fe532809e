"""Attention maps: the weights that the model itself computes, of ours and of transformers' models."""

import pytest
import torch

from tiny_translation import theirs, tiny_translation
from transduct import translate
from transduct.decoding.attention_maps import attention_map


def weights_by_hand(model, source: list[int], target: list[int], start: int) -> tuple[torch.Tensor, ...]:
    """Those of one pass with eager attention."""
    model.set_attn_implementation("eager")
    inputs = torch.tensor([[start, *target[:-1]]])
    with torch.no_grad():
        return model(torch.tensor([source]), decoder_input_ids=inputs, output_attentions=True).cross_attentions


@pytest.mark.parametrize("family", ["ours", "t5", "marian"])
def test_weights_are_those_of_the_model(family):
    model, tokenizer = tiny_translation()
    model = model if family == "ours" else theirs(family, tokenizer)
    before = model.config._attn_implementation
    found = attention_map(model, tokenizer, "hello", "the end")
    assert model.config._attn_implementation == before
    assert found.source == ("h", "e", "l", "l", "o", "</s>")
    assert found.target == ("t", "h", "e", "␣", "e", "n", "d", "</s>")
    encoded = tokenizer("hello", text_target="the end")
    wanted = weights_by_hand(model, encoded["input_ids"], encoded["labels"], model.config.decoder_start_token_id)
    assert len(found.layers) == 2
    assert found.heads == 4
    for layer, weights in zip(wanted, found.layers, strict=True):
        assert torch.allclose(weights, layer[0], atol=1e-6)
        assert torch.allclose(weights.sum(2), torch.ones(4, 8), atol=1e-5)
    assert torch.allclose(found.mean(), wanted[1][0].mean(0), atol=1e-6)
    assert torch.allclose(found.mean(0, [1, 3]), wanted[0][0, [1, 3]].mean(0), atol=1e-6)


def test_ids_of_a_translation_are_a_target():
    model, tokenizer = tiny_translation(end=2.0)
    (best,) = translate(model, tokenizer, ["cab"], num_beams=2, max_new_tokens=5, return_scores=True)
    found = attention_map(model, tokenizer, "cab", best.token_ids)
    assert len(found.target) == len(best.token_ids)
    assert found.layers[0].shape == (4, len(best.token_ids), 4)


def test_a_prefix_is_a_part_of_the_source():
    model, tokenizer = tiny_translation()
    assert attention_map(model, tokenizer, "a", "b", prefix="do ").source == ("d", "o", "␣", "a", "</s>")


def test_what_cannot_be_drawn_is_refused():
    model, tokenizer = tiny_translation(positions="learned")
    with pytest.raises(ValueError, match="has 101 tokens, more than the 64 that fit"):
        attention_map(model, tokenizer, "a" * 100, "b")
    with pytest.raises(ValueError, match="attention layer 2 is not there"):
        attention_map(model, tokenizer, "a", "b").mean(2)
    model.train()
    attention_map(model, tokenizer, "a", "b")
    assert model.training

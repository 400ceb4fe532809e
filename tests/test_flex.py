"""Flex attention, compiled by torch for the processor at hand, gives what `sdpa` gives."""

import pytest
import torch

from configs import tiny
from transduct import TransductForConditionalGeneration

IDS = torch.tensor([[5, 6, 7, 8, 1], [9, 4, 1, 0, 0], [0, 0, 0, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
TARGET = torch.tensor([[0, 5, 6, 7], [0, 9, 4, 5], [0, 5, 8, 5]])


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["sinusoidal", "relative_bias"])
def test_flex_attention_gives_the_same_logits(positions):
    model = TransductForConditionalGeneration(tiny(positions=positions, num_key_value_heads=None)).eval()
    expected = model(IDS, MASK, decoder_input_ids=TARGET).logits
    model.set_attn_implementation("flex_attention")
    with torch.no_grad():
        found = model(IDS, MASK, decoder_input_ids=TARGET).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)

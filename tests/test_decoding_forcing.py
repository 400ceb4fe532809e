"""A pass over given targets: padding on either side, and the token that the decoder starts with."""

import pytest
import torch

from configs import PAD, START, build, difference, tiny, words
from transduct import TransductForConditionalGeneration
from transduct.decoding.forcing import forced, padded


def test_padded():
    ids, mask = padded([[5, 6, 7], [8]], 3)
    assert ids.tolist() == [[5, 6, 7], [8, 3, 3]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    ids, mask = padded([[5, 6, 7], [8]], 3, "left")
    assert ids.tolist() == [[5, 6, 7], [3, 3, 8]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1]]


@pytest.mark.parametrize("side", ["left", "right"])
def test_each_row_is_as_if_alone(side):
    model = build(TransductForConditionalGeneration, tiny())
    sources = [words(1, length, seed=length)[0].tolist() for length in (5, 3)]
    targets = [[7, 8], [9, 10, 11, 12]]
    ids, mask = padded(sources, PAD, side)
    output, wanted, real = forced(model, {"input_ids": ids, "attention_mask": mask}, targets, START)
    assert [row[:length] for row, length in zip(wanted.tolist(), real.sum(1).tolist(), strict=True)] == targets
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        begun = torch.tensor([[START, *target[:-1]]])
        with torch.no_grad():
            alone = model(torch.tensor([source]), decoder_input_ids=begun).logits[0]
        assert difference(output.logits[row, : len(target)], alone) < 1e-9
    assert not output.logits.requires_grad

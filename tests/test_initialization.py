"""The standard deviations with which each scheme starts, in models as they are built and as `from_pretrained` completes them."""

import pytest
import torch

from configs import tiny
from transduct import TransductForConditionalGeneration, TransductForSequenceClassification

SIZES = dict(
    vocab_size=400, d_model=64, d_ff=256, num_heads=8, d_kv=16, d_value=12, encoder_layers=1, decoder_layers=1, gated_ffn=True,
    tie_embeddings="none",
)  # fmt: skip
D, F, H, K, VALUE = 64, 256, 8, 16, 12


def xavier(fan_in: int, fan_out: int) -> float:
    return (2 / (fan_in + fan_out)) ** 0.5


STDS = {
    "xavier": {
        "embed_tokens": D**-0.5, "q_proj": xavier(D, H * K), "k_proj": xavier(D, H * K), "v_proj": xavier(D, H * VALUE),
        "o_proj": xavier(H * VALUE, D), "up_proj": xavier(D, F), "gate_proj": xavier(D, F), "down_proj": xavier(F, D),
        "lm_head": D**-0.5,
    },
    "t5": {
        "embed_tokens": 1.0, "q_proj": (D * K) ** -0.5, "k_proj": D**-0.5, "v_proj": D**-0.5, "o_proj": (H * VALUE) ** -0.5,
        "up_proj": D**-0.5, "gate_proj": D**-0.5, "down_proj": F**-0.5, "lm_head": D**-0.5,
    },
    "normal": dict.fromkeys(
        ("embed_tokens", "q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "gate_proj", "down_proj", "lm_head"), 0.05
    ),
}  # fmt: skip
"""By the table in `TransductPreTrainedModel._init_weights`; T5's are those of Mesh TensorFlow."""


@pytest.mark.parametrize("scheme", STDS)
def test_every_matrix_has_the_standard_deviation_of_its_scheme(scheme):
    torch.manual_seed(0)
    model = TransductForConditionalGeneration(tiny(**SIZES, initializer=scheme, initializer_std=0.05))
    seen = set()
    for name, weight in model.named_parameters():
        kind = next((kind for kind in STDS[scheme] if kind in name), None)
        if kind is None or weight.ndim == 1:
            continue
        seen.add(kind)
        expected = STDS[scheme][kind]
        assert abs(weight.std().item() / expected - 1) < 5 / (2 * weight.numel()) ** 0.5, name  # five standard errors
        uniform = scheme == "xavier" and kind.endswith("_proj")
        assert (weight.abs().max() < 3**0.5 * expected * 1.0001) == uniform, name
    assert seen == set(STDS[scheme])


def test_a_head_that_a_checkpoint_lacks_is_initialised_and_nothing_else(tmp_path):
    torch.manual_seed(0)
    config = tiny(**SIZES, initializer="t5")
    trained = TransductForConditionalGeneration(config)
    with torch.no_grad():
        for weight in trained.parameters():
            weight.fill_(0.5)
    trained.save_pretrained(tmp_path)
    loaded = TransductForSequenceClassification.from_pretrained(tmp_path)
    for name, weight in loaded.named_parameters():
        if name.startswith("classification_head"):
            assert not (weight == 0.5).all()
        else:
            assert (weight == 0.5).all(), name

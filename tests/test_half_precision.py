"""float16 and bfloat16, as weights and under autocast: finite where T5 is known to overflow, and close to float32."""

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache

from configs import SCHEMES, build, name, pad_rows, tiny, words
from transduct import TransductForConditionalGeneration

every_scheme = pytest.mark.parametrize("choice", SCHEMES, ids=name)
both_types = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
both_implementations = pytest.mark.parametrize("attention", ["eager", "sdpa"])

IDS, MASK = pad_rows([words(1, length, seed=length)[0] for length in (6, 3)])
LABELS = words(2, 5, seed=1)


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.float() - other.float()).abs().max().item() < 0.1 * other.abs().max().item()


@every_scheme
@both_types
@both_implementations
def test_half_precision_weights(choice, dtype, attention):
    exact = build(TransductForConditionalGeneration, tiny(**choice), torch.float32, attention=attention)
    model = build(TransductForConditionalGeneration, tiny(**choice), dtype, attention=attention)
    for training in (False, True):
        output = model.train(training)(IDS, attention_mask=MASK, labels=LABELS, return_logits=True)
        want = exact.train(training)(IDS, attention_mask=MASK, labels=LABELS, return_logits=True)
        assert output.logits.dtype == dtype
        assert output.loss.dtype == torch.float32
        assert close(output.logits, want.logits)
        assert close(output.loss, want.loss)
        output.loss.backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert model.eval().generate(IDS, attention_mask=MASK, num_beams=2, max_new_tokens=5).shape[0] == 2
    model.generate(IDS, attention_mask=MASK, max_new_tokens=5, cache_implementation="static")


@every_scheme
@both_types
@both_implementations
@pytest.mark.parametrize("per_layer", [False, True], ids=["", "per_layer"])
def test_autocast(choice, dtype, attention, per_layer):
    if per_layer:
        choice = choice | {"positions": "relative_bias"}
    model = build(
        TransductForConditionalGeneration, tiny(**choice, relative_bias_per_layer=per_layer), torch.float32, attention=attention
    )
    want = model(IDS, attention_mask=MASK, labels=LABELS)
    with torch.autocast("cpu", dtype=dtype):
        got = model(IDS, attention_mask=MASK, labels=LABELS)
        trained = model.train()(IDS, attention_mask=MASK, labels=LABELS)
        trained.loss.backward()
        model.eval()
        generated = model.generate(IDS, attention_mask=MASK, num_beams=2, max_new_tokens=5)
        given = EncoderDecoderCache(DynamicCache(), DynamicCache())
        again = model.generate(IDS, attention_mask=MASK, num_beams=2, max_new_tokens=5, cache=given)
        static = model.generate(IDS, attention_mask=MASK, num_beams=2, max_new_tokens=5, cache_implementation="static")
    assert close(got.logits, want.logits)
    assert got.loss.dtype == trained.loss.dtype == torch.float32
    assert close(got.loss, want.loss)
    assert close(trained.loss, want.loss)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert torch.equal(generated, again)
    assert torch.equal(generated, static)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("activation", ["relu", "gelu_new", "silu"])
@pytest.mark.parametrize("where", ["up_proj", "down_proj", "gate_proj", "up_and_down"])
@both_types
def test_feed_forwards_that_leave_the_range_of_float16(norm_position, norm, gated, activation, where, dtype):
    if where == "gate_proj" and not gated:
        where = "up_and_down"
    config = tiny(norm=norm, norm_position=norm_position, gated_ffn=gated, activation=activation, positions="relative_bias")
    model = build(TransductForConditionalGeneration, config, dtype)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "feed_forward." in key and any(f"{part}_proj" in key for part in where.replace("_proj", "").split("_and_")):
                parameter.mul_(30000)
    output = model(IDS, attention_mask=MASK, labels=LABELS)
    assert output.logits.isfinite().all()
    assert output.loss.isfinite()
    assert model.generate(IDS, attention_mask=MASK, num_beams=2, max_new_tokens=4).shape[0] == 2
    loss = model.train()(IDS, attention_mask=MASK, labels=LABELS).loss
    assert loss.isfinite()


@both_types
@both_implementations
def test_states_near_the_end_of_the_range(dtype, attention):
    """Residual sums of a pre-norm stack grow; the norm at the end must still see finite states."""
    model = build(TransductForConditionalGeneration, tiny(norm="rmsnorm", norm_position="pre"), dtype, attention=attention)
    embeddings = torch.full((2, 4, 16), 15000.0, dtype=dtype)  # times sqrt(16), already close to 65504
    output = model(inputs_embeds=embeddings, decoder_input_ids=LABELS)
    assert output.logits.isfinite().all()
    output = model(inputs_embeds=2 * embeddings, decoder_inputs_embeds=2 * embeddings)
    assert output.logits.isfinite().all()


@both_types
def test_norms_are_computed_in_float32(dtype):
    from transduct.layers import make_norm

    for kind in ("layernorm", "rmsnorm"):
        norm = make_norm(kind, 64, 1e-6, bias=True).to(dtype)
        hidden = 3e4 * torch.randn(5, 64).clamp(-2, 2).to(dtype)  # squares beyond float16
        want = make_norm(kind, 64, 1e-6, bias=True)(hidden.float())
        assert norm(hidden).dtype == dtype
        assert (norm(hidden).float() - want).abs().max() < 0.02

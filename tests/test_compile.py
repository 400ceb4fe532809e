"""`torch.compile(fullgraph=True)`: training and static-cache decoding, with the eager results."""

import pytest
import torch
from transformers import EncoderDecoderCache, StaticCache

from configs import SCHEMES, build, difference, name, pad_rows, tiny, words
from transduct import TransductForConditionalGeneration

every_scheme = pytest.mark.parametrize("choice", SCHEMES, ids=name)

IDS, MASK = pad_rows([words(1, length, seed=length)[0] for length in (6, 3)])
LABELS = words(2, 5, seed=1)
LABELS[1, 3:] = -100


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def one_layer(choice):
    return tiny(**choice, encoder_layers=1, decoder_layers=1, label_smoothing=0.1, z_loss=0.01)


def loss_and_gradients(model, run) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss = run(IDS, attention_mask=MASK, labels=LABELS).loss
    loss.backward()
    return {"loss": loss.detach()} | {key: parameter.grad.clone() for key, parameter in model.named_parameters()}


@every_scheme
def test_training(choice):
    model = build(TransductForConditionalGeneration, one_layer(choice)).train()
    want = loss_and_gradients(model, model)
    got = loss_and_gradients(model, torch.compile(model, backend="aot_eager", fullgraph=True))
    for key, tensor in want.items():
        assert difference(got[key], tensor) < 1e-10, key


@every_scheme
def test_decoding_with_a_static_cache_compiles_once(choice):
    config = one_layer(choice)
    model = build(TransductForConditionalGeneration, config)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    targets, mask = words(2, 9, seed=3), torch.ones(2, 12, dtype=torch.long)
    mask[1, :2] = 0
    decoder = config.get_text_config(decoder=True)
    with torch.no_grad():
        memory = model.get_encoder()(IDS, MASK)
        source = dict(attention_mask=MASK, encoder_outputs=memory)
        want = model(decoder_input_ids=targets, decoder_attention_mask=mask[:, :9], use_cache=False, **source).logits
        cache = EncoderDecoderCache(StaticCache(decoder, 12), StaticCache(decoder, 6))
        source |= dict(cache=cache, decoder_attention_mask=mask)
        got, compilations = [model(decoder_input_ids=targets[:, :3], **source).logits], []
        for step in range(3, 9):
            got.append(compiled(decoder_input_ids=targets[:, step : step + 1], **source).logits)
            compilations.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    shown = mask[:, :9] == 1
    assert difference(torch.cat(got, dim=1)[shown], want[shown]) < 1e-11
    assert compilations[0] > 0
    assert compilations[1] == compilations[-1]


def test_generate_with_a_compiled_forward():
    model = build(TransductForConditionalGeneration, one_layer({"positions": "relative_bias"}))
    options = dict(attention_mask=MASK, max_new_tokens=6, num_beams=3, cache_implementation="static")
    want = model.generate(IDS, **options)
    model.forward = torch.compile(model.forward, backend="aot_eager")
    assert torch.equal(model.generate(IDS, **options), want)

"""torch.export and torch.compile: one graph for every shape, no second compilation in a loop, with adapters and checkpointing."""

import pytest
import torch
from torch.export import Dim
from transformers import EncoderDecoderCache, StaticCache

from configs import SCHEMES, build, difference, name, pad_rows, tiny, words
from transduct import TransductForConditionalGeneration
from transduct.convert.onnx import DecoderStep, EncoderGraph, _decoder_sample
from transduct.training.adapters import add_lora

pytestmark = pytest.mark.slow
every_scheme = pytest.mark.parametrize("choice", SCHEMES, ids=name)
ONCE = dict(recompile_limit=1, fail_on_recompile_limit_hit=True)
"""Settings under which a second compilation is an error."""
ANY = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
SMALL = pad_rows([words(1, length, seed=length)[0] for length in (7, 4, 5)])  # (3, 7)
LARGE = pad_rows([words(1, length, seed=length)[0] for length in (9, 2, 8, 1, 6)])  # (5, 9)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def one_layer(choice, **fields):
    return build(TransductForConditionalGeneration, tiny(**choice, encoder_layers=1, decoder_layers=1, **fields))


# ---- torch.export ---------------------------------------------------------------------------------------------------------


@every_scheme
def test_an_exported_encoder_takes_batches_of_any_shape(choice):
    encoder = one_layer(choice).get_encoder()
    exported = torch.export.export(encoder, SMALL, dynamic_shapes={"input_ids": ANY, "attention_mask": ANY}).module()
    for ids, mask in (SMALL, LARGE):
        found, wanted = exported(ids, mask)[0], encoder(ids, mask)[0]
        assert difference(found[mask == 1], wanted[mask == 1]) < 1e-12


@every_scheme
def test_an_exported_model_takes_batches_of_any_shape(choice):
    model = one_layer(choice)
    names = ("input_ids", "attention_mask", "decoder_input_ids")

    def inputs(batch, length):
        return dict(zip(names, (*batch, words(len(batch[0]), length, seed=1)), strict=True)) | {"use_cache": False}

    shapes = dict.fromkeys(names, ANY) | {"use_cache": None}
    exported = torch.export.export(model, (), inputs(SMALL, 5), dynamic_shapes=shapes).module()
    for given in (inputs(SMALL, 5), inputs(LARGE, 6)):
        assert difference(exported(**given).logits, model(**given).logits) < 1e-12


@pytest.mark.parametrize("choice", SCHEMES[1:3], ids=name)
def test_exported_steps_decode_as_generate_does(choice):
    """Encoder and decoder step as two graphs, their cache outside, are a decoder of their own; with two equal beams here."""
    model = one_layer(choice).float()
    encoder = torch.export.export(EncoderGraph(model), SMALL, dynamic_shapes={"input_ids": ANY, "attention_mask": ANY}).module()
    sample, shapes = _decoder_sample(model)
    step = torch.export.export(DecoderStep(model), (), sample, dynamic_shapes=shapes).module()
    ids, mask = LARGE
    wanted = model.generate(ids, attention_mask=mask, num_beams=1, max_new_tokens=6, min_new_tokens=6)
    cross = encoder(ids, mask)
    keys, values = (
        [torch.zeros(len(ids), 2, each.shape[1], 0, each.shape[3]) for each in cross[name]]
        for name in ("cross_keys", "cross_values")
    )
    found = wanted[:, :1]
    for _ in range(6):
        new = step(decoder_input_ids=found[:, -1:].expand(-1, 2), attention_mask=mask, keys=keys, values=values, **cross)
        keys = [torch.cat(pair, dim=3) for pair in zip(keys, new["new_keys"], strict=True)]
        values = [torch.cat(pair, dim=3) for pair in zip(values, new["new_values"], strict=True)]
        logits = new["logits"][:, 0].clone()
        logits[:, model.config.eos_token_id] = float("-inf")
        found = torch.cat([found, logits.argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(found, wanted)


# ---- torch.compile --------------------------------------------------------------------------------------------------------


@every_scheme
@torch._dynamo.config.patch(**ONCE)
def test_no_second_compilation_in_a_decode_loop(choice):
    """One graph for every token after the first."""
    model = one_layer(choice)
    decoder = model.config.get_text_config(decoder=True)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    ids, mask = SMALL
    with torch.no_grad():
        source = dict(attention_mask=mask, encoder_outputs=model.get_encoder()(ids, mask))
        cache = EncoderDecoderCache(StaticCache(decoder, 12), StaticCache(decoder, 7))
        tokens = [words(3, 1, seed=0)]
        first = model(decoder_input_ids=tokens[0], cache=cache, **source).logits  # fills the source's part of the cache
        tokens.append(first.argmax(-1))
        for _ in range(8):
            tokens.append(compiled(decoder_input_ids=tokens[-1], cache=cache, **source).logits.argmax(-1))
        wanted = model(decoder_input_ids=torch.cat(tokens[:-1], dim=1), use_cache=False, **source).logits.argmax(-1)
    assert torch.equal(torch.cat(tokens[1:], dim=1), wanted)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@every_scheme
@torch._dynamo.config.patch(**ONCE)
def test_one_graph_serves_every_shape_of_batch(choice):
    model = one_layer(choice)
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for (ids, mask), length in ((SMALL, 5), (LARGE, 6), (SMALL, 4)):
            given = dict(input_ids=ids, attention_mask=mask, decoder_input_ids=words(len(ids), length), use_cache=False)
            assert difference(compiled(**given).logits, model(**given).logits) < 1e-12


@pytest.mark.parametrize("checkpointing", [False, True])
def test_adapters_are_trained_compiled_as_otherwise(checkpointing):
    ids, mask = SMALL
    labels = words(3, 5, seed=2)
    gradients = []
    for compiling in (False, True):
        torch.manual_seed(0)
        model = add_lora(one_layer(SCHEMES[2]).float(), {"rank": 2, "target": "all"}).train()
        if checkpointing:
            model.base_model.activation_checkpointing_enable()
            model.enable_input_require_grads()
        run = torch.compile(model, backend="aot_eager") if compiling else model
        run(input_ids=ids, attention_mask=mask, labels=labels).loss.backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad})
    assert gradients[0]
    for key, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][key], gradient)
    assert any(gradient.abs().sum() > 0 for gradient in gradients[0].values())

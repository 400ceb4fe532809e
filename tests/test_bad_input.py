"""Bad input has a clear outcome: an error that names it, or a documented result; never NaN, never a random tensor."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DynamicCache, EncoderDecoderCache, StaticCache, T5Config, T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

import transduct
from configs import SCHEMES, VOCABULARY, build, difference, name, tiny, words
from transduct import modeling

every_scheme = pytest.mark.parametrize("choice", SCHEMES, ids=name)
IDS, TARGETS = words(2, 5), words(2, 4, seed=1)


@pytest.fixture
def model():
    return build(transduct.TransductForConditionalGeneration, tiny())


def refused(match: str):
    return pytest.raises(ValueError, match=match)


# ---- ids ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("wrong", [-1, -100, VOCABULARY, 10**9])
def test_ids_outside_the_vocabulary(model, wrong):
    for argument in ("input_ids", "decoder_input_ids", "labels"):
        if argument == "labels" and wrong == -100:
            continue
        inputs = dict(input_ids=IDS, decoder_input_ids=TARGETS, labels=TARGETS)
        inputs[argument] = inputs[argument].clone()
        inputs[argument][1, 2] = wrong
        for training in (True, False):
            with refused(rf"{argument}.*{wrong}.*vocabulary \[0, {VOCABULARY}\)"):
                model.train(training)(**inputs)
    ids = IDS.clone()
    ids[0, 0] = wrong
    with refused(f"input_ids.*{wrong}"):
        model.generate(ids)
    with refused(f"decoder_input_ids.*{wrong}"):
        model.generate(IDS, decoder_input_ids=ids[:, :2])


def test_each_side_has_its_own_vocabulary():
    model = build(transduct.TransductForConditionalGeneration, tiny(decoder_vocab_size=30, tie_embeddings="none"))
    model(IDS, labels=torch.full_like(TARGETS, 29))
    with refused(r"input_ids.*29.*\[0, 23\)"):
        model(torch.full_like(IDS, 29), labels=TARGETS)
    with refused(r"labels.*30.*\[0, 30\)"):
        model(IDS, labels=torch.full_like(TARGETS, 30))


@pytest.mark.parametrize("kind", [torch.float32, torch.bool, torch.complex64], ids=str)
def test_ids_of_a_wrong_type(model, kind):
    for argument in ("input_ids", "decoder_input_ids", "labels"):
        inputs = dict(input_ids=IDS, decoder_input_ids=TARGETS, labels=TARGETS)
        inputs[argument] = inputs[argument].to(kind)
        with refused(f"{argument}.*{kind}"):
            model(**inputs)


@pytest.mark.parametrize("kind", [torch.int32, torch.int16, torch.uint8], ids=str)
def test_ids_of_any_integer_type(model, kind):
    """Either the same result or an error that names the type."""
    for training in (True, False):
        model.train(training)
        want = model(IDS, labels=TARGETS).loss
        assert torch.equal(model(IDS.to(kind), labels=TARGETS.to(kind), decoder_input_ids=None).loss, want)


@pytest.mark.parametrize(
    "model_class", [modeling.TransductForMaskedLM, modeling.TransductForCausalLM, modeling.TransductEncoderModel]
)
def test_models_of_one_stack_check_ids_too(model_class):
    model = build(model_class, tiny())
    for wrong in (IDS - 30, IDS + 30, IDS.float(), IDS[:0], IDS[:, :0], IDS[0]):
        with refused("input_ids"):
            model(wrong)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (5,), (1, 2, 5)], ids=str)
def test_empty_batches_and_wrong_shapes(model, shape):
    wrong = torch.full(shape, 3)
    with refused("input_ids"):
        model(wrong, labels=TARGETS)
    with refused("input_ids"):
        model.generate(wrong)
    with refused("decoder_input_ids"):
        model(IDS, decoder_input_ids=wrong)
    with refused("labels"):
        model(IDS, labels=wrong)
    embeddings = torch.zeros(*shape, 16, dtype=torch.float64)
    with refused("inputs_embeds"):
        model(inputs_embeds=embeddings, labels=TARGETS)
    with refused("decoder_inputs_embeds"):
        model(IDS, decoder_inputs_embeds=embeddings)


# ---- all-padding rows ---------------------------------------------------------------------------------------------
@every_scheme
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("per_layer", [False, True], ids=["", "per_layer"])
def test_a_row_of_padding_is_finite_and_hurts_nobody(choice, attention, per_layer):
    if per_layer and choice["positions"] != "relative_bias":
        choice = choice | {"positions": "relative_bias"}
    model = build(
        transduct.TransductForConditionalGeneration, tiny(**choice, relative_bias_per_layer=per_layer), attention=attention
    )
    ids, labels = torch.cat([IDS, torch.zeros_like(IDS[:1])]), torch.cat([TARGETS, words(1, 4, seed=5)])
    with torch.no_grad():
        want = model(IDS, labels=TARGETS).logits
    for mask in (None, (ids != 0).long()):
        for training in (True, False):
            model.train(training).zero_grad()
            output = model(ids, attention_mask=mask, labels=labels, return_logits=True, output_attentions=True)
            assert output.loss.isfinite()
            assert output.logits.isfinite().all()
            assert difference(output.logits[:2], want) < 1e-11
            assert all(weights.isfinite().all() for weights in (*output.encoder_attentions, *output.cross_attentions))
            output.loss.backward()
            assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
            assert (output.encoder_last_hidden_state[2] == 0).all()
    generated = model.eval().generate(ids, max_new_tokens=5, num_beams=2)
    alone = model.generate(IDS, max_new_tokens=5, num_beams=2)
    assert generated[:2, : alone.shape[1]].tolist() == alone.tolist()


@every_scheme
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("per_layer", [False, True], ids=["", "per_layer"])
def test_a_row_of_target_padding_is_finite_and_hurts_nobody(choice, attention, per_layer):
    if per_layer and choice["positions"] != "relative_bias":
        choice = choice | {"positions": "relative_bias"}
    model = build(
        transduct.TransductForConditionalGeneration, tiny(**choice, relative_bias_per_layer=per_layer), attention=attention
    )
    with torch.no_grad():
        want = model(IDS[:1], decoder_input_ids=TARGETS[:1]).logits
    for mask in (torch.tensor([[1] * 4, [0] * 4]), torch.tensor([[0, 1, 1, 1], [0] * 4])):
        per_query = (mask[:, None] * torch.ones(4, 4).tril()).bool()
        for form in (mask, per_query, per_query[:, None]):
            model.zero_grad()
            logits = model(IDS, decoder_input_ids=TARGETS, decoder_attention_mask=form).logits
            assert logits.isfinite().all()
            if mask[0, 0]:
                assert difference(logits[:1], want) < 1e-11
            logits[0].square().sum().backward()
            assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


# ---- too long -----------------------------------------------------------------------------------------------------
def test_texts_longer_than_learned_positions():
    model = build(transduct.TransductForConditionalGeneration, tiny(positions="learned", max_positions=6))
    model(words(2, 6), decoder_input_ids=words(2, 6))
    for inputs in (dict(input_ids=words(2, 7), labels=TARGETS), dict(input_ids=IDS, labels=words(2, 7))):
        with refused("7 tokens exceeds max_positions=6"):
            model(**inputs)
    with refused("7 tokens exceeds max_positions=6"):
        model.generate(words(2, 7))
    for positions in ({"position_ids": torch.full((2, 5), 6)}, {"decoder_position_ids": torch.full((2, 4), 6)}):
        with refused("max_positions=6"):
            model(IDS, decoder_input_ids=TARGETS, **positions)
    cache = model(IDS, decoder_input_ids=TARGETS, use_cache=True).cache
    with refused("max_positions=6"):
        model(IDS, decoder_input_ids=words(2, 3), cache=cache)
    static = model.generate(IDS, max_new_tokens=3, cache_implementation="static", return_dict_in_generate=True).cache
    static.reset()
    with refused("max_positions=6"):
        model(IDS, decoder_input_ids=words(2, 7), cache=static)


@pytest.mark.parametrize("options", [dict(max_new_tokens=7), dict(max_length=8), dict(max_new_tokens=7, num_beams=2)], ids=str)
@pytest.mark.parametrize("static", [{}, {"cache_implementation": "static"}], ids=["", "static"])
def test_more_to_generate_than_learned_positions(options, static):
    """An error before decoding starts, not after minutes of it."""
    model = build(transduct.TransductForConditionalGeneration, tiny(positions="learned", max_positions=6))
    with refused("max_positions=6.*at most 6 new tokens"):
        model.generate(IDS, **options, **static)
    model.generate(IDS, max_new_tokens=6, min_new_tokens=6, **static)
    with refused("max_positions=6.*at most 1 new tokens"):  # a start token comes before the prompt
        model.generate(IDS, decoder_input_ids=words(2, 5), max_new_tokens=3, **static)
    with refused("max_positions=6"):
        model.generate(IDS, decoder_input_ids=words(2, 7), **static)
    with refused("max_positions=6"):
        model.generate(IDS, decoder_input_ids=words(2, 8), **static)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_negative_positions(positions):
    model = build(
        transduct.TransductForConditionalGeneration, tiny(positions=positions, position_offset=2 * (positions == "learned"))
    )
    for argument, ids in (("position_ids", IDS), ("decoder_position_ids", TARGETS)):
        with refused("position_ids holds -1"):
            model(IDS, decoder_input_ids=TARGETS, **{argument: torch.arange(ids.shape[1])[None] - 1})


# ---- arguments ----------------------------------------------------------------------------------------------------
def test_no_start_token(model):
    model.config.decoder_start_token_id = None
    with refused("decoder_start_token_id is None"):
        model(IDS, labels=TARGETS)
    with refused("decoder_start_token_id"):
        build(transduct.TransductForConditionalGeneration, tiny(decoder_start_token_id=None)).generate(IDS)


def test_unknown_arguments(model):
    for model_class in modeling.__all__:
        one = build(getattr(modeling, model_class), tiny())
        with pytest.raises(TypeError, match="atention_mask"):
            one(input_ids=IDS, atention_mask=torch.ones_like(IDS))
    with refused("atention_mask"):
        model.generate(IDS, atention_mask=torch.ones_like(IDS))


def test_two_caches(model):
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    with refused("either cache or past_key_values"):
        model(IDS, decoder_input_ids=TARGETS, cache=cache, past_key_values=cache)
    output = model(IDS, decoder_input_ids=TARGETS, past_key_values=cache)
    assert output.cache is cache
    with refused("either cache or past_key_values"):
        build(transduct.TransductForCausalLM, tiny())(IDS, cache=DynamicCache(), past_key_values=DynamicCache())


def test_no_targets_and_no_source(model):
    with refused("there are no targets"):
        model(IDS)
    with refused("there are no targets"):
        build(transduct.TransductModel, tiny())(IDS)
    with refused("exactly one of input_ids and inputs_embeds"):
        model(labels=TARGETS)
    with refused("exactly one of input_ids and inputs_embeds"):
        model(IDS, inputs_embeds=torch.zeros(2, 5, 16), labels=TARGETS)
    with refused("exactly one of decoder_input_ids and decoder_inputs_embeds"):
        model(IDS, decoder_input_ids=TARGETS, decoder_inputs_embeds=torch.zeros(2, 4, 16))


def test_masks_of_a_wrong_form(model):
    cases = {
        "attention_mask covers 6": dict(attention_mask=torch.ones(2, 6)),
        "attention_mask covers 4": dict(attention_mask=torch.ones(2, 4)),
        "decoder_attention_mask covers 5": dict(decoder_attention_mask=torch.ones(2, 5)),
        "decoder_attention_mask covers 3": dict(decoder_attention_mask=torch.ones(2, 3)),
        "source's attention mask covers 4": dict(cross_attention_mask=torch.ones(2, 4)),
        r"attention_mask of shape \(2, 5, 5\) must be boolean": dict(attention_mask=torch.zeros(2, 5, 5)),
        r"decoder_attention_mask of shape \(2, 1, 4, 4\) must be boolean": dict(decoder_attention_mask=torch.zeros(2, 1, 4, 4)),
        "2, 3 or 4 dimensions": dict(attention_mask=torch.ones(5)),
    }
    for message, options in cases.items():
        with refused(message):
            model(IDS, decoder_input_ids=TARGETS, **options)
    with refused("attention_mask"):
        model.generate(IDS, attention_mask=torch.ones(2, 4))
    with refused("attention_mask"):  # another number of rows
        model(IDS, decoder_input_ids=TARGETS, attention_mask=torch.tensor([[1, 1, 1, 1, 0]] * 3))
    with refused("attention_mask"):
        model(IDS, decoder_input_ids=TARGETS, decoder_attention_mask=torch.tensor([[1, 1, 1, 0]] * 3))
    with refused("attention_mask"):  # an additive mask of two dimensions would be read the wrong way round
        model(IDS, decoder_input_ids=TARGETS, attention_mask=torch.tensor([[0.0, 0.0, 0.0, 0.0, -1e9]] * 2))


def test_masks_on_cached_steps_cover_past_and_new_tokens(model):
    for kind in (None, "static"):
        cache = model(IDS, decoder_input_ids=TARGETS, use_cache=True).cache
        if kind == "static":
            decoder = model.config.get_text_config(decoder=True)
            cache = EncoderDecoderCache(StaticCache(decoder, 9), StaticCache(decoder, 5))
            model(IDS, decoder_input_ids=TARGETS, cache=cache)
        with refused("decoder_attention_mask"):
            model(IDS, decoder_input_ids=TARGETS[:, :1], decoder_attention_mask=torch.ones(2, 1), cache=cache)


def test_rows_that_do_not_fit_each_other(model):
    with refused("3 target rows cannot be shared out evenly among 2 sources"):
        model(IDS, decoder_input_ids=words(3, 4))
    with refused("segment_ids"):
        model(IDS, decoder_input_ids=TARGETS, segment_ids=torch.ones_like(IDS))
    with refused("segment_ids"):
        model(IDS, decoder_input_ids=TARGETS, segment_ids=torch.ones(2, 4).long(), decoder_segment_ids=torch.ones_like(TARGETS))
    for wrong, said in ((torch.ones(IDS.shape), "integers"), (-torch.ones_like(IDS), "-1"), (IDS > 0, "integers")):
        with refused(f"^segment_ids .*{said}"):
            model(IDS, decoder_input_ids=TARGETS, segment_ids=wrong, decoder_segment_ids=torch.ones_like(TARGETS))
        with refused(f"^decoder_segment_ids .*{said}"):
            model(IDS, decoder_input_ids=TARGETS, segment_ids=torch.ones_like(IDS), decoder_segment_ids=wrong[:, :4])
    with refused("labels"):
        model(IDS, decoder_input_ids=TARGETS, labels=words(2, 3))
    with refused("packed targets"):
        cache = model(IDS, decoder_input_ids=TARGETS, use_cache=True).cache
        segments = dict(segment_ids=torch.ones_like(IDS), decoder_segment_ids=torch.ones_like(TARGETS))
        model(IDS, decoder_input_ids=TARGETS, cache=cache, **segments)
    with refused("inputs_embeds"):
        model(inputs_embeds=torch.zeros(2, 5, 17), labels=TARGETS)
    with refused("every row of input_ids must contain eos_token_id"):
        build(transduct.TransductForSequenceClassification, tiny())(IDS)


def test_encoder_outputs_of_padded_sources_bring_their_mask_or_ids(model):
    """States at padding are zero but would still be attended to: the ids beside them tell where they are."""
    ids = torch.cat([IDS, torch.zeros_like(IDS[:, :2])], dim=1)
    with torch.no_grad():
        states = model.get_encoder()(ids, (ids != 0).long())
        want = model(IDS, decoder_input_ids=TARGETS).logits
        assert difference(model(ids, encoder_outputs=states, decoder_input_ids=TARGETS).logits, want) < 1e-11
        given = model.generate(ids, encoder_outputs=BaseModelOutput(states.last_hidden_state), max_new_tokens=5)
        assert given.tolist() == model.generate(IDS, max_new_tokens=5).tolist()


# ---- checkpoints --------------------------------------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path):
    build(transduct.TransductForConditionalGeneration, tiny(tie_embeddings="none"), dtype=torch.float32).save_pretrained(tmp_path)
    return tmp_path


def change(folder, **changes):
    """Rewrite the weights: a tensor replaces one, None removes it."""
    weights = load_file(folder / "model.safetensors")
    for key, value in changes.items():
        weights.pop(key, None)
        if value is not None:
            weights[key] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def load(folder, **options):
    return transduct.TransductForConditionalGeneration.from_pretrained(folder, **options)


@pytest.mark.parametrize(
    "key",
    ["lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.layers.1.cross_attention.k_proj.bias",
     "model.encoder.layers.0.feed_forward_residual.norm.weight"],
)  # fmt: skip
def test_missing_extra_and_misshapen_weights(folder, key):
    weight = load_file(folder / "model.safetensors")[key]
    change(folder, **{key: None})
    with refused(f"weights are missing.*{key}"):
        load(folder)
    change(folder, **{key: torch.zeros(weight.shape[0] + 1, *weight.shape[1:])})
    with refused(f"another shape than the config says.*{key}"):
        load(folder)
    change(folder, **{key: weight, "model.encoder.adapter.weight": torch.zeros(3)})
    with refused("no place for.*adapter"):
        load(folder)
    change(folder, **{"model.encoder.adapter.weight": None})
    assert torch.equal(load(folder).state_dict()[key], weight)


@pytest.mark.parametrize("tie", ["all", "source_target", "target_output"])
def test_untied_weights_that_the_config_ties(folder, tie):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_embeddings": tie}))
    with refused("does not fit"):
        load(folder)


def test_equal_weights_that_the_config_ties(folder):
    """Stored three times with the same values, as other tools write them: tied again."""
    weight = load_file(folder / "model.safetensors")["lm_head.weight"]
    change(folder, **{f"model.{side}.embed_tokens.weight": weight.clone() for side in ("encoder", "decoder")})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_embeddings": "all"}))
    model = load(folder)
    assert model.lm_head.weight is model.model.encoder.embed_tokens.weight is model.model.decoder.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, weight)


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, 0.999])
def test_truncated_weights(folder, keep):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: int(keep * len(content)) if keep < 1 else keep])
    with pytest.raises(Exception, match=r"(?i)safetensor|header|incomplete|invalid|buffer"):
        load(folder)


def test_a_missing_shard_and_no_weights_at_all(tmp_path):
    model = build(transduct.TransductForConditionalGeneration, tiny(), dtype=torch.float32)
    model.save_pretrained(tmp_path, max_shard_size="3KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises((OSError, ValueError), match=shard.name):
        load(tmp_path)
    for file in [*tmp_path.glob("*.safetensors"), tmp_path / "model.safetensors.index.json"]:
        file.unlink()
    with pytest.raises(OSError, match=r"model\.safetensors"):
        load(tmp_path)


def test_a_head_yet_to_be_trained_is_the_only_thing_that_may_be_missing(folder):
    """As with every model of transformers, a classification head starts from its initialisation; nothing else does."""
    model = transduct.TransductForSequenceClassification.from_pretrained(folder, num_labels=4)
    assert model.classification_head.out_proj.weight.isfinite().all()
    change(folder, **{"model.decoder.layers.0.self_attention.q_proj.weight": None})
    with refused("q_proj"):
        transduct.TransductForSequenceClassification.from_pretrained(folder, num_labels=4)


def test_half_a_head_is_not_a_head_yet_to_be_trained(tmp_path):
    model = build(transduct.TransductForSequenceClassification, tiny(num_labels=3), dtype=torch.float32)
    model.save_pretrained(tmp_path)
    change(tmp_path, **{"classification_head.out_proj.weight": None})
    with refused("classification_head.out_proj.weight"):
        transduct.TransductForSequenceClassification.from_pretrained(tmp_path)


@pytest.mark.parametrize("change_of_config", [{"d_ff": 25}, {"decoder_layers": 3}, {"decoder_layers": 1}, {"gated_ffn": True}])
def test_weights_of_another_config(folder, change_of_config):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change_of_config))
    with pytest.raises((ValueError, RuntimeError), match=r"layers"):
        load(folder)


@pytest.mark.parametrize("model_class", [transduct.TransductForConditionalGeneration, transduct.TransductForMaskedLM])
def test_a_bias_that_the_head_has_no_place_for(model_class, tmp_path):
    build(model_class, tiny(), dtype=torch.float32).save_pretrained(tmp_path)
    change(tmp_path, **{"lm_head.bias": torch.ones(VOCABULARY)})
    with refused("no place for.*lm_head.bias"):
        model_class.from_pretrained(tmp_path)


def test_a_model_of_another_type(tmp_path):
    sizes = dict(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(T5Config(**sizes)).save_pretrained(tmp_path)
    with refused("model_type='t5' is another type of model"):
        load(tmp_path)
    with refused("model_type='t5' is another type of model"):
        transduct.TransductConfig.from_pretrained(tmp_path)

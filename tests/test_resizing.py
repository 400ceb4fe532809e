"""Changing the vocabulary of a trained model: old logits stay, every matrix follows, the result saves and loads."""

import pytest
import torch

import transduct
from configs import TIES, build, difference, tiny, words

IDS, TARGETS = words(2, 5), words(2, 4, seed=1)
every_tie = pytest.mark.parametrize("tie", TIES)
with_bias = pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
both_vocabularies = pytest.mark.parametrize("explicit", [False, True], ids=["one", "two_of_one_size"])


def logits(model, ids=IDS, targets=TARGETS):
    inputs = {"input_ids": ids}
    if isinstance(model, transduct.TransductForConditionalGeneration):
        inputs["decoder_input_ids"] = targets
    with torch.no_grad():
        return model(**inputs, use_cache=False).logits if "Masked" not in type(model).__name__ else model(**inputs).logits


def reloaded(model, folder):
    model.save_pretrained(folder)
    loaded = type(model).from_pretrained(folder)
    assert difference(logits(loaded), logits(model)) < 1e-12
    assert loaded.config.to_dict() | {"_name_or_path": None} == model.config.to_dict() | {"_name_or_path": None}
    return loaded


@every_tie
@with_bias
@both_vocabularies
@pytest.mark.parametrize("size", [40, 20])
def test_source_and_target_share_a_vocabulary(tie, bias, explicit, size, tmp_path):
    config = tiny(
        tie_embeddings=tie, logits_bias=bias, decoder_vocab_size=23 if explicit and tie in ("all", "source_target") else None
    )
    model = build(transduct.TransductForConditionalGeneration, config)
    ids, targets = words(2, 5, high=20), words(2, 4, seed=1, high=20)
    before = logits(model, ids, targets)
    resized = model.resize_token_embeddings(size)
    kept = min(size, 23)
    assert resized is model.get_input_embeddings()
    assert difference(logits(model, ids, targets)[..., :kept], before[..., :kept]) < 1e-12
    assert logits(model, ids, targets).shape == (2, 4, size)
    sizes = [model.model.encoder.embed_tokens, model.model.decoder.embed_tokens]
    assert [embedding.weight.shape[0] for embedding in sizes] == [embedding.num_embeddings for embedding in sizes] == [size, size]
    assert model.lm_head.weight.shape[0] == model.lm_head.out_features == size
    assert model.config.vocab_size == model.config.resolved_decoder_vocab_size == size
    source, target, output = (sizes[0].weight, sizes[1].weight, model.lm_head.weight)
    assert (source is target) == (tie in ("all", "source_target"))
    assert (target is output) == (tie in ("all", "target_output"))
    last = torch.full((1, 2), size - 1)
    assert model(last, labels=last).loss.isfinite()
    with pytest.raises(ValueError, match=rf"{size}, outside the vocabulary"):
        model(last + 1, labels=last)
    model.generate(IDS.clamp(max=size - 1), max_new_tokens=3, num_beams=2)
    if size == 40:
        reloaded(model, tmp_path)


@with_bias
@pytest.mark.parametrize("tie", ["target_output", "none"])
def test_each_side_has_a_vocabulary(tie, bias, tmp_path):
    config = tiny(tie_embeddings=tie, logits_bias=bias, decoder_vocab_size=30)
    model = build(transduct.TransductForConditionalGeneration, config)
    before = logits(model)
    model.resize_token_embeddings(40)
    assert torch.equal(logits(model), before)  # the target's is untouched
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (40, 30)
    model.resize_decoder_token_embeddings(33)
    assert difference(logits(model)[..., :30], before) < 1e-12
    assert logits(model).shape == (2, 4, 33)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (40, 33)
    assert (model.model.decoder.embed_tokens.weight is model.lm_head.weight) == (tie == "target_output")
    reloaded(model, tmp_path)


@every_tie
def test_one_vocabulary_has_no_decoder_vocabulary_to_resize(tie):
    model = build(transduct.TransductForConditionalGeneration, tiny(tie_embeddings=tie))
    with pytest.raises(ValueError, match="use resize_token_embeddings"):
        model.resize_decoder_token_embeddings(30)


@pytest.mark.parametrize("model_class", [transduct.TransductForMaskedLM, transduct.TransductForCausalLM])
@pytest.mark.parametrize("tie", ["all", "none"])
@with_bias
@pytest.mark.parametrize("decoder_size", [None, 30])
def test_models_of_one_stack(model_class, tie, bias, decoder_size, tmp_path):
    if decoder_size and tie == "all":
        tie = "target_output"
    model = build(model_class, tiny(tie_embeddings=tie, logits_bias=bias, decoder_vocab_size=decoder_size))
    before = logits(model)
    model.resize_token_embeddings(before.shape[-1] + 9)
    after = logits(model)
    assert after.shape[-1] == before.shape[-1] + 9
    assert difference(after[..., : before.shape[-1]], before) < 1e-12
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == (tie != "none")
    reloaded(model, tmp_path)


def test_a_frozen_padding_row_stays_frozen(tmp_path):
    model = build(transduct.TransductForConditionalGeneration, tiny(freeze_padding_embedding=True, tie_embeddings="none"))
    model.resize_token_embeddings(40)
    model(torch.tensor([[5, 0, 7]]), decoder_input_ids=torch.tensor([[0, 4]])).logits.sum().backward()
    for side in (model.model.encoder, model.model.decoder):
        assert (side.embed_tokens.weight.grad[0] == 0).all()
        assert (side.embed_tokens.weight.grad != 0).any()


@every_tie
def test_padding_to_a_multiple(tie, tmp_path):
    model = build(transduct.TransductForConditionalGeneration, tiny(tie_embeddings=tie))
    model.resize_token_embeddings(pad_to_multiple_of=8)
    assert logits(model).shape[-1] == model.config.vocab_size == 24
    reloaded(model, tmp_path)


def test_models_without_a_head(tmp_path):
    for model_class in (transduct.TransductModel, transduct.TransductEncoderModel):
        for tie in TIES:
            model = build(model_class, tiny(tie_embeddings=tie))
            inputs = {"input_ids": IDS} | ({"decoder_input_ids": TARGETS} if model_class is transduct.TransductModel else {})
            with torch.no_grad():
                before = model(**inputs).last_hidden_state
                model.resize_token_embeddings(40)
                assert difference(model(**inputs).last_hidden_state, before) < 1e-12
            model.save_pretrained(tmp_path / f"{model_class.__name__}-{tie}")
            loaded = model_class.from_pretrained(tmp_path / f"{model_class.__name__}-{tie}")
            with torch.no_grad():
                assert difference(loaded(**inputs).last_hidden_state, before) < 1e-12
                if model_class is transduct.TransductModel and tie in ("target_output", "none"):
                    loaded(IDS, decoder_input_ids=torch.full((2, 2), 39))


@every_tie
def test_classifiers(tie, tmp_path):
    ids = torch.cat([IDS, torch.ones_like(IDS[:, :1])], dim=1)
    for model_class in (
        transduct.TransductForSequenceClassification,
        transduct.TransductForQuestionAnswering,
        transduct.TransductForTokenClassification,
    ):
        model = build(model_class, tiny(tie_embeddings=tie, num_labels=3))
        with torch.no_grad():
            before = model(ids).to_tuple()[0]
            model.resize_token_embeddings(40)
            assert difference(model(ids).to_tuple()[0], before) < 1e-12
            folder = tmp_path / f"{model_class.__name__}-{tie}"
            model.save_pretrained(folder)
            loaded = model_class.from_pretrained(folder)
            assert difference(loaded(ids).to_tuple()[0], before) < 1e-12
            assert loaded(torch.tensor([[39, 1]])).to_tuple()[0].isfinite().all()

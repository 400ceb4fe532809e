"""What a forward pass returns on request: attentions, hidden states, tuples; and what it leaves out."""

import pytest
import torch

from configs import PAIRWISE, build, difference, name, pad_rows, tiny, words
from transduct import TransductForCausalLM, TransductForConditionalGeneration, TransductForMaskedLM, TransductModel

pairwise = pytest.mark.parametrize("choice", PAIRWISE, ids=name)
IDS, MASK = pad_rows([words(1, length, seed=length)[0] for length in (6, 3)])
TARGETS, TARGET_MASK = pad_rows([words(1, length, seed=10 + length)[0] for length in (2, 5)], "left")


@pairwise
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_attentions_and_hidden_states(choice, attention, training):
    model = build(TransductForConditionalGeneration, tiny(**choice), attention=attention).train(training)
    inputs = dict(input_ids=IDS, attention_mask=MASK, decoder_input_ids=TARGETS, decoder_attention_mask=TARGET_MASK)
    output = model(**inputs, output_attentions=True, output_hidden_states=True)
    assert difference(output.logits[TARGET_MASK == 1], model(**inputs).logits[TARGET_MASK == 1]) < 1e-11
    for weights, shape in (
        (output.encoder_attentions, (2, 4, 6, 6)),
        (output.decoder_attentions, (2, 4, 5, 5)),
        (output.cross_attentions, (2, 4, 5, 6)),
    ):
        assert [tuple(layer.shape) for layer in weights] == [shape] * 2
    for layer in range(2):
        real = output.encoder_attentions[layer][1][:, :3]
        assert difference(real.sum(-1), torch.ones(4, 3)) < 1e-11
        assert (real[..., 3:] == 0).all()
        own = output.decoder_attentions[layer][0][:, 3:]
        assert difference(own.sum(-1), torch.ones(4, 2)) < 1e-11
        assert (own[..., :3] == 0).all()  # padding on the left
        assert (own[:, 0, 4:] == 0).all()  # what comes later
        assert (output.cross_attentions[layer][1][..., 3:] == 0).all()
    assert [tuple(state.shape) for state in output.encoder_hidden_states] == [(2, 6, 16)] * 3
    assert [tuple(state.shape) for state in output.decoder_hidden_states] == [(2, 5, 16)] * 3
    assert torch.equal(output.encoder_hidden_states[-1], output.encoder_last_hidden_state)
    assert difference(model.project(output.decoder_hidden_states[-1]), output.logits) < 1e-11
    assert (output.encoder_last_hidden_state[1, 3:] == 0).all()


def test_hidden_states_begin_with_the_embeddings():
    model = build(TransductForConditionalGeneration, tiny(positions="none", scale_embeddings=False))
    output = model(IDS, decoder_input_ids=TARGETS, output_hidden_states=True)
    assert torch.equal(output.encoder_hidden_states[0][0], model.get_input_embeddings()(IDS[0]))


def test_config_options_and_tuples():
    model = build(TransductForConditionalGeneration, tiny())
    inputs = dict(input_ids=IDS, decoder_input_ids=TARGETS)
    plain = model(**inputs, return_dict=False, use_cache=False)
    assert torch.equal(plain[0], model(**inputs).logits)
    assert len(plain) == 2  # logits and the encoder's states
    model.config.output_hidden_states = True
    assert model(**inputs).decoder_hidden_states is not None
    assert model(**inputs, output_hidden_states=False).decoder_hidden_states is None
    model.config.return_dict = False
    assert isinstance(model(**inputs), tuple)


def test_caches_on_request():
    model = build(TransductForConditionalGeneration, tiny())
    inputs = dict(input_ids=IDS, decoder_input_ids=TARGETS)
    assert model(**inputs).cache.get_seq_length() == 5
    assert model(**inputs, use_cache=False).cache is None
    assert model(input_ids=IDS, labels=TARGETS).cache is None
    model.config.use_cache = False
    assert model(**inputs).cache is None


@pairwise
@pytest.mark.parametrize("keep", [1, 3])
def test_the_last_logits_alone(choice, keep):
    model = build(TransductForConditionalGeneration, tiny(**choice))
    whole = model(IDS, decoder_input_ids=TARGETS, labels=TARGETS)
    some = model(IDS, decoder_input_ids=TARGETS, labels=TARGETS, logits_to_keep=keep)
    assert difference(some.logits, whole.logits[:, -keep:]) < 1e-11
    assert difference(some.loss, whole.loss) < 1e-11  # the loss is that of all targets
    language_model = build(TransductForCausalLM, tiny(**choice))
    whole, some = language_model(TARGETS, labels=TARGETS), language_model(TARGETS, labels=TARGETS, logits_to_keep=keep)
    assert difference(some.logits, whole.logits[:, -keep:]) < 1e-11
    assert difference(some.loss, whole.loss) < 1e-11


@pairwise
def test_embeddings_instead_of_ids(choice):
    model = build(TransductForConditionalGeneration, tiny(**choice))
    source, target = model.get_input_embeddings()(IDS), model.model.decoder.embed_tokens(TARGETS)
    want = model(IDS, attention_mask=MASK, decoder_input_ids=TARGETS).logits
    got = model(inputs_embeds=source, attention_mask=MASK, decoder_inputs_embeds=target).logits
    assert difference(got, want) < 1e-11
    states = model.get_encoder()(IDS, MASK)
    for encoder_outputs in (states, (states.last_hidden_state,)):
        got = model(encoder_outputs=encoder_outputs, attention_mask=MASK, decoder_input_ids=TARGETS).logits
        assert difference(got, want) < 1e-11


@pairwise
def test_masks_per_query(choice):
    """A 3-D or 4-D mask that says the same as a 2-D one gives the same; one that says more is obeyed."""
    model = build(TransductForConditionalGeneration, tiny(**choice))
    want = model(IDS, attention_mask=MASK, decoder_input_ids=TARGETS, decoder_attention_mask=TARGET_MASK).logits
    per_query = (MASK[:, :, None] * MASK[:, None]).bool()
    target_per_query = (TARGET_MASK[:, :, None] * TARGET_MASK[:, None]).bool()
    positions = (TARGET_MASK.cumsum(1) - 1).clamp(min=0)
    for source, target in ((per_query, target_per_query), (per_query[:, None], target_per_query[:, None])):
        got = model(
            IDS, attention_mask=source, decoder_input_ids=TARGETS, decoder_attention_mask=target, decoder_position_ids=positions
        ).logits
        assert difference(got[TARGET_MASK == 1], want[TARGET_MASK == 1]) < 1e-11
    only_itself = torch.eye(6).bool().expand(2, -1, -1)
    alone = model(IDS[:1, 2:3], position_ids=torch.tensor([[2]]), decoder_input_ids=TARGETS[:1]).encoder_last_hidden_state[0, 0]
    together = model(IDS, attention_mask=only_itself, decoder_input_ids=TARGETS).encoder_last_hidden_state[0, 2]
    assert difference(together, alone) < 1e-11


def test_an_encoder_without_layers_and_a_model_for_each_head():
    model = build(TransductForConditionalGeneration, tiny(encoder_layers=0))
    assert model(IDS, labels=TARGETS).loss.isfinite()
    assert model.generate(IDS, max_new_tokens=4, num_beams=2).shape[0] == 2
    assert build(TransductModel, tiny())(IDS, decoder_input_ids=TARGETS).last_hidden_state.shape == (2, 5, 16)
    assert build(TransductForMaskedLM, tiny())(IDS, labels=IDS).logits.shape == (2, 6, 23)


def test_a_decoder_without_layers_has_no_cache_to_count_its_steps():
    model = build(TransductForConditionalGeneration, tiny(decoder_layers=0))
    assert model(IDS, decoder_input_ids=TARGETS).cache is None
    with pytest.raises(ValueError, match="decoder_layers=0"):
        model.generate(IDS)
    assert model.generate(IDS, use_cache=False, max_new_tokens=3).shape == (2, 4)


def test_layer_drop_and_dropout_only_while_training():
    config = tiny(layer_drop=0.5, dropout=0.5, attention_dropout=0.5, activation_dropout=0.5, final_dropout=True)
    model = build(TransductForConditionalGeneration, config)
    with torch.no_grad():
        assert torch.equal(model(IDS, decoder_input_ids=TARGETS).logits, model(IDS, decoder_input_ids=TARGETS).logits)
        model.train()
        assert not torch.equal(model(IDS, decoder_input_ids=TARGETS).logits, model(IDS, decoder_input_ids=TARGETS).logits)
        for _ in range(10):
            assert model(IDS, decoder_input_ids=TARGETS, output_hidden_states=True).logits.isfinite().all()

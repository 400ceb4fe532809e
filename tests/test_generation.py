"""Every way of decoding behind plain `generate`: results checked against the model's own logits, not against itself."""

import logging
import threading
import warnings

import pytest
import torch
from transformers import TextIteratorStreamer, TextStreamer
from transformers.generation.streamers import BaseStreamer

from configs import END, PAD, SCHEMES, START, build, difference, name, pad_rows, tiny, words
from transduct import TransductForCausalLM, TransductForConditionalGeneration

every_scheme = pytest.mark.parametrize("choice", SCHEMES, ids=name)

SOURCES = [words(1, length, seed=length)[0] for length in (6, 3)]
IDS, MASK = pad_rows(SOURCES)


@pytest.fixture
def model():
    return build(TransductForConditionalGeneration, tiny())


def greedy_by_hand(model, source, prompt, new_tokens: int) -> list[int]:
    """The most likely next token, one full pass a step."""
    tokens = prompt.tolist()
    with torch.no_grad():
        for _ in range(new_tokens):
            logits = model(source[None], decoder_input_ids=torch.tensor([tokens]), use_cache=False).logits
            tokens.append(logits[0, -1].argmax().item())
            if tokens[-1] == END:
                break
    return tokens


def without_end(tokens: list[int], length: int) -> list[int]:
    """A generated row up to `length`, the rest being padding."""
    assert set(tokens[length:]) <= {PAD, END}
    return tokens[:length]


# ---- greedy, sampling, prompts ------------------------------------------------------------------------------------
@every_scheme
@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"use_cache": False}], ids=str)
def test_greedy(choice, options):
    model = build(TransductForConditionalGeneration, tiny(**choice))
    for side in ("left", "right"):
        ids, mask = pad_rows(SOURCES, side)
        rows = model.generate(ids, attention_mask=mask, max_new_tokens=9, **options).tolist()
        for row, source in zip(rows, SOURCES, strict=True):
            want = greedy_by_hand(model, source, torch.tensor([START]), 9)
            assert without_end(row, len(want)) == want


@every_scheme
@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"use_cache": False}], ids=str)
def test_prompts_of_different_lengths_are_separate_rows(choice, options):
    model = build(TransductForConditionalGeneration, tiny(**choice))
    prompts = [torch.tensor([START, 5, 6, 7]), torch.tensor([START, 9])]
    padded, prompt_mask = pad_rows(prompts, "left")
    inputs = dict(decoder_input_ids=padded, decoder_attention_mask=prompt_mask, max_new_tokens=6, **options)
    # transformers puts a start token before prompts that do not begin with one in every row; the mask hides it as well
    rows = model.generate(IDS, attention_mask=MASK, **inputs).tolist()
    for row, source, prompt in zip(rows, SOURCES, prompts, strict=True):
        want = greedy_by_hand(model, source, prompt, 6)
        start = len(row) - 6 - len(prompt)
        assert row[start : start + len(want)] == want
    beams = model.generate(IDS, attention_mask=MASK, num_beams=3, **inputs).tolist()
    for row, source, prompt in zip(beams, SOURCES, prompts, strict=True):
        own = model.generate(source[None], decoder_input_ids=prompt[None], num_beams=3, max_new_tokens=6)[0].tolist()
        start = next(place for place in range(3) if row[place : place + len(prompt)] == prompt.tolist())
        assert row[start : start + len(own)] == own


def test_sampling_follows_the_probabilities_and_the_seed(model):
    options = dict(do_sample=True, max_new_tokens=1, num_return_sequences=4000)
    torch.manual_seed(1)
    first = model.generate(IDS[:1], **options)
    torch.manual_seed(1)
    assert torch.equal(model.generate(IDS[:1], **options), first)
    torch.manual_seed(2)
    assert not torch.equal(model.generate(IDS[:1], **options), first)
    with torch.no_grad():
        want = model(IDS[:1], decoder_input_ids=torch.tensor([[START]])).logits[0, 0].softmax(-1)
    found = torch.bincount(first[:, 1], minlength=23) / 4000
    deviation = (want * (1 - want) / 4000).sqrt()
    assert ((found - want).abs() < 5 * deviation + 1e-3).all()


def test_prefixes_that_are_allowed(model):
    """Each source may only produce its own words, in greedy and beam search."""
    allowed = {0: [5, 6, 7], 1: [10, 11]}

    def only(batch: int, tokens: torch.Tensor) -> list[int]:
        return [END] if len(tokens) == 5 else allowed[batch]

    for options in ({}, {"num_beams": 3, "num_return_sequences": 2}):
        n = options.get("num_return_sequences", 1)
        rows = model.generate(IDS, attention_mask=MASK, prefix_allowed_tokens_fn=only, max_new_tokens=8, **options)
        for index, row in enumerate(rows.tolist()):
            assert set(row[1:5]) <= set(allowed[index // n])
            assert row[5] == END


# ---- outputs ------------------------------------------------------------------------------------------------------
@every_scheme
def test_scores_are_those_of_the_sequences(choice):
    """What beam search reports is the log-probability of a full pass over what it returns."""
    model = build(TransductForConditionalGeneration, tiny(**choice))
    for penalty in (0.0, 1.0):
        output = model.generate(
            IDS, attention_mask=MASK, num_beams=4, num_return_sequences=4, length_penalty=penalty, max_new_tokens=7,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        transitions = model.compute_transition_scores(output.sequences, output.scores, output.beam_indices)
        for index, tokens in enumerate(output.sequences):
            length = (output.beam_indices[index] >= 0).sum().item()
            source = SOURCES[index // 4]
            with torch.no_grad():
                log_probs = model(source[None], decoder_input_ids=tokens[None, :length]).logits[0].log_softmax(-1)
            own = log_probs.gather(1, tokens[1 : length + 1, None])[:, 0]
            assert (transitions[index, :length] - own).abs().max() < 1e-5
            assert abs(output.sequences_scores[index].item() - own.sum().item() / length**penalty) < 1e-5


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"cache_implementation": "static"}], ids=str)
def test_shapes_of_what_is_returned(model, options):
    beams = options.get("num_beams", 1)
    output = model.generate(
        IDS, attention_mask=MASK, max_new_tokens=4, min_new_tokens=4, return_dict_in_generate=True, output_scores=True,
        output_attentions=True, output_hidden_states=True, output_logits=True, **options,
    )  # fmt: skip
    assert output.sequences.shape == (2, 5)
    assert [score.shape for score in output.scores] == [(2 * beams, 23)] * 4
    assert [score.shape for score in output.logits] == [(2 * beams, 23)] * 4
    assert [tuple(weights.shape) for weights in output.encoder_attentions] == [(2, 4, 6, 6)] * 2
    assert [tuple(states.shape) for states in output.encoder_hidden_states] == [(2, 6, 16)] * 3
    for step in range(4):
        assert [tuple(weights.shape) for weights in output.cross_attentions[step]] == [(2 * beams, 4, 1, 6)] * 2
        keys = 4 if "cache_implementation" in options else step + 1
        assert [tuple(weights.shape) for weights in output.decoder_attentions[step]] == [(2 * beams, 4, 1, keys)] * 2
        assert [tuple(states.shape) for states in output.decoder_hidden_states[step]] == [(2 * beams, 1, 16)] * 3


def test_scores_of_two_vocabularies():
    """transformers divides flat indices by the vocabulary's size: it must be the target's."""
    model = build(TransductForConditionalGeneration, tiny(decoder_vocab_size=37, tie_embeddings="target_output"))
    options = dict(max_new_tokens=5, return_dict_in_generate=True, output_scores=True)
    output = model.generate(IDS, num_beams=3, length_penalty=0.0, **options)
    for normalize in (False, True):
        found = output.sequences, output.scores, output.beam_indices
        steps = model.compute_transition_scores(*found, normalize_logits=normalize)
        assert difference(steps.sum(1), output.sequences_scores) < 1e-5
    greedy = model.generate(IDS, **options)
    steps = model.compute_transition_scores(greedy.sequences, greedy.scores, normalize_logits=True)
    assert difference(steps[0, 0], greedy.scores[0][0].log_softmax(-1).max()) < 1e-5


class Words:
    """A tokenizer for streamers: token 7 is "w7 "."""

    def decode(self, tokens, **options) -> str:
        return "".join(f"w{int(token)} " for token in tokens)


class Collector(BaseStreamer):
    def __init__(self):
        self.tokens, self.ended = [], False

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.ended = True


def test_streaming(model, capsys):
    want = model.generate(IDS[:1], max_new_tokens=6)[0].tolist()
    collector = Collector()
    model.generate(IDS[:1], max_new_tokens=6, streamer=collector)
    assert collector.tokens == want
    assert collector.ended
    model.generate(IDS[:1], max_new_tokens=6, streamer=TextStreamer(Words()))
    assert capsys.readouterr().out.split() == [f"w{token}" for token in want]
    streamer = TextIteratorStreamer(Words(), timeout=60)
    thread = threading.Thread(target=model.generate, args=(IDS[:1],), kwargs=dict(max_new_tokens=6, streamer=streamer))
    thread.start()
    assert "".join(streamer).split() == [f"w{token}" for token in want]
    thread.join()


# ---- lengths ------------------------------------------------------------------------------------------------------
def endless(**choice):
    """A model that never ends a sentence."""
    model = build(TransductForConditionalGeneration, tiny(**choice, logits_bias=True))
    with torch.no_grad():
        model.lm_head.bias[END] = -1e4
    return model


@pytest.fixture
def messages():
    """What transformers logs, which does not reach the root logger."""
    found = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"cache_implementation": "static"}], ids=str)
def test_the_default_length_is_the_sources_plus_fifty(options, messages):
    model, prompt = endless(), torch.tensor([[START, 5]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for length in (1, 9, 40):
            assert model.generate(words(1, length), **options).shape == (1, 1 + length + 50)
            assert model.generate(words(1, length), decoder_input_ids=prompt, **options).shape == (1, 2 + length + 50)
    assert [message for message in messages if "max_" in message] == []
    model.generate(words(1, 4), max_length=9, max_new_tokens=3)
    assert any("max_length" in message for message in messages)  # the handler hears transformers


def test_the_default_length_ends_with_learned_positions():
    model = endless(positions="learned")
    assert model.generate(words(1, 9)).shape == (1, 60)
    assert model.generate(words(1, 40)).shape == (1, 65)  # 64 positions, and a last token that is never read
    assert model.generate(words(1, 40), decoder_input_ids=torch.tensor([[START, *range(3, 13)]])).shape == (1, 65)


def test_chosen_lengths_are_kept():
    model = endless()
    assert model.generate(words(1, 9), max_new_tokens=3).shape == (1, 4)
    assert model.generate(words(1, 9), max_length=20).shape == (1, 20)
    model.generation_config.max_length = 20
    assert model.generate(words(1, 9)).shape == (1, 20)
    model.generation_config.max_length = None
    model.generation_config.max_new_tokens = 5
    assert model.generate(words(1, 9)).shape == (1, 6)
    model.generation_config.max_new_tokens = None
    assert model.generate(words(1, 9)).shape == (1, 60)  # one call's default is not the next one's choice
    assert model.generate(words(1, 2)).shape == (1, 53)


def test_beyond_the_first_sinusoids(messages):
    short, long = (endless(max_positions=length) for length in (7, 100))
    for options in ({}, {"num_beams": 2}, {"cache_implementation": "static"}):
        assert torch.equal(short.generate(IDS, **options), long.generate(IDS, **options))
    assert not [message for message in messages if "maximum length" in message]  # sinusoids have none


# ---- inputs -------------------------------------------------------------------------------------------------------
@every_scheme
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_inferred(choice, side):
    model = build(TransductForConditionalGeneration, tiny(**choice))
    ids, mask = pad_rows(SOURCES, side, 3)
    for options in ({}, {"num_beams": 3}):
        want = model.generate(ids, attention_mask=mask, max_new_tokens=6, **options)
        assert torch.equal(model.generate(ids, max_new_tokens=6, **options), want)


@every_scheme
def test_encoder_outputs_and_embeddings_instead_of_ids(choice):
    model = build(TransductForConditionalGeneration, tiny(**choice))
    want = model.generate(IDS, attention_mask=MASK, max_new_tokens=6, num_beams=2, num_return_sequences=2)
    options = dict(attention_mask=MASK, max_new_tokens=6, num_beams=2, num_return_sequences=2)
    with torch.no_grad():
        states = model.get_encoder()(IDS, MASK)
        embeddings = model.get_input_embeddings()(IDS)
    assert torch.equal(model.generate(encoder_outputs=states, **options), want)
    assert torch.equal(model.generate(inputs_embeds=embeddings, **options), want)


def test_inference_mode(model):
    for options in ({}, {"num_beams": 3}, {"cache_implementation": "static"}):
        want = model.generate(IDS, max_new_tokens=6, **options)
        with torch.inference_mode():
            assert torch.equal(model.generate(IDS, max_new_tokens=6, **options), want)
        assert torch.equal(model.generate(IDS, max_new_tokens=6, **options), want)


def test_training_mode_without_dropout_generates_the_same(model):
    want = model.generate(IDS, max_new_tokens=6, num_beams=2)
    model.train()
    assert torch.equal(model.generate(IDS, max_new_tokens=6, num_beams=2), want)
    model.activation_checkpointing_enable()
    assert torch.equal(model.generate(IDS, max_new_tokens=6, num_beams=2), want)


@every_scheme
@pytest.mark.parametrize("same", [True, False], ids=["same", "other"])
def test_assisted_generation_is_greedy_generation(choice, same):
    model = build(TransductForConditionalGeneration, tiny(**choice))
    assistant = model if same else build(TransductForConditionalGeneration, tiny(decoder_layers=1), seed=5)
    for source in SOURCES:
        want = model.generate(source[None], max_new_tokens=12)
        assert torch.equal(model.generate(source[None], assistant_model=assistant, max_new_tokens=12), want)


def test_prompt_lookup_is_greedy_generation(model):
    want = model.generate(IDS[:1], max_new_tokens=12)
    assert torch.equal(model.generate(IDS[:1], prompt_lookup_num_tokens=3, max_new_tokens=12), want)


# ---- language models ----------------------------------------------------------------------------------------------
def continue_by_hand(model, text, prefix_mask, new_tokens: int) -> list[int]:
    tokens = text.tolist()
    for _ in range(new_tokens):
        options = {} if prefix_mask is None else {"prefix_mask": prefix_mask}
        with torch.no_grad():
            tokens.append(model(torch.tensor([tokens]), use_cache=False, **options).logits[0, -1].argmax().item())
        if tokens[-1] == END:
            break
    return tokens


@every_scheme
@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"use_cache": False}], ids=str)
@pytest.mark.parametrize("prefix", [False, True], ids=["causal", "prefix"])
def test_a_language_model_continues_left_padded_texts(choice, options, prefix):
    model = build(TransductForCausalLM, tiny(**choice))
    ids, mask = pad_rows(SOURCES, "left")
    more = {"prefix_mask": mask.bool()} if prefix else {}
    rows = model.generate(ids, attention_mask=mask, max_new_tokens=7, **options, **more).tolist()
    for row, text in zip(rows, SOURCES, strict=True):
        want = continue_by_hand(model, text, torch.ones(1, len(text)) if prefix else None, 7)
        start = len(ids[0]) - len(text)
        assert without_end(row[start:], len(want)) == want


@every_scheme
def test_beams_of_a_language_model(choice):
    model = build(TransductForCausalLM, tiny(**choice))
    ids, mask = pad_rows(SOURCES, "left")
    options = dict(num_beams=3, num_return_sequences=3, max_new_tokens=6, return_dict_in_generate=True, output_scores=True)
    for prefix in (False, True):
        output = model.generate(ids, attention_mask=mask, **({"prefix_mask": mask.bool()} if prefix else {}), **options)
        for row, text in enumerate(SOURCES):
            more = {"prefix_mask": torch.ones(1, len(text), dtype=torch.bool)} if prefix else {}
            own = model.generate(text[None], **more, **options)
            assert difference(output.sequences_scores[3 * row : 3 * row + 3], own.sequences_scores) < 1e-5
            width = own.sequences.shape[1]
            start = len(ids[0]) - len(text)
            assert output.sequences[3 * row : 3 * row + 3, start : start + width].tolist() == own.sequences.tolist()


def test_a_language_model_whose_stack_differs_from_the_encoders():
    config = tiny(
        encoder_layers=1,
        decoder_layers=3,
        num_heads=4,
        decoder_num_heads=2,
        decoder_vocab_size=29,
        tie_embeddings="target_output",
    )
    model = build(TransductForCausalLM, config)
    want = model.generate(IDS[:1], max_new_tokens=6, use_cache=False)
    for implementation in ("static", "dynamic"):
        assert torch.equal(model.generate(IDS[:1], max_new_tokens=6, cache_implementation=implementation), want)
    assert model.generate(IDS[:1], max_new_tokens=6, num_beams=2).shape[1] <= 12


def test_a_decoder_that_differs_from_the_encoder():
    config = tiny(
        encoder_layers=1, decoder_layers=3, decoder_num_heads=2, decoder_d_ff=40, decoder_vocab_size=29, tie_embeddings="none"
    )
    model = build(TransductForConditionalGeneration, config)
    want = model.generate(IDS, max_new_tokens=6, use_cache=False)
    for implementation in ("static", "dynamic"):
        assert torch.equal(model.generate(IDS, max_new_tokens=6, cache_implementation=implementation), want)
    grouped = build(TransductForConditionalGeneration, tiny(num_key_value_heads=2))
    want = grouped.generate(IDS, max_new_tokens=6, use_cache=False)
    for implementation in ("static", "dynamic"):
        assert torch.equal(grouped.generate(IDS, max_new_tokens=6, cache_implementation=implementation), want)


def test_the_default_length_of_a_language_model():
    model = build(TransductForCausalLM, tiny(logits_bias=True))
    with torch.no_grad():
        model.lm_head.bias[END] = -1e4
    assert model.generate(IDS[:1]).shape == (1, 6 + 6 + 50)

"""Sources of features: stems, padding, caches, gradients, bad inputs, and that such a model learns."""

from itertools import pairwise as neighbours

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForSpeechSeq2Seq

from configs import END, PAD, POSITIONS, SCHEMES, START, VOCABULARY, build, difference, name, tiny, words
from transduct import (
    TransductConfig,
    TransductEncoderModel,
    TransductForCausalLM,
    TransductForConditionalGeneration,
    TransductForMaskedLM,
    TransductForQuestionAnswering,
    TransductForSequenceClassification,
    TransductForTokenClassification,
    TransductModel,
)
from transduct.features import ConvStem, LinearStem

EXACT = 1e-11
SIZE = 5
STEMS = ("linear", "conv")
every_stem = pytest.mark.parametrize("stem", STEMS)
every_scheme = pytest.mark.parametrize("choice", SCHEMES, ids=name)
every_side = pytest.mark.parametrize("side", ["left", "right", "both"])


def config(stem: str = "linear", **overrides) -> TransductConfig:
    tie = "none" if overrides.get("tie_embeddings") in ("none", "source_target") else "target_output"
    return tiny(**dict(encoder_input="features", feature_size=SIZE, feature_stem=stem) | overrides | dict(tie_embeddings=tie))


def sound(length: int, seed: int = 0) -> torch.Tensor:
    """Frames (length, SIZE)."""
    return torch.randn(length, SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SOURCES = [sound(length, seed=length) for length in (9, 6, 1, 4)]
TARGETS = torch.cat([torch.full((4, 1), START), words(4, 4, seed=3)], dim=1)


def pad(rows: list[torch.Tensor], side: str, extra: int = 0, fill: float = 0.0) -> dict[str, torch.Tensor]:
    """Rows of frames (length, SIZE) of different lengths, padded to one batch."""
    length = max(len(row) for row in rows) + extra
    features = torch.full((len(rows), length, SIZE), fill, dtype=torch.float64)
    mask = torch.zeros(len(rows), length, dtype=torch.long)
    for index, row in enumerate(rows):
        start = {"right": 0, "left": length - len(row), "both": (length - len(row)) // 2}[side]
        features[index, start : start + len(row)] = row
        mask[index, start : start + len(row)] = 1
    return {"input_features": features, "attention_mask": mask}


def real_states(stem: str, side: str, mask: torch.Tensor) -> list[slice]:
    """Where the states of each row must lie, computed from the lengths alone."""
    slices = []
    for row in mask:
        start, length = int(row.argmax()), int(row.sum())
        slices.append(slice(start, start + length) if stem == "linear" else slice(start // 2, start // 2 + -(-length // 2)))
    return slices


# ---- stems --------------------------------------------------------------------------------------------------------
def test_the_linear_stem_is_a_projection():
    stem = LinearStem(SIZE, 6).double()
    want = SOURCES[0] @ stem.proj.weight.T + stem.proj.bias
    assert difference(stem(SOURCES[0][None])[0], want) < EXACT


def test_the_convolutional_stem_written_out():
    stem = ConvStem(SIZE, 6, activation="gelu").double()
    for frames in SOURCES:
        hidden = frames
        for conv, stride in ((stem.conv1, 1), (stem.conv2, 2)):
            padded = F.pad(hidden, (0, 0, 1, 1))
            windows = [padded[i : i + 3] for i in range(0, len(hidden), stride)]  # (3, channels) each
            hidden = torch.stack([F.gelu(torch.einsum("kc,dck->d", window, conv.weight) + conv.bias) for window in windows])
        assert difference(stem(frames[None])[0], hidden) < EXACT
        assert len(hidden) == stem.output_length(len(frames)) == -(-len(frames) // 2)


@pytest.mark.parametrize(
    ("mask", "states"),
    [([1, 1, 1, 1, 1], [1, 1, 1]), ([1, 1, 1, 0, 0], [1, 1, 0]), ([0, 1, 1, 1, 0], [1, 1, 0]), ([0, 0, 0, 1, 1], [0, 1, 0]),
     ([0, 0, 0, 0, 1], [0, 0, 1]), ([0, 0, 0, 0, 0], [0, 0, 0])],
)  # fmt: skip
def test_masks_after_a_stride_of_two(mask, states):
    assert ConvStem(SIZE, 6).output_mask(torch.tensor([mask]).bool()).int().tolist() == [states]


# ---- rule 2: padding changes nothing ------------------------------------------------------------------------------
@every_stem
@every_scheme
@every_side
@pytest.mark.parametrize("extra", [0, 1])
def test_padded_rows_are_the_rows_alone(stem, choice, side, extra):
    model = build(TransductForConditionalGeneration, config(stem, **choice))
    inputs = pad(SOURCES, side, extra, fill=7.0)
    with torch.no_grad():
        together = model(**inputs, decoder_input_ids=TARGETS, output_hidden_states=True)
        for row, where in enumerate(real_states(stem, side, inputs["attention_mask"])):
            alone = model(input_features=SOURCES[row][None], decoder_input_ids=TARGETS[row : row + 1], output_hidden_states=True)
            assert difference(together.logits[row], alone.logits[0]) < EXACT
            for padded, own in zip(together.encoder_hidden_states, alone.encoder_hidden_states, strict=True):
                assert difference(padded[row, where], own[0]) < EXACT
            rest = together.encoder_last_hidden_state[row].clone()
            rest[where] = 0
            assert (rest == 0).all()


@every_stem
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_nothing_that_stands_in_the_padding_is_read(stem, attention):
    model = build(TransductForConditionalGeneration, config(stem), attention=attention)
    for side in ("left", "right"):
        want = model(**pad(SOURCES, side), decoder_input_ids=TARGETS).logits
        got = model(**pad(SOURCES, side, fill=float("nan")), decoder_input_ids=TARGETS).logits
        assert torch.equal(got, want)
        got.sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@every_stem
def test_every_frame_counts(stem):
    model = build(TransductForConditionalGeneration, config(stem))
    inputs = pad(SOURCES[:2], "right")
    inputs["input_features"].requires_grad_()
    model(**inputs, decoder_input_ids=TARGETS[:2]).logits.square().sum().backward()
    moved = inputs["input_features"].grad.abs().amax(2) > 1e-9
    assert torch.equal(moved, inputs["attention_mask"].bool())


@every_stem
def test_the_layouts_are_one_another_transposed(stem):
    first, second = (build(TransductModel, config(stem, feature_layout=layout)) for layout in ("time_first", "channels_first"))
    inputs = pad(SOURCES, "left")
    want = first(**inputs, decoder_input_ids=TARGETS).last_hidden_state
    inputs["input_features"] = inputs["input_features"].transpose(1, 2)
    assert torch.equal(second(**inputs, decoder_input_ids=TARGETS).last_hidden_state, want)


@every_stem
def test_padding_that_is_seen_is_input(stem):
    model = build(TransductForConditionalGeneration, config(stem, feature_padding="seen"))
    inputs = pad(SOURCES, "right", fill=0.5)
    with torch.no_grad():
        got = model(**inputs, decoder_input_ids=TARGETS).logits
        assert torch.equal(got, model(input_features=inputs["input_features"], decoder_input_ids=TARGETS).logits)
        inputs["input_features"][2, -1] += 1
        assert (model(**inputs, decoder_input_ids=TARGETS).logits[2] - got[2]).abs().max() > 1e-6
    inputs["input_features"][2, -1] -= 1
    ids = model.generate(**inputs, max_new_tokens=4)
    assert ids.tolist() == model.generate(inputs["input_features"], max_new_tokens=4).tolist()


# ---- decoding -----------------------------------------------------------------------------------------------------
@every_stem
@every_scheme
def test_steps_with_a_cache_equal_one_pass(stem, choice):
    model = build(TransductForConditionalGeneration, config(stem, **choice))
    inputs = pad(SOURCES, "left")
    with torch.no_grad():
        whole = model(**inputs, decoder_input_ids=TARGETS).logits
        states = model.get_encoder()(**inputs)
        cache, pieces = None, []
        for start, end in neighbours((0, 2, 3, 5)):
            source = dict(encoder_outputs=states, attention_mask=inputs["attention_mask"])  # over frames, in every step
            output = model(**source, decoder_input_ids=TARGETS[:, start:end], cache=cache, use_cache=True)
            cache = output.cache
            pieces.append(output.logits)
    assert difference(torch.cat(pieces, 1), whole) < EXACT


@every_stem
@every_side
@pytest.mark.parametrize("options", [{}, {"num_beams": 4, "num_return_sequences": 2}], ids=["greedy", "beam"])
@pytest.mark.parametrize("layout", ["time_first", "channels_first"])
def test_generation_of_a_batch_is_that_of_its_rows(stem, side, options, layout):
    model = build(TransductForConditionalGeneration, config(stem, feature_layout=layout))

    def arranged(features):
        return features if layout == "time_first" else features.transpose(1, 2)

    inputs = pad(SOURCES, side, extra=1)
    inputs["input_features"] = arranged(inputs["input_features"])
    together = model.generate(**inputs, **options, max_new_tokens=8)
    rows = len(together) // 4
    for row, source in enumerate(SOURCES):
        alone = model.generate(input_features=arranged(source[None]), **options, max_new_tokens=8)
        for one, other in zip(together[rows * row :], alone, strict=False):
            ids = other.tolist()
            ids = ids[: ids.index(END) + 1] if END in ids else ids
            assert one.tolist()[: len(ids)] == ids


@every_stem
@pytest.mark.parametrize("layout", ["time_first", "channels_first"])
def test_a_default_length_follows_the_states_of_each_row(stem, layout):
    model = build(TransductForConditionalGeneration, config(stem, feature_layout=layout, max_positions=200))
    never = {"suppress_tokens": [PAD, END]}
    inputs = pad(SOURCES, "right", fill=1.0)
    if layout == "channels_first":
        inputs["input_features"] = inputs["input_features"].transpose(1, 2)
    states = [len(row) if stem == "linear" else -(-len(row) // 2) for row in SOURCES]
    ids = model.generate(**inputs, **never)
    assert [int((row != PAD).sum()) for row in ids] == [1 + count + 50 for count in states]
    assert model.generate(inputs["input_features"], **never).shape[1] == 1 + max(states) + 50  # no mask: all real


def test_beams_share_the_states_of_their_source():
    model = build(TransductForConditionalGeneration, config("conv"))
    seen = []
    model.get_decoder().register_forward_pre_hook(lambda _, arguments: seen.append(arguments[2].shape[0]))
    model.generate(**pad(SOURCES, "left"), num_beams=3, max_new_tokens=3)
    assert set(seen) == {4}


# ---- gradients ----------------------------------------------------------------------------------------------------
@every_stem
@every_side
@pytest.mark.parametrize("positions", POSITIONS)
def test_gradients_depend_on_the_examples_only(stem, side, positions):
    model = build(TransductForConditionalGeneration, config(stem, positions=positions, label_smoothing=0.1)).train()
    labels = TARGETS[:, 1:]

    def gradient(batches):
        model.zero_grad()
        for source, target in batches:
            model(**source, labels=target, num_items_in_batch=labels.numel()).loss.backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    want = gradient([({"input_features": row[None]}, labels[index : index + 1]) for index, row in enumerate(SOURCES)])
    got = gradient([(pad(SOURCES, side, extra=3), labels)])
    assert (got - want).norm() / want.norm() < 1e-9


@every_stem
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_no_gradient(stem, reentrant):
    model = build(TransductForConditionalGeneration, config(stem)).train()
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        model.zero_grad()
        model(**pad(SOURCES, "left"), labels=TARGETS[:, 1:]).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert difference(one, other) < EXACT


@pytest.mark.slow
@every_stem
def test_it_compiles_as_a_whole(stem):
    torch._dynamo.reset()
    model = build(TransductForConditionalGeneration, config(stem, encoder_layers=1, decoder_layers=1))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    inputs = pad(SOURCES, "left", fill=float("nan"))
    with torch.no_grad():
        want = model(**inputs, labels=TARGETS).logits
        assert difference(compiled(**inputs, labels=TARGETS).logits, want) < EXACT
    torch._dynamo.reset()


# ---- the classes --------------------------------------------------------------------------------------------------
@every_stem
def test_saving_and_loading(stem, tmp_path):
    model = build(TransductForConditionalGeneration, config(stem), dtype=torch.float32)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "features.py").is_file()
    again = AutoModelForSpeechSeq2Seq.from_pretrained(tmp_path)
    assert type(again) is TransductForConditionalGeneration
    assert again.main_input_name == "input_features"
    assert again.lm_head.weight is again.model.decoder.embed_tokens.weight
    for key, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor)
    encoder = TransductEncoderModel.from_pretrained(tmp_path).double()
    inputs = pad(SOURCES, "right")
    want = model.double()(**inputs, decoder_input_ids=TARGETS).encoder_last_hidden_state
    assert torch.equal(encoder(**inputs).last_hidden_state, want)


@every_stem
@pytest.mark.parametrize("layout", ["time_first", "channels_first"])
@pytest.mark.parametrize(
    "model_class",
    [TransductModel, TransductForConditionalGeneration, TransductEncoderModel, TransductForSequenceClassification,
     TransductForTokenClassification],
)  # fmt: skip
def test_dummy_inputs_fit(stem, layout, model_class):
    model = model_class(config(stem, feature_layout=layout))
    assert model.main_input_name == "input_features"
    inputs = model.dummy_inputs
    if model_class is TransductForSequenceClassification:
        del inputs["decoder_input_ids"]
    model(**inputs)


@every_stem
def test_a_label_of_the_whole_source(stem):
    model = build(TransductForSequenceClassification, config(stem, num_labels=3))
    logits = model(**pad(SOURCES, "left"), labels=torch.tensor([0, 2, 1, 0])).logits
    assert logits.shape == (4, 3)
    for row, source in enumerate(SOURCES):
        assert difference(model(input_features=source[None]).logits[0], logits[row]) < EXACT
    with pytest.raises(ValueError, match="makes decoder_input_ids itself"):
        model(input_features=SOURCES[0][None], decoder_input_ids=TARGETS[:1])


def test_a_label_of_each_state():
    model = build(TransductForTokenClassification, config("conv", num_labels=3))
    logits = model(**pad(SOURCES, "right"), labels=torch.zeros(4, 5, dtype=torch.long)).logits
    assert logits.shape == (4, 5, 3)


@pytest.mark.parametrize("model_class", [TransductForMaskedLM, TransductForQuestionAnswering])
def test_classes_that_need_text_refuse_features(model_class):
    with pytest.raises(ValueError, match=f'encoder_input="features" has no tokens that {model_class.__name__}'):
        model_class(config())


def test_the_decoder_alone_reads_tokens():
    model = build(TransductForCausalLM, config())
    assert model.main_input_name == "input_ids"
    assert model(TARGETS).logits.shape == (4, 5, VOCABULARY)
    assert model.generate(TARGETS, max_new_tokens=2).shape == (4, 7)


@pytest.mark.parametrize("tie", ["target_output", "none"])
def test_resizing_the_vocabulary(tie):
    model = build(TransductForConditionalGeneration, config(tie_embeddings=tie))
    with torch.no_grad():
        want = model(**pad(SOURCES, "left"), decoder_input_ids=TARGETS).logits
    resized = model.resize_token_embeddings(VOCABULARY + 4)
    assert resized is model.get_input_embeddings() is model.model.decoder.embed_tokens
    assert model.config.vocab_size == VOCABULARY + 4
    assert (model.lm_head.weight is resized.weight) == (tie == "target_output")
    with torch.no_grad():
        got = model(**pad(SOURCES, "left"), decoder_input_ids=TARGETS).logits
    assert got.shape[-1] == VOCABULARY + 4
    assert difference(got[..., :VOCABULARY], want) < EXACT
    with pytest.raises(ValueError, match="share a vocabulary"):
        model.resize_decoder_token_embeddings(9)


def test_only_tokens_are_scaled():
    plain, scaled = (build(TransductModel, config(scale_embeddings=scale)) for scale in (False, True))
    inputs = {"input_features": SOURCES[0][None], "decoder_input_ids": TARGETS[:1]}
    one, other = plain(**inputs), scaled(**inputs)
    assert torch.equal(one.encoder_last_hidden_state, other.encoder_last_hidden_state)
    assert difference(one.last_hidden_state, other.last_hidden_state) > 1e-3


# ---- bad input ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"feature_size": None}, "feature_size=None is needed"),
        ({"tie_embeddings": "all"}, "tie_embeddings='all' must be"),
        ({"tie_embeddings": "source_target"}, "no embedding to tie"),
        ({"decoder_vocab_size": 9}, "decoder_vocab_size=9 must be None"),
        ({"feature_activation": "gelo"}, "feature_activation='gelo' must be one of"),
        ({"feature_stem": "pool"}, "feature_stem"),
        ({"feature_layout": "rows"}, "feature_layout"),
        ({"feature_padding": "ignored"}, "feature_padding"),
        ({"encoder_input": "tokens"}, "feature_size=5 belongs to"),
    ],
)
def test_configs_that_cannot_be(overrides, message):
    given = dict(encoder_input="features", feature_size=SIZE, feature_stem="conv", tie_embeddings="none")
    with pytest.raises(ValueError, match=message):
        tiny(**given | overrides)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "exactly one of input_features and inputs_embeds"),
        ({"input_features": torch.zeros(1, 4, SIZE), "inputs_embeds": torch.zeros(1, 4, 16)}, "exactly one of"),
        ({"input_ids": torch.ones(1, 4, dtype=torch.long)}, "pass input_features, not input_ids"),
        ({"input_features": torch.zeros(1, 4, SIZE, dtype=torch.long)}, "floating-point numbers, not torch.int64"),
        ({"input_features": torch.zeros(4, SIZE)}, r"\(rows, frames, 5\) .* not of shape \(4, 5\)"),
        ({"input_features": torch.zeros(1, 4, 6)}, "not of shape"),
        ({"input_features": torch.zeros(1, SIZE, 4)}, "transpose it, or set the config's feature_layout"),
        ({"input_features": torch.zeros(1, 0, SIZE)}, "non-empty batch"),
        ({"input_features": torch.full((1, 4, SIZE), float("inf"))}, "row 0 holds NaN or infinite numbers"),
        ({"input_features": torch.zeros(1, 4, SIZE), "attention_mask": torch.ones(1, 3)}, "covers 3 tokens, but there are 4"),
        (
            {"input_features": torch.zeros(1, 4, SIZE), "attention_mask": torch.ones(1, 4, 4).bool().tril()},
            "must be .rows, frames",
        ),
        ({"input_features": torch.zeros(1, 4, SIZE), "segment_ids": torch.ones(1, 4, dtype=torch.long)}, "cannot be packed"),
        ({"input_features": torch.zeros(1, 200, SIZE)}, "exceeds max_positions=64"),
    ],
)
def test_sources_that_are_none(inputs, message):
    model = TransductForConditionalGeneration(config("conv", positions="learned"))
    with pytest.raises(ValueError, match=message):
        model(**inputs, decoder_input_ids=TARGETS[:1])


def test_models_of_tokens_refuse_features():
    model = TransductForConditionalGeneration(tiny())
    with pytest.raises(ValueError, match='input_features are for encoder_input="features"'):
        model(input_features=torch.zeros(1, 4, SIZE), decoder_input_ids=TARGETS[:1])


def test_a_mask_per_query_with_a_linear_stem():
    """Each state sees itself and those before it: changing the last frame moves no earlier state."""
    model = build(TransductEncoderModel, config())
    features = SOURCES[0][None].clone()
    mask = torch.ones(1, 9, 9).bool().tril()
    before = model(input_features=features, attention_mask=mask).last_hidden_state
    features[0, -1] += 1
    after = model(input_features=features, attention_mask=mask).last_hidden_state
    assert torch.equal(after[0, :-1], before[0, :-1])
    assert not torch.equal(after[0, -1], before[0, -1])


@every_stem
def test_features_take_the_type_of_the_weights(stem):
    model = build(TransductModel, config(stem), dtype=torch.float32)
    output = model(**pad(SOURCES, "left"), decoder_input_ids=TARGETS)  # float64 in
    assert output.last_hidden_state.dtype == torch.float32


# ---- initialisation and learning ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("stem", "initializer", "std"),
    [("linear", "normal", 0.02), ("linear", "t5", None), ("linear", "xavier", None),
     ("conv", "normal", 0.02), ("conv", "t5", None), ("conv", "xavier", None)],
)  # fmt: skip
def test_initialisation_of_the_stem(stem, initializer, std):
    model = TransductModel(config(stem, d_model=64, feature_size=80, initializer=initializer))
    for layer in model.encoder.stem.children():
        if not hasattr(layer, "weight"):
            continue
        fan_in = layer.weight[0].numel()
        fan_out = layer.weight.numel() // layer.weight.shape[1]
        want = {"t5": fan_in**-0.5, "xavier": (2 / (fan_in + fan_out)) ** 0.5}.get(initializer, std)
        assert abs(layer.weight.std().item() / want - 1) < 0.05
        assert (layer.bias == 0).all()


@pytest.mark.slow
def test_it_learns_to_name_what_comes_in():
    """Each frame is a noisy copy of one of four patterns; the target names them in order."""
    generator = torch.Generator().manual_seed(1)
    patterns = torch.randn(4, SIZE, generator=generator)
    model = TransductForConditionalGeneration(config(d_model=32, d_ff=64, norm_position="pre"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

    def batch(rows: int):
        names = torch.randint(4, (rows, 5), generator=generator)
        features = patterns[names] + 0.1 * torch.randn(rows, 5, SIZE, generator=generator)
        return features, torch.cat([names + 3, torch.full((rows, 1), END)], dim=1)

    for _ in range(250):
        features, labels = batch(32)
        optimizer.zero_grad()
        model(input_features=features, labels=labels).loss.backward()
        optimizer.step()
    features, labels = batch(50)
    ids = model.eval().generate(features, max_new_tokens=6)
    assert (ids[:, 1:] == labels).float().mean() > 0.95

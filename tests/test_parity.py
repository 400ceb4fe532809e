"""Transduct is T5 1.0, T5 1.1, BART and Marian of transformers: the same logits, gradients and generated ids."""

import pytest
import torch

from published import FAMILIES, VOCABULARY, float64_norms, our_name, pair

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def batch(config, seed: int = 0, lengths=(9, 5, 2), target: int = 6):
    """Ids without special tokens, right-padded sources, a decoder start and labels with ignored ends."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY - 1, (len(lengths), max(lengths)), generator=generator)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    ids = ids.masked_fill(mask == 0, config.pad_token_id)
    labels = torch.randint(3, VOCABULARY - 1, (len(lengths), target), generator=generator)
    labels[1, 4:] = -100
    labels[2, 2:] = -100
    return {"input_ids": ids, "attention_mask": mask}, labels


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_logits(family, dtype, attention, monkeypatch):
    if dtype == torch.float64:
        float64_norms(monkeypatch)
    theirs, ours = pair(family, dtype=dtype, attention=attention)
    source, labels = batch(ours.config)
    decoder_ids = ours.prepare_decoder_input_ids_from_labels(labels)
    with torch.no_grad():
        want = theirs(**source, decoder_input_ids=decoder_ids).logits
        got = ours(**source, decoder_input_ids=decoder_ids).logits
    assert want.abs().max() > 1
    assert (got - want).abs().max() <= TOLERANCE[dtype] * want.abs().max().clamp(min=1)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_gradients_of_every_weight(family, dtype, training, monkeypatch):
    if dtype == torch.float64:
        float64_norms(monkeypatch)
    theirs, ours = pair(family, dtype=dtype)
    source, labels = batch(ours.config)
    for model in (theirs, ours):
        model.train(training)
        model(**source, labels=labels).loss.backward()
    assert ours.model.encoder.embed_tokens.weight.grad.abs().sum() > 0
    mine = {name: weight.grad for name, weight in ours.named_parameters(remove_duplicate=False)}
    compared = set()
    largest = max(weight.grad.abs().max() for weight in theirs.parameters() if weight.requires_grad)
    for name, weight in theirs.named_parameters(remove_duplicate=False):
        renamed = our_name(family, name)
        if renamed is not None:
            scale = max(weight.grad.abs().max(), largest / 100)  # the gradient of a key's bias is zero but for rounding
            error = (mine[renamed] - weight.grad).abs().max() / scale
            assert error <= TOLERANCE[dtype] * 10, (name, error)
            compared.add(renamed)
    assert set(mine) - compared <= {"lm_head.bias"}  # a buffer there, a trained weight here


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 4},
        {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.6},
        {"do_sample": True, "num_return_sequences": 2},
    ],
    ids=["greedy", "beam", "n-best", "sampling"],
)
def test_generated_ids(family, options, attention):
    for seed in range(3):
        theirs, ours = pair(family, seed=seed, attention=attention)
        source, _ = batch(ours.config, seed)
        torch.manual_seed(seed)
        want = theirs.generate(**source, max_new_tokens=12, **options)
        torch.manual_seed(seed)
        got = ours.generate(**source, max_new_tokens=12, **options)
        assert got.tolist() == want.tolist()


def test_left_padded_sources_are_the_unpadded_ones(family, monkeypatch):
    """T5 of transformers agrees with its own unpadded rows; BART and Marian do not, since their positions are not shifted."""
    float64_norms(monkeypatch)
    theirs, ours = pair(family, dtype=torch.float64)
    source, labels = batch(ours.config)
    decoder_ids = ours.prepare_decoder_input_ids_from_labels(labels)
    flipped = {name: value.clone() for name, value in source.items()}
    lengths = source["attention_mask"].sum(1).tolist()
    for row, length in enumerate(lengths):
        for value in flipped.values():
            value[row] = value[row].roll(value.shape[1] - length)
    with torch.no_grad():
        got = ours(**flipped, decoder_input_ids=decoder_ids).logits
        for row, length in enumerate(lengths):
            alone = ours(source["input_ids"][row : row + 1, :length], decoder_input_ids=decoder_ids[row : row + 1]).logits
            assert (got[row] - alone[0]).abs().max() < 1e-12
        want = theirs(**source, decoder_input_ids=decoder_ids).logits
    assert (got - want).abs().max() < 1e-10


def test_left_padded_prefixes_are_the_unpadded_ones(family):
    _, ours = pair(family, dtype=torch.float64)
    source, _ = batch(ours.config)
    start = ours.config.decoder_start_token_id
    prefixes = [[start, 5, 6, 7], [start, 9], [start]]
    pad = ours.config.pad_token_id
    padded = torch.tensor([[pad] * (4 - len(prefix)) + prefix for prefix in prefixes])
    mask = torch.tensor([[0] * (4 - len(prefix)) + [1] * len(prefix) for prefix in prefixes])
    with torch.no_grad():
        together = ours(**source, decoder_input_ids=padded, decoder_attention_mask=mask).logits
        for row, prefix in enumerate(prefixes):
            own = {name: value[row : row + 1] for name, value in source.items()}
            alone = ours(**own, decoder_input_ids=torch.tensor([prefix])).logits
            assert (together[row, -len(prefix) :] - alone[0]).abs().max() < 1e-12

"""What is never allocated: logits of all targets while training, and a source's keys and values per beam while generating.

`Largest` sees every tensor that an operation returns, with its shape; the profiler also sees what operations allocate inside.
"""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tiny_training import tiny_model
from transduct import TransductConfig, TransductForCausalLM, TransductForMaskedLM
from transduct.loss import CHUNK_TOKENS

WORDS = 5000
ROWS, SOURCE, TARGETS = 6, 20, 100
CHUNK = CHUNK_TOKENS * WORDS
FLOAT32 = 4  # bytes


class Largest(TorchDispatchMode):
    """Notes the shape of the largest floating-point tensor that any operation returned."""

    def __init__(self):
        super().__init__()
        self.shape = torch.Size([0])

    @property
    def numel(self) -> int:
        return self.shape.numel()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.numel() > self.numel:
                self.shape = leaf.shape
        return result


def allocated(function) -> tuple[float, float]:
    """The most float32 numbers that `function` held at a time, and the most that it allocated at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    held = most = once = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most, once = max(most, held), max(once, event.nbytes())
    assert most > 0
    return most / FLOAT32, once / FLOAT32


def batch(targets: int = TARGETS) -> dict[str, torch.Tensor]:
    """Rows with all targets, and one that ends early."""
    labels = torch.randint(3, WORDS, (ROWS, targets))
    labels[0, targets // 2 :] = -100
    return dict(input_ids=torch.randint(3, WORDS, (ROWS, SOURCE)), labels=labels)


def step(model, inputs, **options):
    """A training step without the update, as a function of no arguments."""

    def run():
        model(**inputs, **options).loss.backward()
        model.zero_grad()

    return run


LOSSES = [{}, dict(label_smoothing=0.1), dict(label_smoothing=0.1, z_loss=1e-4, logits_bias=True)]


@pytest.mark.parametrize("fields", LOSSES, ids=str)
@pytest.mark.parametrize("tie", ["all", "none"])
def test_training_never_holds_all_logits(fields, tie):
    run = step(tiny_model(vocab_size=WORDS, tie_embeddings=tie, **fields).train(), batch())
    with Largest() as largest:
        run()
    assert largest.numel <= CHUNK, largest.shape
    most, once = allocated(run)
    assert once <= CHUNK
    assert most < 5 * CHUNK


def test_with_logits_asked_for_they_are_whole():
    """Or else the test above would not see them."""
    inputs = batch()
    run = step(tiny_model(vocab_size=WORDS).train(), inputs, return_logits=True)
    with Largest() as largest:
        run()
    assert largest.numel == ROWS * TARGETS * WORDS
    most, once = allocated(run)
    assert once >= ROWS * TARGETS * WORDS
    assert most > 2 * ROWS * TARGETS * WORDS


def test_more_targets_need_no_more_logits():
    """Each further target needs states of the layers only, a hundredth of its logits."""
    model = tiny_model(vocab_size=WORDS).train()
    few, many = (allocated(step(model, batch(targets)))[0] for targets in (50, 250))
    more = ROWS * 200
    assert many - few < more * WORDS / 2
    assert many < 7 * CHUNK


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16], ids=str)
def test_mixed_precision_holds_no_more(precision):
    model = tiny_model(vocab_size=WORDS, label_smoothing=0.1).train()
    inputs = batch()

    def run():
        with torch.autocast("cpu", precision):
            loss = model(**inputs).loss
        loss.backward()
        model.zero_grad()

    with Largest() as largest:
        run()
    assert largest.numel <= CHUNK, largest.shape
    assert allocated(run)[1] <= CHUNK


@pytest.mark.parametrize("model_class", [TransductForCausalLM, TransductForMaskedLM])
def test_models_of_one_stack_neither(model_class):
    sizes = dict(vocab_size=WORDS, d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=1)
    model = model_class(TransductConfig(**sizes)).train()
    ids = torch.randint(3, WORDS, (ROWS, TARGETS))
    with Largest() as largest:
        step(model, dict(input_ids=ids, labels=ids))()
    assert largest.numel <= CHUNK, largest.shape


# ---- generation --------------------------------------------------------------------------------------------------------------

BEAMS, LONG = 8, 1000
DECODINGS = {
    "beams": dict(num_beams=BEAMS),
    "all beams": dict(num_beams=BEAMS, num_return_sequences=BEAMS),
    "samples": dict(do_sample=True, num_return_sequences=BEAMS),
}


def decode(model, source: torch.Tensor, **options):
    return model.generate(source, max_new_tokens=4, min_new_tokens=4, return_dict_in_generate=True, **options)


@pytest.mark.parametrize("positions", ["sinusoidal", "relative_bias", "alibi"])
@pytest.mark.parametrize("options", DECODINGS.values(), ids=DECODINGS)
def test_beams_and_samples_share_the_keys_and_values_of_their_source(positions, options):
    model = tiny_model(positions=positions, dropout=0.0).eval()
    source = torch.randint(3, 20, (3, LONG))
    source[1, LONG // 2 :] = 0  # padding
    cache = decode(model, source, **options).cache
    for layer in cache.cross_attention_cache.layers:
        assert layer.keys.shape == layer.values.shape == (3, 2, LONG, 8)
    for layer in cache.self_attention_cache.layers:
        assert layer.keys.shape[0] == 3 * BEAMS


@pytest.mark.parametrize("positions", ["sinusoidal", "relative_bias", "alibi"])
@pytest.mark.parametrize("options", DECODINGS.values(), ids=DECODINGS)
def test_nothing_of_the_source_is_repeated_per_beam_even_for_a_moment(positions, options):
    """The largest tensor of the whole search is no larger than the sources' states."""
    model = tiny_model(positions=positions, dropout=0.0).eval()
    source = torch.randint(3, 20, (3, LONG))
    source[1, LONG // 2 :] = 0  # padding
    with torch.no_grad():
        states = model.model.encoder(source)
    with Largest() as largest:
        decode(model, source, attention_mask=(source != 0).long(), encoder_outputs=states, **options)
    assert largest.numel == 3 * LONG * 16, largest.shape  # (B, S, D)

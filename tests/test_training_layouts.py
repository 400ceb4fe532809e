"""Memory by layout: the published figures of ZeRO, and what autograd keeps under autocast."""

import dataclasses

import pytest
import torch

from test_accounting import kept_for_backward
from transduct.accounting import describe
from transduct.configuration import TransductConfig
from transduct.modeling import TransductForConditionalGeneration
from transduct.presets import config_from_preset
from transduct.training.layouts import LAYOUTS, Needs, autocast_extra_bytes, layout_memory, needs

ZERO_EXAMPLE = Needs(
    parameters=7_500_000_000,
    trained=7_500_000_000,
    matrices=0,
    outside_layers=0,
    largest_layer=0,
    optimizer=8 * 7_500_000_000,
    activations=0,
    autocast_extra=0,
    averages=0,
    half=True,
)


PUBLISHED = [("zero1", 64, 31.4), ("zero2", 64, 16.6), ("fsdp", 64, 1.875), *((layout, 1, 120) for layout in LAYOUTS)]


@pytest.mark.parametrize(("layout", "devices", "gigabytes"), PUBLISHED)
def test_model_states_are_those_of_the_paper(layout, devices, gigabytes):
    """ZeRO (arXiv 1910.02054), figure 1: 7.5 billion parameters, Adam in mixed precision, 1 and 64 devices; it prints 1.9."""
    memory = layout_memory(layout, ZERO_EXAMPLE, devices)
    assert (memory.parameters + memory.gradients + memory.optimizer) / 1e9 == pytest.approx(gigabytes, rel=0.005)


def test_float32_states_take_sixteen_bytes_a_parameter():
    need = needs(TransductConfig(), (1, 8, 8), "adamw", None, False)
    for layout in LAYOUTS:
        memory = layout_memory(layout, need, 1)
        assert memory.parameters + memory.gradients + memory.optimizer == 16 * need.parameters
    assert layout_memory("ddp", need, 1).working == layout_memory("ddp", need, 2).working == 0


def test_shares_cover_the_whole():
    need = dataclasses.replace(ZERO_EXAMPLE, parameters=10, trained=7, optimizer=50)
    for layout, parts in (("zero1", ["optimizer"]), ("zero2", ["optimizer", "gradients"]), ("fsdp", ["parameters", "gradients"])):
        one, three = (layout_memory(layout, need, devices) for devices in (1, 3))
        for part in parts:
            assert getattr(one, part) <= 3 * getattr(three, part) < getattr(one, part) + 3


def test_what_fits_is_told_with_the_difference():
    need = needs(TransductConfig(), (4, 8, 8), "adamw", None, False)
    total = layout_memory("ddp", need, 1).total
    for available, spare in ((total, 0), (total + 5, 5), (total - 3, -3)):
        memory = layout_memory("ddp", need, 1, available)
        assert (memory.spare, memory.fits) == (spare, spare >= 0)
    assert layout_memory("ddp", need, 1).fits is None


def test_an_unknown_layout_is_refused():
    with pytest.raises(ValueError, match="layout='tensor' must be one of ddp, zero1, zero2, fsdp"):
        layout_memory("tensor", ZERO_EXAMPLE, 2)


def test_units_of_fsdp_are_those_of_the_model():
    config = config_from_preset("t5-v1.1-small")
    need = needs(config, (1, 8, 8), "adamw", None, False)
    with torch.device("meta"):
        model = TransductForConditionalGeneration(config)
    layers = [*model.model.encoder.layers, *model.model.decoder.layers]
    sizes = [sum(parameter.numel() for parameter in layer.parameters()) for layer in layers]
    assert need.largest_layer == pytest.approx(max(sizes), rel=0.01)
    assert need.outside_layers == pytest.approx(need.parameters - sum(sizes), rel=0.01)
    assert need.parameters == sum(parameter.numel() for parameter in model.parameters())


AUTOCAST = {
    "post": {},
    "pre": dict(norm_position="pre"),
    "T5 1.1": dict(
        norm_position="pre", norm="rmsnorm", gated_ffn=True, activation="gelu_new", attention_bias=False, ffn_bias=False
    ),
    "BART": dict(embedding_norm=True, activation="gelu"),
    "more decoder": dict(encoder_layers=1, decoder_layers=4),
}


def autocast_activations(model: TransductForConditionalGeneration, source: torch.Tensor, target: torch.Tensor) -> int:
    """Bytes that autograd keeps for the backward pass, autocast's copies of the weights apart."""
    kept = []

    def pack(tensor):
        kept.append(tensor)
        return tensor

    with torch.autocast("cpu", torch.bfloat16):
        total = kept_for_backward(model, {"input_ids": source}, target)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(input_ids=source, decoder_input_ids=target)
    tokens = {source.numel(), target.numel()}
    copies = {
        t.untyped_storage().data_ptr(): t for t in kept if t.dtype == torch.bfloat16 and t.ndim == 2 and t.shape[0] not in tokens
    }
    return total - sum(tensor.untyped_storage().nbytes() for tensor in copies.values())


@pytest.mark.parametrize("name", AUTOCAST)
def test_autocast_keeps_what_is_counted(name):
    sizes = dict(vocab_size=23, d_model=64, d_ff=256, num_heads=4, encoder_layers=2, decoder_layers=3, dropout=0.0)
    config = TransductConfig(**{**sizes, **AUTOCAST[name]})
    config._attn_implementation = "sdpa"
    model = TransductForConditionalGeneration(config).train()
    rows, source, target = 4, 30, 23
    found = autocast_activations(model, torch.full((rows, source), 3), torch.full((rows, target), 3))
    described = describe(config, batch_size=rows, source_length=source, target_length=target, dtype="bfloat16")
    parts = described.activation_bytes_by_part
    expected = parts["encoder"] + parts["decoder"] + autocast_extra_bytes(config, (rows * source, rows * target), False)
    assert expected == pytest.approx(found, rel=0.05)


def test_checkpointing_keeps_less():
    config = config_from_preset("t5-base")
    plain, checkpointed = (autocast_extra_bytes(config, (1000, 1000), checkpointing) for checkpointing in (False, True))
    assert checkpointed < plain / 3

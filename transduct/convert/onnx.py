"""Our models as two graphs for ONNX Runtime, by transformers' exporter: the encoder, and a step of the decoder with its cache.

transformers' `export_for_generation` traces `forward`, whose cache of preallocated buffers has no counterpart in a graph; its
`export` takes any module, so what is exported here is two modules that hold parts of the model:

- `EncoderGraph`: ids and mask to the keys and values of every layer's cross-attention;
- `DecoderStep`: the next token of N beams for each of B sources, which share those keys and values; the keys and values of the
  tokens so far come in, those of the new token go out.

`decoding/onnx_engine.py` runs them. Positions that are computed here are a table in the graph, as long as `most_positions` says.
"""

import copy
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicLayer

from transduct.attention import AttentionContext
from transduct.cache import TransductCache
from transduct.convert.engine_folders import Exported, write_engine_folder
from transduct.convert.memory import quiet
from transduct.decoding.ctranslate2_engine import most_positions
from transduct.modeling import TransductForConditionalGeneration
from transduct.packages import require
from transduct.positions import SinusoidalPositions

SAMPLE = {"sources": 3, "source length": 7, "beams": 2, "past": 5}
"""Sizes of the inputs that are traced; all are different, so that none is taken for another."""


class EncoderGraph(nn.Module):
    """Ids (B, S) and mask (B, S) to keys and values (B, G, S, K) of each decoder layer's cross-attention."""

    def __init__(self, model: TransductForConditionalGeneration):
        super().__init__()
        self.encoder = model.model.encoder
        self.layers = model.model.decoder.layers

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, list[torch.Tensor]]:
        states = self.encoder(input_ids, attention_mask).last_hidden_state  # (B, S, D)
        attentions: list[Any] = [layer.cross_attention for layer in self.layers]
        pairs = [attention._project_memory(states, None) for attention in attentions]
        return {"cross_keys": [key for key, _ in pairs], "cross_values": [value for _, value in pairs]}


class DecoderStep(nn.Module):
    """One token for each of N beams of B sources, given T tokens before it.

    Inputs: ids (B, N), the sources' mask (B, S), keys and values (B, N, G, T, K) of each layer, cross keys and values
    (B, G, S, K). Outputs: logits (B, N, V), keys and values (B, N, G, 1, K) of the new tokens.
    """

    def __init__(self, model: TransductForConditionalGeneration):
        super().__init__()
        self.stack = model.model.decoder
        self.lm_head = model.lm_head
        self.scale = model.config.d_model**-0.5 if model.config.scale_logits else 1.0

    def forward(
        self,
        decoder_input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
        cross_keys: list[torch.Tensor],
        cross_values: list[torch.Tensor],
    ) -> dict[str, Any]:
        stack, past = self.stack, keys[0].shape[3]
        sources, beams = decoder_input_ids.shape
        cache = _cache([each.flatten(0, 1) for each in keys], [each.flatten(0, 1) for each in values], cross_keys, cross_values)
        position = torch.arange(1)[None] + past  # (1, 1)
        hidden = stack.add_positions(stack.embed_tokens(decoder_input_ids.reshape(-1, 1)), position, None)  # (B*N, 1, D)
        slots = torch.arange(past + 1)[None]  # (1, T + 1)
        context = stack.self_context(None, False, position, positions=(position, slots))
        cross = AttentionContext(mask=attention_mask.bool()[:, None, None], implementation=stack.implementation)
        memory = cross_keys[0].new_zeros(
            cross_keys[0].shape[0], cross_keys[0].shape[2], hidden.shape[-1]
        )  # of which the cache knows
        hidden, _ = stack.run_layers(hidden, None, False, memory, context, cross, context.mask, cache=cache)
        logits = self.lm_head(hidden * self.scale)[:, 0].unflatten(0, (sources, beams))  # (B, N, V)
        layers = cache.self_attention_cache.layers
        return {
            "logits": logits,
            "new_keys": [layer.keys[:, :, -1:].unflatten(0, (sources, beams)) for layer in layers],
            "new_values": [layer.values[:, :, -1:].unflatten(0, (sources, beams)) for layer in layers],
        }


def _cache(keys: list, values: list, cross_keys: list, cross_values: list) -> TransductCache:
    """A cache that holds these tensors, the source's among them."""
    own, cross = (Cache(layer_class_to_replicate=DynamicLayer) for _ in range(2))
    for index, layer in enumerate(zip(keys, values, cross_keys, cross_values, strict=True)):
        own.update(*layer[:2], index)
        cross.update(*layer[2:], index)
    cache = TransductCache(own, cross)
    cache.is_updated = dict.fromkeys(range(len(keys)), True)
    return cache


def to_onnx(model: TransductForConditionalGeneration, tokenizer: Any, folder: str | Path) -> Exported:
    """Write a model and its tokenizer as graphs for ONNX Runtime, and compare what they compute with the model.

    Args:
        model: ours, whose weights are written in float32.
        tokenizer: its own, whose files are put beside the graphs; None: none are.
        folder: to write; it must not hold anything yet.

    Returns:
        What was written, and how closely it agrees.

    Raises:
        ValueError: for a model of another class, a source of features, no decoder layer, and where the graphs do not give our
            log-probabilities and answers.
        ImportError: where `onnx`, `onnxscript` or `onnxruntime` is missing.
    """
    require("to_onnx", "onnx", "onnxscript", "onnxruntime")
    if not isinstance(model, TransductForConditionalGeneration):
        raise ValueError(f"model is a {type(model).__name__}, and only TransductForConditionalGeneration is written as ONNX")
    for name, wrong in (
        ("encoder_input", model.config.encoder_input != "tokens"),
        ("decoder_layers", not model.config.decoder_layers),
    ):
        if wrong:
            raise ValueError(
                f"{name}={getattr(model.config, name)!r} is not written as ONNX: a source of tokens and a decoder are"
            )

    def write(part: Path) -> None:
        with quiet(), redirect_stdout(StringIO()):  # torch prints each of its steps
            export_graphs(model).save_pretrained(part)

    return write_engine_folder("onnx", model, tokenizer, Path(folder), "float32", True, write)


def export_graphs(model: TransductForConditionalGeneration) -> Any:
    """The two graphs as transformers' `ExportedModel`, with our config."""
    from transformers.exporters.base import ExportedModel
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    model = copy.deepcopy(model).to("cpu", torch.float32).eval()
    model.set_attn_implementation("sdpa")
    _lengthen_tables(model)
    exporter, components = OnnxExporter(), {}
    for name, module, (inputs, dynamic) in (
        ("encoder", EncoderGraph(model), _encoder_sample(model)),
        ("decoder", DecoderStep(model), _decoder_sample(model)),
    ):
        exported = exporter.export(module.eval(), inputs, OnnxConfig(dynamic_shapes=dynamic))
        components[name] = exported.components["model"]
    return ExportedModel(components, exporter.export_format, config=model.config)


def _lengthen_tables(model: TransductForConditionalGeneration) -> None:
    """Tables of sinusoids cannot grow in a graph."""
    for stack in (model.model.encoder, model.model.decoder):
        if isinstance(stack.embed_positions, SinusoidalPositions):
            rows = int(most_positions(model.config))
            stack.embed_positions(torch.zeros(1, 1, dtype=torch.long), rows)


def _encoder_sample(model: TransductForConditionalGeneration) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs to trace with, and which of their axes may have any length."""
    ids, mask = _ids_and_mask(model)
    any_length = torch.export.Dim.DYNAMIC
    axes = {0: any_length, 1: any_length}
    return {"input_ids": ids, "attention_mask": mask}, {"input_ids": axes, "attention_mask": axes}


def _decoder_sample(model: TransductForConditionalGeneration) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same for a step of the decoder."""
    layers = len(model.model.decoder.layers)
    attention: Any = model.model.decoder.layers[0].self_attention
    groups = attention.num_key_value_heads
    widths = [linear.out_features // groups for linear in (attention.k_proj, attention.v_proj)]
    sources, length, beams, past = SAMPLE.values()
    inputs: dict[str, Any] = {
        "decoder_input_ids": torch.zeros(sources, beams, dtype=torch.long),
        "attention_mask": _ids_and_mask(model)[1],
    }
    any_length = torch.export.Dim.DYNAMIC
    dynamic: dict[str, Any] = {name: {0: any_length, 1: any_length} for name in inputs}
    for name, width in zip(("keys", "values"), widths, strict=True):
        inputs[name] = [torch.randn(sources, beams, groups, past, width) for _ in range(layers)]
        dynamic[name] = [{0: any_length, 1: any_length, 3: any_length}] * layers
    for name, width in zip(("cross_keys", "cross_values"), widths, strict=True):
        inputs[name] = [torch.randn(sources, groups, length, width) for _ in range(layers)]
        dynamic[name] = [{0: any_length, 2: any_length}] * layers
    return inputs, dynamic


def _ids_and_mask(model: TransductForConditionalGeneration) -> tuple[torch.Tensor, torch.Tensor]:
    sources, length = SAMPLE["sources"], SAMPLE["source length"]
    mask = torch.ones(sources, length, dtype=torch.long)
    mask[1, length // 2 :] = 0
    return torch.zeros(sources, length, dtype=torch.long), mask

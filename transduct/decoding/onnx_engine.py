"""A folder of `convert.to_onnx` as a model of transformers, whose encoder and decoder run in ONNX Runtime.

All that works step by step works with it: `generate`, the searches of this package, ensembles with others or with models of
torch, `score`. Refused by name is what the graphs do not tell: attention weights (alignments, coverage, unknown words replaced),
hidden states, losses, several tokens a step (drafts), sources of embeddings. Sources keep their cross-attention once for all
their beams, as in our own models.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_outputs import ModelOutput, Seq2SeqLMOutput

from transduct.cache import TransductCache
from transduct.configuration import TransductConfig
from transduct.generation import TransductGenerationMixin
from transduct.packages import require
from transduct.pretrained import TransductPreTrainedModel


@dataclass
class EncodedSource(ModelOutput):
    """What the encoder's graph computes.

    Args:
        last_hidden_state: (B, S, 0), which tells the shape alone; cross_keys, cross_values: (B, G, S, K) of each decoder layer.
    """

    last_hidden_state: torch.Tensor | None = None
    cross_keys: tuple[torch.Tensor, ...] | None = None
    cross_values: tuple[torch.Tensor, ...] | None = None


class OnnxEncoder(nn.Module):
    """The encoder's graph, called as an encoder of ours."""

    main_input_name = "input_ids"

    def __init__(self, session: Any):
        super().__init__()
        self.session = session

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any) -> EncodedSource:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
        found = run(self.session, {"input_ids": input_ids, "attention_mask": mask})
        layers = len(found) // 2
        shape = found[0].new_zeros(*input_ids.shape, 0)
        return EncodedSource(shape, cross_keys=tuple(found[:layers]), cross_values=tuple(found[layers:]))

    @staticmethod
    def states_mask(mask: torch.Tensor | None, length: int) -> torch.Tensor | None:
        return mask


class OnnxModel(TransductGenerationMixin, TransductPreTrainedModel):
    """What `translate` and `generate` need of a model, by ONNX Runtime.

    Args:
        config: ours; encoder, decoder: sessions of its two graphs.
    """

    def __init__(self, config: TransductConfig, encoder: Any, decoder: Any):
        super().__init__(config)
        self.encoder = OnnxEncoder(encoder)
        self.session = decoder
        shapes = {each.name: each.shape for each in decoder.get_inputs()}
        self.pasts = [(shapes[f"{name}.0"][2], shapes[f"{name}.0"][4]) for name in ("keys", "values")]

    @classmethod
    def load(cls, folder: str | Path, device: Any = "cpu") -> "OnnxModel":
        """The model of a folder. It uses as many threads as torch does.

        Raises:
            ImportError: without the package; ValueError: for a device that this build of it has no provider for.
        """
        require("engine='onnx'", "onnxruntime")
        sessions = [session(Path(folder) / f"{name}.onnx", torch.device(device)) for name in ("encoder", "decoder")]
        model = cls(TransductConfig.from_pretrained(folder), *sessions).eval()
        model.generation_config = GenerationConfig.from_pretrained(folder)
        return model

    @property
    def device(self) -> torch.device:
        """Where ids and logits are; the work may be done elsewhere."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self.encoder

    def get_input_embeddings(self) -> nn.Module:
        """A matrix that tells the size of the source's vocabulary alone."""
        return nn.Embedding(self.config.vocab_size, 1, device="meta")

    def get_output_embeddings(self) -> nn.Module:
        """The same of the target's."""
        return nn.Linear(1, self.config.resolved_decoder_vocab_size, bias=False, device="meta")

    def set_attn_implementation(self, attn_implementation: Any, *args: Any, **kwargs: Any) -> None:
        """Raises ValueError: attention is not told."""
        raise ValueError("engine='onnx' tells no attention: alignments, coverage and replace_unknown need the model itself")

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        encoder_outputs: EncodedSource | None = None,
        cache: EncoderDecoderCache | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        **others: Any,
    ) -> Seq2SeqLMOutput:
        """Logits (B*N, T, V) of T target tokens (B*N, T), one step after the other; N consecutive rows share a source.

        Args:
            input_ids, attention_mask: (B, S), or `encoder_outputs` in place of the ids.
            cache, or past_key_values: of an earlier call, whose part of the target alone is used.
            use_cache: False: none is returned.
            others: what `forward` of our models takes besides, for which there must be no value.

        Raises:
            ValueError: without targets, and for what the graphs do not tell.
        """
        if wanted := sorted(name for name, value in others.items() if value is not None and value is not False):
            raise ValueError(f"engine='onnx' cannot be had with {', '.join(wanted)}: its graphs tell logits alone")
        if decoder_input_ids is None:
            raise ValueError("there are no targets: pass decoder_input_ids")
        source = self.encoder(input_ids, attention_mask) if encoder_outputs is None else encoder_outputs
        cache = past_key_values if cache is None else cache
        cache = TransductCache() if cache is None else cache
        if attention_mask is None:
            attention_mask = torch.ones(source[0].shape[:2], dtype=torch.long)
        logits = [self.step(tokens, attention_mask, source, cache) for tokens in decoder_input_ids.split(1, dim=1)]
        return Seq2SeqLMOutput(logits=torch.cat(logits, dim=1), cache=None if use_cache is False else cache)

    def step(self, tokens: torch.Tensor, mask: torch.Tensor, source: EncodedSource, cache: EncoderDecoderCache) -> torch.Tensor:
        """Logits (B*N, 1, V) after one more token (B*N, 1) in each row, whose keys and values go into the cache."""
        assert source.cross_keys is not None
        assert source.cross_values is not None
        sources, own = len(mask), cache.self_attention_cache
        shape = sources, len(tokens) // sources
        inputs = {"decoder_input_ids": tokens.view(shape), "attention_mask": mask.long()}
        for index, pair in enumerate(zip(source.cross_keys, source.cross_values, strict=True)):
            inputs |= {f"{name}.{index}": each for name, each in zip(("cross_keys", "cross_values"), pair, strict=True)}
            length = int(own.layers[index].get_seq_length()) if len(own.layers) > index else 0
            if length:  # a cache of fixed size has room behind it
                past = [each[:, :, :length].unflatten(0, shape) for each in (own.layers[index].keys, own.layers[index].values)]
            else:
                past = [torch.zeros(*shape, groups, 0, width) for groups, width in self.pasts]
            inputs |= {f"{name}.{index}": each for name, each in zip(("keys", "values"), past, strict=True)}
        logits, *new = run(self.session, inputs)
        layers = len(new) // 2
        for index, (key, value) in enumerate(zip(new[:layers], new[layers:], strict=True)):
            own.update(key.flatten(0, 1), value.flatten(0, 1), index)
        return logits.flatten(0, 1)[:, None]  # (B*N, 1, V)

    def token_log_probs(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        """Of each token of given targets."""
        from transduct.convert.engine_folders import token_log_probs

        return token_log_probs(self, sources, targets)


def session(graph: Path, device: torch.device) -> Any:
    """A graph, loaded.

    Raises:
        ValueError: for a device that this build of ONNX Runtime has no provider for.
    """
    import onnxruntime

    provider = f"{device.type.upper()}ExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise ValueError(f"device={str(device)!r}: this build of onnxruntime has no {provider}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    choice = provider if device.index is None else (provider, {"device_id": device.index})
    return onnxruntime.InferenceSession(
        str(graph), options, providers=[choice, "CPUExecutionProvider"][: 1 + (device.type != "cpu")]
    )


def run(session: Any, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The outputs of a graph, in its order."""
    return [torch.from_numpy(each) for each in session.run(None, {name: each.numpy(force=True) for name, each in inputs.items()})]

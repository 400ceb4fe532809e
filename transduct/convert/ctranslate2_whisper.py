"""Our models of Whisper's shape in CTranslate2's format, for `ctranslate2.models.Whisper` and what is built on it.

CTranslate2 has one model that listens: Whisper, with its layers, its special tokens and its prompts. A model of ours with a
source of features can be written if transformers' Whisper can say what it is, and if those tokens are in its vocabulary.

Both are given random frames. Compared are the log-probabilities of all tokens at each step of a greedy answer, and the answers of
a beam search without normalisation of lengths, as that engine's leaves out the end.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transduct.convert.engine_folders import BEAMS, TOLERANCE, Comparison, one_end, plain_generation, start_token
from transduct.convert.engine_vocabulary import token_strings
from transduct.convert.models import export_plan
from transduct.convert.verifying import ready
from transduct.decoding import beam_search

START, END, WITHOUT_TIMES = NEEDED = ("<|startoftranscript|>", "<|endoftext|>", "<|notimestamps|>")
"""Tokens that CTranslate2's Whisper looks up by their strings."""
CLIPS = 2
"""Random sources that are compared: each has the full number of frames."""
LONGEST = 12
"""Tokens of an answer."""


def whisper_refusals(model: Any, processor: Any) -> list[str]:
    """What CTranslate2's Whisper has no place for, each with its name and value."""
    config, found = model.config, []
    try:
        export_plan(config, type(model).__name__, "whisper", "the model")
    except ValueError as error:
        found.append(f"encoder_input='features', of which it has Whisper's shape alone: {error}")
    if config.activation not in ("gelu", "gelu_python"):
        found.append(f"activation={config.activation!r}: its Whisper has gelu")
    if processor is None:
        return [*found, "tokenizer=None: its Whisper looks up the tokens of prompts, so the processor is needed"]
    vocabulary = tokenizer_of(processor).get_vocab()
    found += [f"a tokenizer without {token}, which it looks up" for token in NEEDED if token not in vocabulary]
    end = vocabulary.get(END)
    if end is not None and one_end(config) != end:
        found.append(f"eos_token_id={config.eos_token_id}: its Whisper ends with {END}, which is {end}")
    return found


def make_whisper_spec(model: Any, processor: Any) -> Any:
    """CTranslate2's specification, filled with weights, vocabulary and the settings of Whisper's searches."""
    from ctranslate2.specs import WhisperSpec

    from transduct.convert.ctranslate2 import copied, fill_layer, fill_linear, fill_norm, fill_stack, position_table

    config, encoder = model.config, model.model.encoder
    heads = config.num_heads, config.resolved_decoder_num_heads
    spec = WhisperSpec(config.encoder_layers, heads[0], config.decoder_layers, heads[1])
    for name in ("conv1", "conv2"):
        place, convolution = getattr(spec.encoder, name), getattr(encoder.stem, name)
        place.weight, place.bias = copied(convolution.weight), copied(convolution.bias)
    spec.encoder.position_encodings.encodings = position_table(encoder)
    fill_norm(spec.encoder.layer_norm, encoder.final_norm)
    for layer_spec, layer in zip(spec.encoder.layer, encoder.layers, strict=True):
        fill_layer(layer_spec, layer, encoder)
    fill_stack(spec.decoder, model.model.decoder)
    spec.decoder.scale_embeddings = False
    fill_linear(spec.decoder.projection, model.lm_head)
    spec.register_vocabulary(_tokens(processor, config.vocab_size))
    _fill_settings(spec.config, model)
    return spec


def write_extractor(processor: Any, folder: Path) -> None:
    """The settings of the feature extractor, under the name by which programs that are built on CTranslate2 know them."""
    extractor = getattr(processor, "feature_extractor", None)
    if extractor is not None:
        extractor.save_pretrained(folder)


def tokenizer_of(processor: Any) -> Any:
    """The tokenizer of a processor, or what is one itself."""
    return getattr(processor, "tokenizer", processor)


def _tokens(processor: Any, size: int) -> list[str]:
    """The strings of all ids; those of times, which old tokenizers leave out, follow "<|notimestamps|>" in steps of 0.02 s."""
    tokens = token_strings(tokenizer_of(processor), size, target=True)
    first = tokens.index(WITHOUT_TIMES) + 1
    return [
        f"<|{0.02 * (number - first):.2f}|>" if number >= first and token == f"<unused_{number}>" else token
        for number, token in enumerate(tokens)
    ]


def _fill_settings(settings: Any, model: Any) -> None:
    """config.json: tokens that are never written, or not at first, and those of languages; heads that tell the times of words."""
    generation, config = model.generation_config, model.config
    settings.suppress_ids = getattr(generation, "suppress_tokens", None) or []
    settings.suppress_ids_begin = getattr(generation, "begin_suppress_tokens", None) or []
    settings.lang_ids = sorted((getattr(generation, "lang_to_id", None) or {}).values())
    upper = range(config.decoder_layers // 2, config.decoder_layers)  # as its own converter has it
    every = [[layer, head] for layer in upper for head in range(config.resolved_decoder_num_heads)]
    settings.alignment_heads = getattr(generation, "alignment_heads", None) or every


# ---- comparing ----------------------------------------------------------------------------------------------------
def compare_whisper(model: Any, folder: Path, seed: int = 0) -> Comparison:
    """Let both listen to the same random frames."""
    engine = _Engine(folder)
    with ready(model) as loaded, torch.no_grad():
        own = _Ours(loaded)
        frames, prompt, limit = _sample(loaded, engine.tokens, seed)
        gaps, scale = [], 0.0
        for clip, (ids, found) in zip(frames, engine.greedy(frames, prompt, limit), strict=True):
            wanted = own.steps(clip, prompt, ids)[: len(found)]  # (T, V)
            gaps.append((wanted - found).abs())  # (T, V)
            scale = max(scale, float(wanted.abs().max()))
        answers = zip(frames, own.answers(frames, prompt, limit), engine.answers(frames, prompt, limit), strict=True)
        apart = [
            abs(own.score(clip, prompt, one, limit) - own.score(clip, prompt, other, limit))
            for clip, one, other in answers
            if one != other
        ]
    every = torch.cat(gaps)  # (tokens, V)
    return Comparison(
        pairs=CLIPS,
        tokens=len(every),
        largest=float(every.max()) if every.isfinite().all() else float("inf"),
        mean=float(every.mean()),
        scale=scale,
        same=CLIPS - len(apart),
        ties=sum(gap <= TOLERANCE for gap in apart),
        apart=max(apart, default=0.0),
    )


def _sample(model: Any, tokens: list[str], seed: int) -> tuple[torch.Tensor, list[int], int]:
    """Frames (B, F, S), the prompt, and how long answers may be."""
    config, generator, start = model.config, torch.Generator().manual_seed(seed), start_token(model)
    frames = torch.randn(CLIPS, config.feature_size, 2 * config.max_positions, generator=generator)
    prompt = [tokens.index(START) if start is None else start, tokens.index(WITHOUT_TIMES)]
    return frames, prompt, min(LONGEST, config.resolved_decoder_max_positions // 2)


class _Engine:
    """CTranslate2's Whisper. Its answers come without the end, and it leaves the end out where it counts their tokens."""

    def __init__(self, folder: Path):
        import ctranslate2

        self.whisper = ctranslate2.models.Whisper(str(folder), device="cpu", intra_threads=torch.get_num_threads())
        self.tokens = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))

    def _generate(self, frames: torch.Tensor, prompt: list[int], limit: int, **options: Any) -> Any:
        import ctranslate2

        features = ctranslate2.StorageView.from_array(frames.numpy())
        return self.whisper.generate(
            features, [prompt] * len(frames), max_length=2 * limit, suppress_tokens=[], suppress_blank=False, **options
        )

    def greedy(self, frames: torch.Tensor, prompt: list[int], limit: int) -> list[tuple[list[int], torch.Tensor]]:
        """Greedy answers and the log-probabilities (T, V) of all tokens at each step, the end's included."""
        results = self._generate(frames, prompt, limit, beam_size=1, return_logits_vocab=True)
        steps = [torch.tensor(np.array([np.array(step) for step in result.logits[0]])) for result in results]
        return [
            (result.sequences_ids[0], logits.flatten(1).log_softmax(-1)) for result, logits in zip(results, steps, strict=True)
        ]

    def answers(self, frames: torch.Tensor, prompt: list[int], limit: int) -> list[list[int]]:
        results = self._generate(frames, prompt, limit, beam_size=BEAMS, length_penalty=0.0)
        return [result.sequences_ids[0] for result in results]


class _Ours:
    """Our model, asked for the same."""

    def __init__(self, model: Any):
        self.model, self.end = model, one_end(model.config)

    def steps(self, clip: torch.Tensor, prompt: list[int], ids: list[int]) -> torch.Tensor:
        """Log-probabilities (T + 1, V) of all tokens at each step of an answer (T) to frames (F, S), and behind it."""
        given = torch.tensor([[*prompt, *ids]], device=self.model.device)
        output = self.model(**self._features(clip[None]), decoder_input_ids=given)
        return output.logits[0, len(prompt) - 1 :].float().log_softmax(-1).cpu()

    def score(self, clip: torch.Tensor, prompt: list[int], ids: list[int], limit: int) -> float:
        """The log-probability of an answer; one that is shorter than the limit has ended."""
        steps = self.steps(clip, prompt, ids)
        every = ids if len(ids) == limit else [*ids, self.end]
        return float(sum(step[token] for step, token in zip(steps, every, strict=False)))

    def answers(self, frames: torch.Tensor, prompt: list[int], limit: int) -> list[list[int]]:
        with plain_generation(self.model):
            output = self.model.generate(
                **self._features(frames), decoder_input_ids=torch.tensor([prompt] * len(frames), device=self.model.device),
                decoder_start_token_id=prompt[0], num_beams=BEAMS, max_new_tokens=limit, early_stopping=True,
                length_normalization="none", return_dict_in_generate=True, custom_generate=beam_search,
            )  # fmt: skip
        rows = [
            row[len(prompt) : len(prompt) + length]
            for row, length in zip(output.sequences.tolist(), output.lengths.tolist(), strict=True)
        ]
        return [row[:-1] if row[-1] == self.end else row for row in rows]

    def _features(self, frames: torch.Tensor) -> dict[str, torch.Tensor]:
        """Frames (B, F, S) in the layout of the model."""
        length = frames.shape[2]
        frames = frames if self.model.config.feature_layout == "channels_first" else frames.transpose(1, 2)
        device = self.model.device
        return {"input_features": frames.to(device), "attention_mask": torch.ones(len(frames), length, device=device).long()}

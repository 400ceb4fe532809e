"""Transduct behind the neutral interface of the executable cases: the Vaswani, T5 and BART configurations."""

import re

import numpy as np
from adapter import Adapter

from transduct import TransductConfig, TransductForConditionalGeneration, TransductTokenizer
from transduct.positions import sinusoid_table
from transduct.training import Seq2SeqCollator, TransductTrainer
from transduct.training.objectives import denoising, spans

WORDS = "the a cat dog sat on mat ran far away and then café straße . , ! ? < > /"


class TransductAdapter(Adapter):
    model_cls = TransductForConditionalGeneration
    config_cls = TransductConfig
    supports_layerdrop = True
    FFN_OUT = re.compile(r"\.down_proj\.weight$")
    architecture: dict = {}
    tokens: dict = {}

    def make_config(
        self, vocab_size=40, d_model=16, layers=2, heads=4, ffn=32, max_positions=64, dropout=0.0, tie=True,
        scale_embedding=None, layerdrop=0.0, raw=None,
    ):  # fmt: skip
        values = {
            "vocab_size": vocab_size, "d_model": d_model, "encoder_layers": layers, "decoder_layers": layers, "num_heads": heads,
            "d_ff": ffn, "max_positions": max_positions or 64, "dropout": dropout, "layer_drop": layerdrop,
            "tie_embeddings": "all" if tie else "source_target", **self.architecture, **self.tokens,
        }  # fmt: skip
        if scale_embedding is not None:
            values["scale_embeddings"] = scale_embedding
        if not tie:
            values["scale_logits"] = False
        return TransductConfig(**values | (raw or {}))

    @property
    def trainer_cls(self):
        return TransductTrainer

    @property
    def collator_cls(self):
        return Seq2SeqCollator


class Vaswani(TransductAdapter):
    name = "transduct-vaswani"
    positions = "sinusoidal"

    def sinusoid_tables(self, m):
        return [(stack.embed_positions.table, 0) for stack in (m.model.encoder, m.model.decoder)]

    def sinusoid_reference(self, positions, dim):
        return sinusoid_table(int(positions.max()) + 1, dim, "interleaved")[positions.long()]

    def make_tokenizer(self, directory, **kw):
        lines = ["the cat sat on the mat", "a dog ran far away", "and then the dog sat", "die katze sass auf der matte"]
        return TransductTokenizer.train(lines * 30, kind="bpe", vocab_size=80, **kw)


class T5(TransductAdapter):
    name = "transduct-t5"
    positions = "relative"
    architecture = {
        "norm": "rmsnorm", "norm_position": "pre", "norm_eps": 1e-6, "positions": "relative_bias", "relative_buckets": 8,
        "relative_max_distance": 20, "attention_scale": "none", "attention_bias": False, "ffn_bias": False,
        "scale_embeddings": False, "scale_logits": True, "initializer": "t5",
    }  # fmt: skip

    def make_tokenizer(self, directory, extra_ids=10, **kw):
        return TransductTokenizer.train([WORDS] * 20, kind="unigram", vocab_size=80, extra_ids=extra_ids, **kw)


class Bart(TransductAdapter):
    name = "transduct-bart"
    positions = "learned"
    architecture = {
        "positions": "learned", "position_offset": 2, "embedding_norm": True, "activation": "gelu", "scale_embeddings": False,
        "initializer": "normal",
    }  # fmt: skip
    tokens = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}

    def make_tokenizer(self, directory, **kw):
        lines = ["the cat sat", "a dog ran far away", "the mat"]
        return TransductTokenizer.train(lines * 10, kind="byte_bpe", vocab_size=300, **kw)


def make():
    return [Vaswani(), T5(), Bart()]


class Objectives:
    """T5's and BART's noise on plain lists, where each token is a word."""

    def span_lengths(self, inputs_length, noise_density=0.15, mean_span=3.0):
        return spans.span_corruption_lengths(inputs_length, noise_density, mean_span)

    def noise_mask(self, length, noise_density, mean_span, rng):
        return spans.noise_mask(length, noise_density, mean_span, rng)

    def corrupt(self, ids, mask, sentinels, eos):
        inputs, targets = spans.corrupt(np.asarray(ids, dtype=np.int64), np.asarray(mask, dtype=bool), sentinels, eos)
        return inputs.tolist(), targets.tolist()

    def infill(self, ids, special, ratio, lam, mask_id, rng):
        fixed = np.asarray(special, dtype=bool)
        return denoising.infill(np.asarray(ids, dtype=np.int64), fixed, ~fixed, ratio, lam, mask_id, rng).tolist()

    def permute(self, ids, ends, rng, ratio=1.0):
        ids = np.asarray(ids, dtype=np.int64)
        fixed = np.arange(len(ids)) % max(len(ids) - 1, 1) == 0  # the first and the last
        return denoising.permute_sentences(ids, fixed, np.isin(ids, list(ends)), ratio, rng).tolist()


def objectives():
    return Objectives()

"""Pre-training objectives: what turns a text into what a model reads and what it shall write.

- `SpanCorruption`: T5; `span_corruption_lengths`: how much text fills an input.
- `TokenMasking`, `TokenDeletion`, `TextInfilling`, `SentencePermutation`, `DocumentRotation`: BART's five noises, `Compose`
  applies several, `bart_noise` is the mixture of its released models; `TokenMasking.bert` is BERT's masked language model.
- `PrefixLM`, `CausalLM`: language models, for an encoder and a decoder or for a decoder alone.
- `UL2`: its mixture of seven denoisers.
- `ObjectiveCollator` applies one of them while it makes batches, anew in each epoch.

An objective is called as `objective(ids, rng)` with a text's token ids (n,) and a `numpy.random.Generator`, and gives
`{"input_ids": (S,), "labels": (T,)}`; only decoders alone have a `prefix_mask` too. It keeps nothing between calls: all
that is random comes from `rng`, which `example_generator(seed, epoch, index)` makes for an example of a data set, so that
neither the order of examples nor the number of processes or workers changes what becomes of a text.
"""

from transduct.training.objectives.collator import EpochCounter, ObjectiveCollator
from transduct.training.objectives.denoising import (
    Compose,
    DocumentRotation,
    Noise,
    SentencePermutation,
    TextInfilling,
    TokenDeletion,
    TokenMasking,
    bart_noise,
)
from transduct.training.objectives.examples import Objective, example_generator
from transduct.training.objectives.language_models import CausalLM, PrefixLM
from transduct.training.objectives.spans import SpanCorruption, span_corruption_lengths
from transduct.training.objectives.text import TokenText
from transduct.training.objectives.ul2 import UL2, Denoiser

__all__ = [
    "SpanCorruption", "span_corruption_lengths",
    "TokenMasking", "TokenDeletion", "TextInfilling", "SentencePermutation", "DocumentRotation", "Noise", "Compose", "bart_noise",
    "PrefixLM", "CausalLM",
    "UL2", "Denoiser",
    "TokenText", "Objective", "example_generator",
    "ObjectiveCollator", "EpochCounter",
]  # fmt: skip

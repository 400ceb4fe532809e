"""The `objective` section of a recipe at work: the objective itself, how much text fills an input, which model it trains."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from datasets import Features, List, Value

from transduct.training.encoding import IDS, DocumentEncoder, Example, tokens_around
from transduct.training.objectives import (
    UL2,
    CausalLM,
    Compose,
    DocumentRotation,
    Noise,
    Objective,
    PrefixLM,
    SentencePermutation,
    SpanCorruption,
    TextInfilling,
    TokenDeletion,
    TokenMasking,
    TokenText,
    bart_noise,
    example_generator,
)
from transduct.training.objectives.examples import IGNORED
from transduct.training.reading import BadRow, Row
from transduct.training.recipe_data import NOISES, ObjectiveSection, model_kind

_NOISES: dict[str, type[Noise]] = {
    "text_infilling": TextInfilling,
    "token_masking": TokenMasking,
    "token_deletion": TokenDeletion,
    "sentence_permutation": SentencePermutation,
    "document_rotation": DocumentRotation,
}


def make_objective(section: ObjectiveSection, tokenizer: Any) -> Objective:
    """The objective that a section names, with the tokens of a tokenizer.

    Raises:
        ValueError: for numbers out of range, and for a tokenizer without the sentinels, mask or mode tokens that are needed.
    """
    options = {name: vars(section)[name] for name in ("density", "mean_span", "share", "mean_words", "target_share", "form")}
    options = {name: value for name, value in options.items() if value is not None}
    if section.name == "span_corruption":
        return SpanCorruption.from_tokenizer(tokenizer, **options)
    if section.name == "ul2":
        return UL2.from_tokenizer(tokenizer, weights=section.weights and tuple(section.weights))
    if section.name == "prefix_lm":
        return PrefixLM.from_tokenizer(tokenizer, **options)
    if section.name == "causal_lm":
        return CausalLM(tokenizer.eos_token_id)
    if section.name == "masked_lm":
        return TokenMasking.bert(tokenizer, **options)
    if section.name == "bart":
        return bart_noise(tokenizer)
    text = TokenText.from_tokenizer(tokenizer)
    if section.name == "composition":
        assert section.noises is not None
        return Compose(tuple(_noise(text, **noise) for noise in section.noises))
    return _noise(text, section.name, **options)


def _noise(text: TokenText, name: str, **options: Any) -> Noise:
    return _NOISES[name](text, **options)  # type: ignore[call-arg]


def text_tokens(section: ObjectiveSection, objective: Objective, tokenizer: Any) -> int:
    """Tokens of text, without those that the tokenizer puts around it, with which an input is `inputs_length` long at most.

    It is exact for `span_corruption`. For `ul2` it is the text that fits with each of the denoisers. An infilled text may be
    longer by the masks that stand for no word, if they outnumber the words that are hidden.

    Raises:
        ValueError: for an `inputs_length` that has no room for text.
    """
    length = section.inputs_length
    before, behind = tokens_around(tokenizer)
    if isinstance(objective, SpanCorruption):
        tokens = objective.lengths(length)[0] - len(before)
    elif isinstance(objective, UL2):
        tokens = objective.text_length(length) - len(before)
    elif isinstance(objective, (PrefixLM, CausalLM)):
        tokens = length - 1 - len(before)  # they put the end token themselves
    else:
        tokens = length - len(before) - len(behind)
    if tokens < 2:
        raise ValueError(f"objective.inputs_length={length} leaves no room for text: raise it")
    return tokens


def joins(section: ObjectiveSection) -> bool:
    """Whether a text may go on from one document to the next."""
    if section.join is not None:
        return section.join
    return section.name not in (*NOISES, "bart", "composition", "masked_lm")


def apply(objective: Objective, ids: Any, rng: np.random.Generator) -> Example:
    """What an objective makes of a text, as an example whose targets can be counted: the first token of a causal LM is none."""
    example: Example = dict(objective(ids, rng))
    if isinstance(objective, CausalLM):
        example["labels"][0] = IGNORED
    return example


@dataclass
class ObjectiveVariation:
    """Applies an objective to texts, with other random numbers each time."""

    objective: Objective

    def __call__(self, examples: list[Example], generators: Sequence[np.random.Generator]) -> list[Example]:
        pairs = zip(examples, generators, strict=True)
        return [apply(self.objective, example["input_ids"], generator) for example, generator in pairs]


@dataclass
class NoisyDocuments:
    """Encodes documents and applies an objective once, for an evaluation that sees the same noise each time."""

    documents_encoder: DocumentEncoder
    objective: Objective
    section: ObjectiveSection
    seed: int = 0

    documents: ClassVar[bool] = True

    @property
    def features(self) -> Features:
        prefixed = model_kind(self.section) == "TransductForCausalLM" and self.section.name == "prefix_lm"
        prefix = {"prefix_mask": List(Value("bool"))} if prefixed else {}
        return Features({"input_ids": IDS, "labels": IDS, **prefix})

    def key(self) -> Any:
        return ["noisy", self.documents_encoder.key(), vars(self.section), self.seed]

    def __call__(self, rows: Iterable[Row]) -> Iterator[Example | BadRow]:
        for index, example in enumerate(self.documents_encoder(rows)):
            assert not isinstance(example, BadRow)
            noisy = apply(self.objective, example["input_ids"], example_generator(self.seed, 0, index))
            yield {name: values.tolist() for name, values in noisy.items()}

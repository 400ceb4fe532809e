"""The data sets of a run, as its recipe describes them: for the vocabulary, for training, for evaluation."""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from rich.console import Console

from transduct.training.data import Loaded, Skipped, load, origin_of, usable
from transduct.training.encoding import DocumentEncoder, Encoder, KeepTexts, PairEncoder
from transduct.training.endless import EndlessData, MappedPart, Part, StreamedPart, Variation
from transduct.training.mixing import mixing_rates, weighted_rates
from transduct.training.objectives import Objective
from transduct.training.pretraining import NoisyDocuments, ObjectiveVariation, joins, make_objective, text_tokens
from transduct.training.reading import read
from transduct.training.recipe import Recipe
from transduct.training.recipe_data import SplitSource, model_kind
from transduct.training.subwords import SubwordVariation


class RunData:
    """Reads the splits of a recipe.

    Args:
        recipe: what is read, and how.
        cache: folder of the Arrow files that are made of it.
        seed: of the noise of an evaluation set.
        console: where it is said how much was found, and what was skipped.
    """

    def __init__(self, recipe: Recipe, cache: Path, seed: int, console: Console):
        self.recipe, self.cache, self.seed, self.console = recipe, cache, seed, console

    def texts(self, side: str, most: int | None = None) -> Iterator[str]:
        """Texts of the training data for a vocabulary: of "source", "target", or "both", all sources first.

        Args:
            most: take no more than so many of each side, the first of each part in turn.
        """
        parts = self.recipe.data.parts
        for number, part in enumerate(parts):
            share = None if most is None else most // len(parts) + (number < most % len(parts))
            yield from islice(self._texts(part, side), share)
        if side == "both":
            yield from self.texts("target", most)

    def _texts(self, part: SplitSource, side: str) -> Iterator[str]:
        documents = not self.recipe.objective_of(part).of_pairs
        if documents and side == "target":
            return
        for row in usable(read(part, self.recipe.folder, documents), self.recipe.data.bad_rows, Skipped()):
            yield from row.targets if side == "target" else (row.source,)

    def training(self, tokenizer: Any) -> Dataset | EndlessData:
        """Pairs of ids, `input_ids` and `labels`; see `Recipe.without_end` for when they are an `EndlessData`."""
        data = self.recipe.data
        if data.truncate is not None:
            sides = ("source", "target") if data.truncate == "both" else (data.truncate,)
            said = ", ".join(f"{side}s of more than {vars(data)[f'max_{side}_tokens']:,} tokens" for side in sides)
            self.console.print(f"data.truncate: {said} are cut there", highlight=False, markup=False)
        if self.recipe.without_end is None:
            return self._load(data.parts[0], self._encoder(tokenizer, data.parts[0]), "train").dataset
        several = len(data.parts) > 1
        parts = [self._part(tokenizer, split, f"train.{i}" if several else "train") for i, split in enumerate(data.parts)]
        rates = self._rates(parts) if several else None
        one_stack = model_kind(self.recipe.objective) != "TransductForConditionalGeneration"
        return EndlessData(parts, rates, self.seed, data.buffer_rows, data.bad_rows, one_stack)

    def origin(self, tokenizer: Any, number: int) -> str:
        """Where the row stands, "file:line", of pair `number` of `training`, where that is a `Dataset`."""
        split = self.recipe.data.parts[0]
        return self._origin(split, self._encoder(tokenizer, split), number)

    def _origin(self, split: SplitSource, encoder: Encoder, number: int) -> str:
        return origin_of(number, split, self.recipe.folder, encoder, self.recipe.data.bad_rows)

    def _part(self, tokenizer: Any, split: SplitSource, name: str) -> Part:
        subwords = self.recipe.data.subwords
        encoder = self._encoder(tokenizer, split, "no" if subwords is None else "pair")
        vary: Variation | None = None
        if isinstance(encoder, DocumentEncoder):
            vary = ObjectiveVariation(self._objective(tokenizer, split))
        elif subwords is not None:
            assert isinstance(encoder, PairEncoder)
            vary = SubwordVariation(encoder, subwords)
        if split.streaming:
            rows = partial(read, split, self.recipe.folder, encoder.documents)
            self.console.print(f"{name}: streamed from {split}", highlight=False, markup=False)
            return StreamedPart(str(split), rows, encoder, vary)
        origin = None if encoder.documents else partial(self._origin, split, encoder)
        return MappedPart(str(split), self._load(split, encoder, name).dataset, vary, origin)

    def _rates(self, parts: list[Part]) -> np.ndarray:
        data = self.recipe.data
        weights = [split.weight for split in data.parts if split.weight is not None]
        sizes = [len(part.dataset) for part in parts if isinstance(part, MappedPart)]
        rates = weighted_rates(weights) if weights else mixing_rates(sizes, data.temperature, data.cap)
        shares = ", ".join(f"{rate:.1%} {part.name}" for part, rate in zip(parts, rates, strict=True))
        self.console.print(f"mixture: {shares}", highlight=False, markup=False)
        return rates

    def validation(self, tokenizer: Any) -> Dataset | None:
        """As `training`, with the texts `source` and `targets`; of documents with the same noise each time."""
        split = self.recipe.data.validation
        return split and self._load(split, self._evaluation_encoder(tokenizer, split), "validation").dataset

    def test(self, tokenizer: Any) -> Dataset:
        """The texts `source` and `targets`; of documents as `validation`."""
        split = self.recipe.data.test
        assert split is not None
        encoder = KeepTexts() if self.recipe.objective.of_pairs else self._evaluation_encoder(tokenizer, split)
        return self._load(split, encoder, "test").dataset

    def _objective(self, tokenizer: Any, split: SplitSource) -> Objective:
        return make_objective(self.recipe.objective_of(split), tokenizer)

    def _encoder(self, tokenizer: Any, split: SplitSource, keep_texts: str = "no") -> Encoder:
        section, data = self.recipe.objective_of(split), self.recipe.data
        if section.of_pairs:
            return PairEncoder(tokenizer, split, data.max_source_tokens, data.max_target_tokens, keep_texts, data.truncate)
        tokens = text_tokens(section, self._objective(tokenizer, split), tokenizer)
        return DocumentEncoder(tokenizer, tokens, joins(section))

    def _evaluation_encoder(self, tokenizer: Any, split: SplitSource) -> Encoder:
        encoder = self._encoder(tokenizer, split, keep_texts="all")
        if isinstance(encoder, DocumentEncoder):
            return NoisyDocuments(encoder, self._objective(tokenizer, split), self.recipe.objective_of(split), self.seed)
        return encoder

    def _load(self, split: SplitSource, encoder: Encoder, name: str) -> Loaded:
        loaded = load(split, self.recipe.folder, encoder, self.cache, name, self.recipe.data.bad_rows)
        self.say_skipped(name, loaded.skipped)
        if loaded.changed:
            self.console.print(
                f"{name}: not what it was at the last start, so it is tokenised anew", highlight=False, markup=False
            )
        rows, examples = ("documents", "texts") if encoder.documents else ("sources", "pairs")
        self.console.print(f"{name}: {loaded.rows:,} {rows}, {len(loaded.dataset):,} {examples}", highlight=False, markup=False)
        return loaded

    def say_skipped(self, name: str, skipped: Skipped) -> None:
        """A line about the rows that were left out, if there are any."""
        if skipped:
            self.console.print(f"{name}: {skipped}", highlight=False, markup=False, soft_wrap=True)

"""How `translate` searches: with beams, by sampling, by minimum Bayes risk over samples, or greedily with drafts."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transduct.decoding.drafts import greedy_with_drafts
from transduct.decoding.mbr import Utility, expected_utilities, utility_named
from transduct.decoding.prefixes import ForcedPrefixes
from transduct.decoding.sampling import sample
from transduct.decoding.search import beam_search

OF_BEAMS = frozenset({"beam_groups", "coverage_layer", "coverage_penalty", "diversity_penalty", "ordered_phrases"})
"""Options of beam search that no other search has."""
SAMPLES = 32
"""Drawn for minimum Bayes risk where nobody says how many."""


@dataclass(frozen=True)
class Strategy:
    """What kind of search, beams where nothing else is asked for.

    Args:
        do_sample: draw targets at random; seed: fixes the draws of each text, whatever its batch is.
        minimum_bayes_risk: draw `num_samples` (None: 32) targets, and take those that the others agree with most by this utility:
            "chrf", "bleu", or a function of hypothesis and reference.
        drafts: True: greedy search that guesses from the source; a smaller model: that guesses what it would write.

    Raises:
        ValueError: for options that exclude each other.
    """

    do_sample: bool = False
    seed: int = 0
    minimum_bayes_risk: str | Utility | None = None
    num_samples: int | None = None
    drafts: Any = False

    def __post_init__(self):
        if isinstance(self.minimum_bayes_risk, str):
            utility_named(self.minimum_bayes_risk)
        if self.num_samples is not None and self.minimum_bayes_risk is None:
            raise ValueError(f"num_samples={self.num_samples} belongs to minimum_bayes_risk; see num_return_sequences")
        if self.num_samples is not None and self.num_samples < 1:
            raise ValueError(f"num_samples={self.num_samples} must be at least 1")
        if self.seed and not self.samples:
            raise ValueError(f"seed={self.seed} belongs to do_sample and minimum_bayes_risk: nothing else is drawn")
        if self.samples and self.has_drafts:
            raise ValueError("drafts are for greedy search: leave out do_sample and minimum_bayes_risk")

    @property
    def samples(self) -> bool:
        """Whether targets are drawn."""
        return self.do_sample or self.minimum_bayes_risk is not None

    @property
    def has_drafts(self) -> bool:
        """Whether there are drafts; a model has no truth value of its own."""
        return self.drafts is not False and self.drafts is not None

    @property
    def has_beams(self) -> bool:
        """Whether it is beam search, or greedy search as its simplest case."""
        return not (self.samples or self.has_drafts)

    def settings(self, wanted: int) -> dict[str, Any]:
        """What `generate` is told for so many hypotheses of a source."""
        if self.samples:
            count = wanted if self.minimum_bayes_risk is None else (self.num_samples or SAMPLES)
            if wanted > count:
                raise ValueError(f"num_return_sequences={wanted} must not exceed num_samples={count}")
            return {"num_beams": 1, "num_return_sequences": count, "do_sample": True, "custom_generate": sample}
        if self.has_drafts:
            draft = {} if self.drafts is True else {"draft_model": self.drafts}
            own = {"num_beams": 1, "num_return_sequences": wanted, "do_sample": False, "custom_generate": greedy_with_drafts}
            return own | draft
        return {"num_return_sequences": wanted, "do_sample": False, "custom_generate": beam_search}

    def of_sources(
        self,
        phrases: Sequence[Any],
        prefixes: Sequence[Sequence[int]],
        places: Sequence[tuple[int, int]],
        processors: Sequence[Any],
    ) -> dict[str, Any]:
        """What `generate` is told of each source of a batch.

        Args:
            phrases, prefixes: ids of each source, maybe none; places: the numbers of its line, and of the piece within it.
            processors: the caller's own.
        """
        told: dict[str, Any] = {}
        if any(phrases):
            if not self.has_beams:
                raise ValueError("phrases need beam search: leave out do_sample, minimum_bayes_risk and drafts")
            told["phrases"] = phrases
        if any(prefixes):
            told["logits_processor"] = [*processors, ForcedPrefixes(prefixes)]
        if self.samples:
            told["seeds"] = [random.Random(f"{self.seed} {line} {piece}").getrandbits(63) for line, piece in places]
        return told

    def best(self, texts: Sequence[str], wanted: int) -> list[tuple[int, float]] | None:
        """Of all samples the different ones of the least risk: their places and expected utilities; None: as they are."""
        if self.minimum_bayes_risk is None or not texts:
            return None
        utilities = expected_utilities(texts, self.minimum_bayes_risk)
        first = [place for place, text in enumerate(texts) if text not in texts[:place]]
        order = sorted(first, key=lambda place: -utilities[place])
        return [(place, float(utilities[place])) for place in order[:wanted]]

"""Search beyond `GenerationMixin`: beam search with every normalisation and exact stopping, on which `translate` rests."""

from transduct.decoding.drafts import greedy_with_drafts
from transduct.decoding.int8 import int8_copy
from transduct.decoding.mbr import expected_utilities, minimum_bayes_risk
from transduct.decoding.packed import packed_copy
from transduct.decoding.prefixes import ForcedPrefixes
from transduct.decoding.sampling import sample
from transduct.decoding.search import beam_search
from transduct.decoding.tries import InTrie, TokenTrie

__all__ = [
    "ForcedPrefixes",
    "InTrie",
    "TokenTrie",
    "beam_search",
    "expected_utilities",
    "greedy_with_drafts",
    "int8_copy",
    "minimum_bayes_risk",
    "packed_copy",
    "sample",
]

"""Real English text that is at hand everywhere: the documentation of NumPy's functions; and tokenizers that learnt it."""

import inspect
import re
from functools import cache

import numpy as np

from transduct import TransductTokenizer

MODES = ["[NLU]", "[NLG]", "[S2S]"]


@cache
def paragraphs() -> tuple[str, ...]:
    """Paragraphs of prose with several sentences, white space as single spaces."""
    texts = (inspect.getdoc(getattr(np, name)) or "" for name in sorted(dir(np)) if not name.startswith("_"))
    blocks = (re.sub(r"\s+", " ", block).strip() for text in texts for block in text.split("\n\n"))
    return tuple(dict.fromkeys(block for block in blocks if re.match(r"[A-Z].{150,}[.]$", block) and block.count(". ") > 1))[:120]


@cache
def tokenizer(kind: str) -> TransductTokenizer:
    """Of 600 ids, with 20 sentinels, a mask and UL2's modes."""
    return TransductTokenizer.train(
        iter([*paragraphs(), 'Is it? "Yes!"']),
        kind=kind,
        vocab_size=600,
        extra_ids=20,
        special_tokens=MODES,
        mask_token="<mask>",
        bos_token="<s>",
    )


def chi_square(counts: list[int]) -> float:
    """How far counts are from equal ones, in the statistic's own unit; see the bounds in `CHI_SQUARE`."""
    expected = sum(counts) / len(counts)
    return sum((count - expected) ** 2 for count in counts) / expected


CHI_SQUARE = {3: 16.3, 4: 18.5, 5: 20.5, 6: 22.5, 9: 27.9, 15: 37.7, 19: 43.8}
"""Exceeded by equally likely outcomes once in a thousand, by degrees of freedom."""

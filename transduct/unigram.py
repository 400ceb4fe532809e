"""Training a unigram vocabulary: which pieces, with which log-probabilities (Kudo 2018, arXiv 1804.10959, section 3.2).

- A word's probability is the sum over all its segmentations of the product of its pieces' probabilities.
- EM: the expected count of a piece is the gradient of the corpus' log-likelihood by the piece's score, so the E-step is
  one backward pass through the forward algorithm.
- Pruning: the piece goes first whose removal costs the least likelihood; single characters always stay.

Deviations: the trainer of the `tokenizers` library visits words in random order and so breaks ties differently in each
process, and it never proposes a word that is part of no other word. Here equal words give equal pieces, and every
frequent substring is a candidate. Scores are smoothed by the digamma function, as SentencePiece does.
"""

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

MAX_WORDS = 50_000
"""Only the most frequent words are used; the rest of a corpus changes the pieces little."""
MAX_WORD_LENGTH = 48
"""Longer words, such as addresses, are cut into parts of this many characters."""
MAX_PIECE_LENGTH = 16
SEEDS_PER_PIECE = 8
"""Candidates that training starts from, per piece that it shall keep."""
KEPT_PER_ROUND = 0.6
WORDS_PER_BLOCK = 16_384


def train_unigram(words: Mapping[str, int], size: int) -> list[tuple[str, float]]:
    """The `size` best pieces for `words` (word -> count), best first, with their natural log-probabilities.

    Fewer come back where the words hold fewer repeated substrings. `size` must be at least the number of characters.
    """
    counts = _cut_long_words(words)
    pieces, frequencies, characters = _seeds(counts, SEEDS_PER_PIECE * size)
    assert size >= characters, (size, characters)
    blocks = _blocks(list(counts), pieces)
    weights = [torch.tensor([counts[word] for word in block], dtype=torch.float64) for block, _ in blocks]
    lattices = [lattice for _, lattice in blocks]

    alive = torch.ones(len(pieces), dtype=torch.bool)
    scores = (frequencies / frequencies.sum()).log()
    while True:
        for _ in range(2):
            expected = _expected_counts(scores, lattices, weights)
            scores = _smoothed_scores(expected, alive)
        if int(alive.sum()) <= size:
            break
        alive = _prune(pieces, characters, scores, expected, alive, max(size, int(alive.sum() * KEPT_PER_ROUND)))
        scores = scores.masked_fill(~alive, -torch.inf)
    found = [(piece, round(score, 6)) for piece, score, keep in zip(pieces, scores.tolist(), alive.tolist(), strict=True) if keep]
    return sorted(found, key=lambda item: (-item[1], item[0]))


def _cut_long_words(words: Mapping[str, int]) -> Counter:
    counts: Counter = Counter()
    for word, count in sorted(words.items(), key=lambda item: (-item[1], item[0]))[:MAX_WORDS]:
        for start in range(0, len(word), MAX_WORD_LENGTH):
            counts[word[start : start + MAX_WORD_LENGTH]] += count
    for character in sorted({character for word in words for character in word} - set("".join(counts))):
        counts[character] += 1  # of words that are too rare: it still needs a piece
    return counts


def _seeds(counts: Mapping[str, int], most: int) -> tuple[list[str], Tensor, int]:
    """All characters, then substrings seen twice or more; with weights frequency x length; and the number of characters."""
    single: Counter = Counter()
    longer: Counter = Counter()
    for word, count in counts.items():
        for start in range(len(word)):
            single[word[start]] += count
            for end in range(start + 2, min(len(word), start + MAX_PIECE_LENGTH) + 1):
                longer[word[start:end]] += count
    ranked = sorted((-count * len(piece), piece) for piece, count in longer.items() if count >= 2)[:most]
    characters = sorted(single)
    weights = [single[character] for character in characters] + [-negative for negative, _ in ranked]
    return characters + [piece for _, piece in ranked], torch.tensor(weights, dtype=torch.float64), len(characters)


def _blocks(words: list[str], pieces: list[str]) -> list[tuple[list[str], Tensor]]:
    """Words of one length together, each block with its lattice (words, length, piece length): the id of the piece that
    ends at a position (counted from 0) and has 1, 2, ... characters; the id past the last piece where there is none."""
    ids = {piece: i for i, piece in enumerate(pieces)}
    by_length: dict[int, list[str]] = {}
    for word in words:
        by_length.setdefault(len(word), []).append(word)
    blocks = []
    for length, group in sorted(by_length.items()):
        longest = min(length, MAX_PIECE_LENGTH)
        for first in range(0, len(group), WORDS_PER_BLOCK):
            block = group[first : first + WORDS_PER_BLOCK]
            lattice = [[_ending_at(word, end, longest, ids) for end in range(1, length + 1)] for word in block]
            blocks.append((block, torch.tensor(lattice)))
    return blocks


def _ending_at(word: str, end: int, longest: int, ids: dict[str, int]) -> list[int]:
    return [ids.get(word[end - n : end], len(ids)) if n <= end else len(ids) for n in range(1, longest + 1)]


def _log_probability(scores: Tensor, lattice: Tensor) -> Tensor:
    """log of the sum over all segmentations (the forward algorithm): scores (pieces + 1,), lattice (W, L, n) -> (W,)."""
    forward = [scores.new_zeros(lattice.shape[0])]
    for end in range(lattice.shape[1]):
        reach = min(end + 1, lattice.shape[2])
        before = torch.stack([forward[end - n] for n in range(reach)], dim=-1)  # (W, reach)
        forward.append((before + scores[lattice[:, end, :reach]]).logsumexp(dim=-1))
    return forward[-1]


def _with_none(scores: Tensor) -> Tensor:
    """One more score, of the piece that does not exist."""
    return torch.cat([scores, scores.new_full((1,), -torch.inf)])


def _expected_counts(scores: Tensor, lattices: list[Tensor], weights: list[Tensor]) -> Tensor:
    scores = scores.detach().requires_grad_()
    total = torch.zeros_like(scores)
    for lattice, weight in zip(lattices, weights, strict=True):
        likelihood = (weight * _log_probability(_with_none(scores), lattice)).sum()
        total += torch.autograd.grad(likelihood, scores)[0]
    return total


def _smoothed_scores(expected: Tensor, alive: Tensor) -> Tensor:
    """log-probabilities of a Dirichlet posterior; 0.1 keeps those finite that a better piece has made superfluous."""
    expected = expected.clamp_min(0.1)
    return (expected.digamma() - expected[alive].sum().digamma()).masked_fill(~alive, -torch.inf)


def _prune(pieces: list[str], characters: int, scores: Tensor, expected: Tensor, alive: Tensor, size: int) -> Tensor:
    """The mask of the pieces to keep: all characters and those whose loss would cost most."""
    candidates = [i for i in range(characters, len(pieces)) if alive[i]]
    index = {pieces[i]: i for i in candidates}
    cost = torch.zeros_like(scores)
    for block, lattice in _blocks([pieces[i] for i in candidates], pieces):
        lattice[:, -1, -1] = len(pieces)  # the piece itself may not be used
        chosen = torch.tensor([index[piece] for piece in block])
        cost[chosen] = expected[chosen] * (scores[chosen] - _log_probability(_with_none(scores), lattice))
    rounded = {i: float(f"{value:.9g}") for i, value in enumerate(cost.tolist())}  # the order of a sum decides no tie
    candidates.sort(key=lambda i: (-rounded[i], pieces[i]))
    keep = torch.zeros_like(alive)
    keep[:characters] = True
    keep[candidates[: size - characters]] = True
    return keep

"""Slots: whatever a decoder reads and takes back, its logits are those of a fresh pass over what is left."""

import pytest
import torch

from configs import SCHEMES, build, name, pad_rows, tiny, words
from transduct import TransductForConditionalGeneration
from transduct.decoding.rows import Rows
from transduct.decoding.slots import Slots

SOURCES = [words(1, length, seed=length)[0] for length in (6, 3, 8)]
MODELS = pytest.mark.parametrize("choice", SCHEMES, ids=name)


def begin(choice):
    model = build(TransductForConditionalGeneration, tiny(**choice))
    ids, mask = pad_rows(SOURCES)
    with torch.no_grad():
        states = model.get_encoder()(ids, attention_mask=mask)
    return model, Slots(
        Rows(model, torch.zeros(3, 1, dtype=torch.long), 1, None, {"encoder_outputs": states, "attention_mask": mask})
    )


class Written:
    """What each row holds, as lists, beside slots that should hold the same."""

    def __init__(self, model, slots):
        self.model, self.slots, self.rows, self.sources = model, slots, [[] for _ in SOURCES], list(SOURCES)

    def feed(self, tokens, real) -> None:
        """Read tokens (B, m), and compare the logits after each with those of a fresh pass."""
        with torch.no_grad():
            logits = self.slots.feed(tokens, real)
        for row, source in enumerate(self.sources):
            new = tokens[row][real[row]].tolist()
            before = len(self.rows[row])
            self.rows[row] += new
            with torch.no_grad():
                want = self.model(source[None], decoder_input_ids=torch.tensor([self.rows[row]])).logits[0, before:]
            assert torch.allclose(logits[row][real[row]].double(), want, atol=1e-4), row
        assert self.slots.real.sum(1).tolist() == list(map(len, self.rows))

    def take_back(self, tokens, real, kept) -> None:
        for row in range(len(self.rows)):
            gone = int((real[row, -kept.shape[1] :] & ~kept[row]).sum())
            self.rows[row] = self.rows[row][: len(self.rows[row]) - gone]
        self.slots.take_back(kept)

    def keep(self, order) -> None:
        self.rows, self.sources = [self.rows[row] for row in order], [self.sources[row] for row in order]
        self.slots.keep(torch.tensor(order))


def step(written, right: list[int] | None = None, count: int = 4) -> None:
    """Read a token and a few more, some of which are not meant, and take back all but the first ones, `right` of each row."""
    rows = len(written.rows)
    tokens = torch.randint(3, 23, (rows, count))
    meant = torch.arange(count) < torch.randint(1 if right is None else count, count + 1, (rows, 1))
    written.feed(tokens, meant)
    kept = torch.randint(1, count + 1, (rows, 1)) if right is None else torch.tensor(right)[:, None]
    written.take_back(tokens, meant, torch.arange(count) < kept)


@MODELS
def test_tokens_come_and_go(choice):
    model, slots = begin(choice)
    written = Written(model, slots)
    for _ in range(5):
        step(written)
    written.keep([2, 0])
    for _ in range(3):
        step(written)


@MODELS
def test_holes_are_closed(choice):
    """Rows keep all in turn, the others one token: half of what they have is holes, until they are moved together."""
    model, slots = begin(choice)
    written = Written(model, slots)
    for right in ([4, 1, 1], [1, 4, 1], [1, 1, 4], [3, 1, 2]):
        step(written, right)
    assert slots.real.shape[1] == 15
    slots._move_together()
    assert slots.real.shape[1] == max(map(len, written.rows)) == 9
    assert (slots.real.cumprod(1).bool() == slots.real).all()  # each row's tokens come first
    for layer in slots.cache.self_attention_cache.layers:
        assert layer.get_seq_length() == slots.real.shape[1]
    for _ in range(3):
        step(written)


def test_they_are_closed_when_they_are_the_greater_part(monkeypatch):
    _, slots = begin(SCHEMES[0])
    moved = []
    move = Slots._move_together
    monkeypatch.setattr(Slots, "_move_together", lambda self: moved.append(self.real.shape[1]) or move(self))
    last = torch.tensor([[0], [1], [2]]) == torch.arange(3)  # rows take turns: in each step one token of one row is kept
    for turn in range(80):
        with torch.no_grad():
            slots.feed(torch.full((3, 3), 5), last)
        slots.take_back(last if turn % 2 else torch.ones(3, 3, dtype=torch.bool))
        assert slots.real.shape[1] <= 2 * int(slots.real.sum(1).max()) + 64
    assert moved
    assert slots.real.sum(1).tolist() == [80, 80, 80]


def test_what_all_take_back_is_cut_off():
    _, slots = begin(SCHEMES[0])
    with torch.no_grad():
        slots.feed(torch.full((3, 5), 5), torch.ones(3, 5, dtype=torch.bool))
    slots.take_back(torch.arange(4) < torch.tensor([[0], [1], [2]]))
    assert slots.real.shape == (3, 3)
    assert slots.real.sum(1).tolist() == [1, 2, 3]
    assert {layer.get_seq_length() for layer in slots.cache.self_attention_cache.layers} == {3}
    slots.take_back(torch.zeros(3, 3, dtype=torch.bool))
    assert slots.real.shape == (3, 0)

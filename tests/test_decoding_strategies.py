"""Searches behind `translate`: samples, minimum Bayes risk, drafts, phrases and prefixes, from text to text."""

import itertools

import pytest

from tiny_translation import TEXTS, tiny_translation
from transduct import translate
from transduct.decoding import expected_utilities
from transduct.decoding.strategies import Strategy

WORDS = ["abc", "hello there", "a", "cab", "the end."]


@pytest.fixture(scope="module")
def both():
    model, tokenizer = tiny_translation(end=3.0)
    model.lm_head.weight.data.mul_(0.3)  # many tokens are likely
    return model, tokenizer


# ---- phrases and prefixes -----------------------------------------------------------------------------------------
def test_phrases_and_prefixes_are_in_the_texts(both):
    phrases = [["not", "a b"], [], [["xyz", "zyx"]], [], ["stu"]]
    prefixes = ["", "ab", "", "the ", "cab"]
    for batch in (4096, 1):
        found = translate(
            *both, WORDS, num_beams=4, phrases=phrases, target_prefixes=iter(prefixes), max_tokens_per_batch=batch, min_length=5
        )
        for text, own, prefix in zip(found, phrases, prefixes, strict=True):
            assert text.startswith(prefix.rstrip())
            assert all(any(each in text for each in ([phrase] if isinstance(phrase, str) else phrase)) for phrase in own), text
    assert translate(*both, WORDS[3:4], phrases=[[]], target_prefixes=[""]) == translate(*both, WORDS[3:4])


def test_phrases_in_order(both):
    (text,) = translate(*both, WORDS[:1], num_beams=4, phrases=[["q", "not", "q"]], ordered_phrases=True, max_length=20)
    assert "q" in text.partition("not")[0]
    assert "q" in text.partition("not")[2]


def test_phrases_over_windows(both):
    phrases = [[letter] for letter in "mnopq"]
    one = translate(*both, WORDS, phrases=phrases)
    assert translate(*both, WORDS, phrases=phrases, window=2) == one
    assert all(letter in text for (letter,), text in zip(phrases, one, strict=True))


def test_a_text_in_pieces_begins_with_its_prefix(both):
    (text,) = translate(*both, ["hello there. ABC"], target_prefixes=["xyz"], split_sentences=True)
    one, other = translate(*both, ["hello there.", "ABC"], target_prefixes=["xyz", ""])
    assert text == f"{one} {other}"
    assert text.startswith("xyz")


@pytest.mark.parametrize("ordered", [False, True])
def test_a_text_in_pieces_has_its_phrases_somewhere(both, ordered):
    texts = ["hello there. ABC cab. What?", "abc", "The end. Now."]
    phrases = [["q1", "not", "x", ["zz", "yy"]], ["q"], []]
    options = dict(split_sentences=True, ordered_phrases=True) if ordered else dict(split_sentences=True)
    found = translate(*both, texts, phrases=phrases, num_return_sequences=2, return_scores=True, **options)
    for row, own in zip(found, phrases, strict=True):
        for each in row:
            places = [max(map(each.text.find, [phrase] if isinstance(phrase, str) else phrase)) for phrase in own]
            assert -1 not in places, (each.text, own)
            assert not ordered or places == sorted(places)
    plain = translate(*both, texts, num_return_sequences=2, return_scores=True, split_sentences=True)
    assert [each.text for each in found[2]] == [each.text for each in plain[2]]
    assert found[0][0].score <= plain[0][0].score
    (one,) = translate(*both, texts[:1], phrases=[["q1"]], return_scores=True, split_sentences=True)
    pieces = ["hello there.", "ABC cab.", "What?"]
    free = [each.score for each in translate(*both, pieces, return_scores=True)]
    forced = [each.score for each in translate(*both, pieces, phrases=[["q1"]] * 3, return_scores=True)]
    assert one.score == pytest.approx(sum(free) - min(a - b for a, b in zip(free, forced, strict=True)), abs=1e-4)


def test_phrases_that_do_not_fit_into_one_piece_together(both):
    """Both cost least in the same piece, which has room for one of them alone."""
    options = dict(num_beams=4, max_new_tokens=6, split_sentences=True)
    pieces = ["hello there.", "ABC cab."]
    for phrases in itertools.permutations(["qrst", "xyz", "mnop"], 2):
        (text,) = translate(*both, [" ".join(pieces)], phrases=[phrases], **options)
        assert all(phrase in text for phrase in phrases)
    with pytest.raises(ValueError, match="line 1 is translated in 2 pieces, and its phrases do not fit into them"):
        translate(*both, [" ".join(pieces)], phrases=[["qrst", "xyz", "mnop"]], **options)


# ---- samples ------------------------------------------------------------------------------------------------------
def test_samples_depend_on_their_text_and_seed_alone(both):
    options = dict(do_sample=True, top_k=0, num_return_sequences=3)
    want = translate(*both, WORDS, **options)
    assert translate(*both, WORDS, **options, max_tokens_per_batch=1, window=2) == want
    assert translate(*both, WORDS, **options, seed=1) != want
    assert translate(*both, [WORDS[0]] * 2, **options)[0] == want[0]  # the same text on another line is another draw
    assert translate(*both, [WORDS[0]] * 2, **options)[1] != want[0]
    assert translate(*both, ["", *WORDS[1:2]], **options)[0] == ["", "", ""]


def test_scores_of_samples_are_those_of_score(both):
    from transduct import score

    found = translate(*both, WORDS, do_sample=True, temperature=0.7, return_scores=True, length_normalization="gnmt")
    want = score(*both, WORDS, [each.token_ids for each in found], length_normalization="gnmt")
    assert [each.score for each in found] == pytest.approx(want, abs=1e-5)


def test_minimum_bayes_risk_takes_the_best_of_the_samples(both):
    samples = translate(*both, WORDS, do_sample=True, top_k=0, num_return_sequences=12)
    found = translate(
        *both, WORDS, minimum_bayes_risk="chrf", num_samples=12, top_k=0, num_return_sequences=2, return_scores=True
    )
    for drawn, best in zip(samples, found, strict=True):
        utilities = dict(zip(drawn, expected_utilities(drawn).tolist(), strict=True))
        order = sorted(utilities, key=lambda text: -utilities[text])
        assert [each.text for each in best] == order[:2]
        assert [each.score for each in best] == pytest.approx([utilities[text] for text in order[:2]])
    assert len(translate(*both, WORDS[:1], minimum_bayes_risk=lambda one, other: float(one == other))) == 1


# ---- drafts, ensembles, groups ------------------------------------------------------------------------------------
@pytest.mark.parametrize("drafts", [True, "model"])
def test_drafts_change_nothing(drafts):
    pair, (smaller, _) = tiny_translation(), tiny_translation(seed=9)
    want = translate(*pair, TEXTS, num_beams=1, return_scores=True)
    assert len({each.text for each in want}) > 3
    got = translate(*pair, TEXTS, drafts=smaller if drafts == "model" else drafts, return_scores=True)
    assert [each.text for each in got] == [each.text for each in want]
    assert [each.score for each in got] == pytest.approx([each.score for each in want], abs=1e-4)


def test_drafts_with_prefixes_and_other_processors(both):
    options = dict(target_prefixes=["ab", "", "xyz", "", "c"], no_repeat_ngram_size=2, min_new_tokens=6)
    want = translate(*both, WORDS, num_beams=1, **options)
    assert translate(*both, WORDS, drafts=True, **options) == want
    assert [text[:3] for text in want][2] == "xyz"


def test_ensembles_and_groups(both):
    pair, (another, _) = tiny_translation(), tiny_translation(seed=9)
    want = translate(*pair, WORDS)
    assert translate(*pair, WORDS, ensemble=[pair[0]]) == want
    assert translate(*pair, WORDS, ensemble=[another]) != want
    options = dict(num_beams=4, num_return_sequences=4)
    groups = translate(*both, WORDS, **options, beam_groups=4, diversity_penalty=100.0, min_length=4)
    assert all(len({text[:1] for text in each}) == 4 for each in groups)


# ---- refusals -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"phrases": [["a"]], "do_sample": True}, "phrases need beam search"),
        ({"phrases": [["a"]], "drafts": True}, "phrases need beam search"),
        ({"phrases": [["a" * 99]], "max_length": 20}, "line 1 has phrases that take up to 99 tokens and an end"),
        ({"target_prefixes": ["a" * 30], "max_length": 20}, "line 1 has a prefix of 30 tokens, but its limit is"),
        ({"phrases": [["§"]]}, "line 1: phrase '§' has characters that the vocabulary does not have"),
        ({"phrases": []}, "phrases has 0 entries, but there are more texts"),
        ({"target_prefixes": ["x§"]}, "line 1: the prefix 'x§' has characters that the vocabulary does not have"),
        (
            {"phrases": [["abcdefghij" * 7]], "split_sentences": True},
            "line 1 is translated in 2 pieces, and its phrases do not fit into them: allow longer outputs",
        ),
        ({"num_beams": 4, "do_sample": True}, "num_beams=4 has no use with samples and drafts"),
        ({"num_beams": 2, "drafts": True}, "num_beams=2 has no use with samples and drafts"),
        ({"do_sample": True, "drafts": True}, "drafts are for greedy search"),
        ({"seed": 3}, "seed=3 belongs to do_sample and minimum_bayes_risk"),
        ({"do_sample": True, "coverage_penalty": 0.1, "beam_groups": 2}, "beam_groups, coverage_penalty: needs beam search"),
        ({"num_samples": 4}, "num_samples=4 belongs to minimum_bayes_risk"),
        ({"minimum_bayes_risk": "chrf", "num_samples": 0}, "num_samples=0 must be at least 1"),
        ({"minimum_bayes_risk": "chrf", "num_samples": 2, "num_return_sequences": 3}, "must not exceed num_samples=2"),
        ({"minimum_bayes_risk": "ter"}, "utility='ter' must be"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals(both, options, message):
    with pytest.raises(ValueError) as refusal:
        translate(*both, ["hello there. ABC"], **options)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"phrases": [[], [], ["a" * 99]], "max_length": 20}, "line 3 has phrases that take up to 99 tokens and an end"),
        ({"target_prefixes": ["", "", "a" * 30], "max_length": 20}, "line 3 has a prefix of 30 tokens"),
        ({"phrases": [[], [], ["a"]], "bad_words_ids": ["a"]}, "line 3 has no possible output: none contains all its phrases"),
        ({"target_prefixes": ["", "", "a"], "bad_words_ids": ["a"], "drafts": True}, "line 3 has no possible output: logits"),
        ({"target_prefixes": ["", "", "a"], "bad_words_ids": ["a"], "do_sample": True}, "line 3 has no possible output: logits"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("batch", [1, 4096])
def test_the_line_is_named_that_cannot_be_met(both, options, message, batch):
    _, tokenizer = both
    if "bad_words_ids" in options:
        ids = [tokenizer(text_target=word, add_special_tokens=False)["input_ids"] for word in options["bad_words_ids"]]
        options = options | {"bad_words_ids": ids}
    with pytest.raises(ValueError) as refusal:
        translate(*both, ["hello there.", "", "ABC"], max_tokens_per_batch=batch, **options)
    assert str(refusal.value).startswith(message)


def test_an_empty_text_can_hold_no_phrase(both):
    for options in ({"phrases": [["a"]]}, {"target_prefixes": ["a"]}):
        with pytest.raises(ValueError, match="line 1 is empty, and so is its output: it can hold no phrases and no prefix"):
            translate(*both, ["  "], **options)


def test_what_kind_of_search_it_is():
    assert Strategy().has_beams
    assert not Strategy(do_sample=True).has_beams
    assert Strategy(minimum_bayes_risk="bleu").samples
    assert Strategy(drafts=True).has_drafts

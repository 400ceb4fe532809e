"""The objective section: every name makes its objective, fills its inputs, and says what a tokenizer lacks."""

import numpy as np
import pytest

from transduct.tokenization import TransductTokenizer
from transduct.training.encoding import DocumentEncoder
from transduct.training.objectives import example_generator, span_corruption_lengths
from transduct.training.pretraining import NoisyDocuments, ObjectiveVariation, apply, joins, make_objective, text_tokens
from transduct.training.reading import Row
from transduct.training.recipe_data import OBJECTIVES, build_objective, model_kind

WORDS = ["the", "cat", "sat", "on", "a", "mat", ".", "it", "was", "red", ",", "and", "so", "on", "!", "why", "?"]
NOISES = ("text_infilling", "token_masking", "token_deletion", "sentence_permutation", "document_rotation", "bart", "composition")


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizer_with(extra_ids=100, mask_token="<mask>", special_tokens=["[NLU]", "[NLG]", "[S2S]"])


def tokenizer_with(**options):
    return TransductTokenizer.train(iter([" ".join(WORDS)]), "words", **options)


def section(name: str, **options):
    if name == "composition":
        options.setdefault("noises", [{"name": "sentence_permutation"}, {"name": "text_infilling", "share": 0.3}])
    return build_objective({"name": name, **options})


def documents(count=40, seed=0) -> list[Row]:
    rng = np.random.default_rng(seed)
    return [Row(" ".join(rng.choice(WORDS, rng.integers(5, 200))), (), f"d:{i}", f"d:{i}") for i in range(count)]


@pytest.mark.parametrize("inputs_length", [16, 128, 512])
@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "seq2seq"])
def test_inputs_are_filled_and_never_longer(tokenizer, name, inputs_length):
    chosen = section(name, inputs_length=inputs_length, join=True)
    objective = make_objective(chosen, tokenizer)
    encoder = DocumentEncoder(tokenizer, text_tokens(chosen, objective, tokenizer), join=True)
    texts = [example["input_ids"] for example in encoder(documents())][:-1]  # the last one is what was left
    made = [apply(objective, text, example_generator(0, 0, i)) for i, text in enumerate(texts)]
    lengths = [len(example["input_ids"]) for example in made]
    assert max(lengths) <= inputs_length + (0 if name not in NOISES else inputs_length // 4)  # masks of no word are extra
    if name == "span_corruption":
        assert set(lengths) == {inputs_length}
        assert {len(example["labels"]) for example in made} == {span_corruption_lengths(inputs_length, 0.15, 3)[1]}
    elif name in ("causal_lm", "masked_lm"):
        assert set(lengths) == {len(example["labels"]) for example in made} == {inputs_length}
    elif name in NOISES:
        assert {len(example["labels"]) for example in made} == {inputs_length}
    elif name == "ul2":
        assert max(lengths) >= inputs_length - 2
    if name in ("causal_lm", "prefix_lm"):
        assert all(example["labels"][-1] == tokenizer.eos_token_id for example in made)


def test_the_first_token_of_a_causal_model_is_no_target(tokenizer):
    chosen = section("causal_lm", inputs_length=16)
    example = apply(make_objective(chosen, tokenizer), tokenizer("the cat sat")["input_ids"], example_generator(0, 0, 0))
    assert example["labels"].tolist() == [-100, *tokenizer("the cat sat")["input_ids"][1:]]


def test_options_reach_their_objective(tokenizer):
    assert make_objective(section("span_corruption", density=0.5, mean_span=8), tokenizer).lengths(512)[0] > 700
    assert make_objective(section("token_masking", share=0.4), tokenizer).share == 0.4
    infilling = make_objective(section("text_infilling", share=0.2, mean_words=2), tokenizer)
    assert (infilling.share, infilling.mean_words) == (0.2, 2)
    assert make_objective(section("ul2", weights=[1, 1, 1, 1, 1, 1, 3]), tokenizer).weights[-1] == 3
    assert make_objective(section("prefix_lm", form="decoder", target_share=0.5), tokenizer).form == "decoder"
    composed = make_objective(section("composition"), tokenizer).noises
    assert [type(noise).__name__ for noise in composed] == ["SentencePermutation", "TextInfilling"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("span_corruption", {}, r"sentinels is empty: train the tokenizer with extra_ids=100"),
        ("ul2", {}, r"the tokenizer has no tokens \['\[NLG\]', '\[NLU\]', '\[S2S\]'\]: train it with special_tokens"),
        ("text_infilling", {}, "no mask token: train the tokenizer with mask_token"),
        ("masked_lm", {}, "no mask token"),
        ("bart", {}, "no mask token"),
        ("span_corruption", {"density": 1.5}, "density=1.5"),
        ("token_deletion", {"share": 2.0}, "share=2.0"),
    ],
)
def test_what_a_tokenizer_lacks(name, options, message):
    with pytest.raises(ValueError, match=message):
        make_objective(section(name, **options), tokenizer_with(extra_ids=2 if "density" in options else 0))


def test_room_for_text():
    tokenizer = tokenizer_with(mask_token="<mask>", bos_token="<s>", source_prefix=["<s>", "<s>"])
    chosen = section("bart", inputs_length=4)
    with pytest.raises(ValueError, match=r"objective\.inputs_length=4 leaves no room for text"):
        text_tokens(chosen, make_objective(chosen, tokenizer), tokenizer)


def test_which_model_and_whether_documents_are_joined():
    expected = {"masked_lm": "TransductForMaskedLM", "causal_lm": "TransductForCausalLM"}
    for name in OBJECTIVES:
        assert model_kind(section(name)) == expected.get(name, "TransductForConditionalGeneration")
        assert joins(section(name)) is (name not in (*NOISES, "masked_lm"))
    assert model_kind(section("prefix_lm", form="decoder")) == "TransductForCausalLM"
    assert joins(section("bart", join=True))


@pytest.mark.parametrize(("name", "options"), [("bart", {}), ("prefix_lm", {"form": "decoder"})])
def test_noise_is_new_in_training_and_fixed_in_evaluation(tokenizer, name, options):
    chosen = section(name, inputs_length=16, **options)
    objective = make_objective(chosen, tokenizer)
    encoder = DocumentEncoder(tokenizer, text_tokens(chosen, objective, tokenizer), joins(chosen))
    fixed = NoisyDocuments(encoder, objective, chosen, seed=1)
    first, again = list(fixed(documents(3))), list(fixed(documents(3)))
    assert first == again
    assert set(first[0]) == set(fixed.features)
    assert first != list(NoisyDocuments(encoder, objective, chosen, seed=2)(documents(3)))
    vary, texts = ObjectiveVariation(objective), list(encoder(documents(3)))
    epochs = [vary(texts, [example_generator(0, epoch, i) for i in range(len(texts))]) for epoch in (0, 0, 1)]
    inputs = [[(e["input_ids"].tolist(), e["labels"].tolist()) for e in epoch] for epoch in epochs]
    assert inputs[0] == inputs[1] != inputs[2]

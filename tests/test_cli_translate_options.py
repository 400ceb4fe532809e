"""Options of `transduct translate` and `transduct score` for languages, tasks, limits and precision do what the functions do."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, M2M100Config, M2M100ForConditionalGeneration

from configs import build, tiny
from published import randomise
from tiny_tokenizers import write_tokenizer
from tiny_translation import TEXTS, theirs, tiny_translation
from transduct import TransductForConditionalGeneration, TransductTokenizer, score, translate
from transduct.cli.main import run
from transduct.decoding.score import Scorer
from transduct.decoding.translator import Translator

LINES = [text.strip() for text in TEXTS]
SHORT = 9
"""Tokens of an output at most, as the generation configs have it."""


def saved(folder: Path, model, tokenizer) -> list[str]:
    """The folder, as an argument of a command."""
    model.generation_config.max_new_tokens = SHORT
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    return [str(folder)]


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """A folder, its model and its tokenizer."""
    model, tokenizer = tiny_translation(end=2.0)
    return saved(tmp_path_factory.mktemp("ours"), model, tokenizer), model, tokenizer


def written(folder: Path, command: list[str], **files: list[str]) -> list[str]:
    """The lines that a command writes; `files` are lines that it reads, by the names of the options."""
    arguments = list(command)
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        arguments += [f"--{name}", str(folder / name)]
    assert run([*arguments, "--output", str(folder / "out")]) == 0
    return (folder / "out").read_text(encoding="utf-8").split("\n")[:-1]


# ---- texts --------------------------------------------------------------------------------------------------------
def test_unknown_words_are_replaced(tmp_path):
    """The model knows no word at all."""
    tokenizer = TransductTokenizer.train(iter(["red green blue"]), kind="words")
    model = build(TransductForConditionalGeneration, tiny(vocab_size=len(tokenizer), logits_bias=True), dtype=torch.float32)
    with torch.no_grad():
        model.lm_head.bias[tokenizer.unk_token_id] = 1e4
    command = ["translate", *saved(tmp_path / "model", model, tokenizer)]
    lines = ["red mauve", "", "pink green"]
    found = written(tmp_path, [*command, "--replace-unknown"], input=lines)
    assert found == translate(model, tokenizer, lines, replace_unknown=True)
    assert found[1] == ""
    assert set(found[0].split()) <= {"red", "mauve"}
    assert set(found[2].split()) <= {"pink", "green"}
    assert written(tmp_path, command, input=lines) == ["", "", ""]


def test_long_lines_are_split(ours, tmp_path):
    folder, model, tokenizer = ours
    lines = ["abc ab. Cab!", "ab", "hello there you all of them"]
    options = ["--long", "split", "--max-source-length", "9"]
    found = written(tmp_path, ["translate", *folder, *options], input=lines)
    assert found == translate(model, tokenizer, lines, long="split", max_source_length=9)
    parts = translate(model, tokenizer, ["abc ab.", "Cab!"])
    assert found[0] == " ".join(parts)
    assert found != written(tmp_path, ["translate", *folder], input=lines)


# ---- languages and tasks ------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """A folder with a tiny model of several languages, the model and its tokenizer."""
    folder = tmp_path_factory.mktemp("several")
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer("nllb", folder))
    sizes = dict(d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2)
    sizes |= dict(encoder_ffn_dim=16, decoder_ffn_dim=16, vocab_size=len(tokenizer), max_position_embeddings=64)
    special = dict(pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None)
    model = M2M100ForConditionalGeneration(M2M100Config(**special, **sizes)).eval()
    randomise(model, 0)
    return saved(folder, model, tokenizer), model, tokenizer


def test_languages(several, tmp_path):
    folder, model, tokenizer = several
    lines, targets = ["The field", "", "An array of values"], ["Das Feld", "", "x"]
    seen = []
    for source, target in (("eng_Latn", "deu_Latn"), ("eng_Latn", "hin_Deva"), ("deu_Latn", "hin_Deva")):
        languages = ["--src-lang", source, "--tgt-lang", target]
        options = dict(src_lang=source, tgt_lang=target)
        rows = [json.loads(line) for line in written(tmp_path, ["translate", *folder, *languages, "--json"], input=lines)]
        want = translate(model, tokenizer, lines, return_scores=True, **options)
        assert [row["translation"] for row in rows] == [each.text for each in want]
        assert [row["score"] for row in rows] == pytest.approx([each.score for each in want], abs=1e-5)
        scored = written(tmp_path, ["score", *folder, *languages, "--json"], source=lines, target=targets)
        wanted = score(model, tokenizer, lines, targets, per_token=True, **options)
        assert [json.loads(line)["token_ids"] for line in scored] == [list(each.token_ids) for each in wanted]
        log_probs = [json.loads(line)["log_prob"] for line in scored]
        assert log_probs == pytest.approx([each.log_prob for each in wanted], abs=1e-5)
        assert wanted[0].token_ids[0] == tokenizer.convert_tokens_to_ids(target)
        seen.append((rows[0]["score"], log_probs[0]))
    assert len(set(seen)) == 3


def test_languages_and_tasks_of_the_config(tmp_path):
    """T5's: each pair of languages is a task, with a prefix and settings; they come before those of the generation config."""
    tokenizer = AutoTokenizer.from_pretrained(write_tokenizer("t5", tmp_path / "t5"))
    model, lines = theirs("t5", tokenizer), ["The field has a size.", "", "All values"]
    model.config.task_specific_params = {
        "summarization": {"prefix": "hi. ", "num_beams": 2, "max_length": 6},
        "translation_en_to_de": {"prefix": "de. ", "num_beams": 1},
    }
    folder = saved(tmp_path / "model", model, tokenizer)
    for arguments, options, prefix in (
        (["--task", "summarization"], dict(num_beams=2, max_new_tokens=5), "hi. "),
        (["--src-lang", "en", "--tgt-lang", "de"], dict(num_beams=1), "de. "),
    ):
        found = written(tmp_path, ["translate", *folder, *arguments], input=lines)
        prefixed = [prefix + line if line else "" for line in lines]
        assert found == translate(model, tokenizer, prefixed, **options)
        assert found != translate(model, tokenizer, lines, **options)
        scored = [float(line) for line in written(tmp_path, ["score", *folder, *arguments], source=lines, target=["a"] * 3)]
        assert scored == pytest.approx(score(model, tokenizer, [prefix + line for line in lines], ["a"] * 3), abs=1e-5)
        assert scored != pytest.approx(score(model, tokenizer, lines, ["a"] * 3), abs=1e-3)


# ---- samples, batches, precision ----------------------------------------------------------------------------------
def test_samples_without_improbable_tokens(ours, tmp_path):
    folder, model, tokenizer = ours
    command = ["translate", *folder, "--sample", "--top-k", "0", "--temperature", "3", "--seed", "5"]
    options = dict(do_sample=True, top_k=0, temperature=3.0, seed=5)
    found = written(tmp_path, [*command, "--epsilon-cutoff", "0.05"], input=LINES)
    assert found == translate(model, tokenizer, LINES, epsilon_cutoff=0.05, **options)
    assert found != written(tmp_path, command, input=LINES)


def test_batches_keep_to_the_tokens_that_are_asked_for(ours, tmp_path, monkeypatch):
    folder, model, tokenizer = ours
    want, targets = translate(model, tokenizer, LINES), ["cab" for _ in LINES]
    for command, owner, method, files in (
        ("translate", Translator, "_translate", dict(input=LINES)),
        ("score", Scorer, "_score", dict(source=LINES, target=targets)),
    ):
        batches = []
        plain = getattr(owner, method)

        def watched(self, sources, *rest, plain=plain, batches=batches):
            batches.append(len(sources))
            return plain(self, sources, *rest)

        monkeypatch.setattr(owner, method, watched)
        whole = written(tmp_path, [command, *folder], **files)
        assert len(batches) == 1
        parts = written(tmp_path, [command, *folder, "--max-tokens-per-batch", "40"], **files)
        assert len(batches) > 3
        assert sum(batches[1:]) == batches[0]
        if command == "translate":
            assert whole == parts == want
        else:
            assert [float(line) for line in parts] == pytest.approx([float(line) for line in whole], abs=1e-5)


def test_half_precision(ours, tmp_path):
    folder, _, tokenizer = ours
    model = TransductForConditionalGeneration.from_pretrained(folder[0], dtype=torch.bfloat16).eval()
    found = written(tmp_path, ["translate", *folder, "--dtype", "bfloat16", "--scores"], input=LINES)
    want = translate(model, tokenizer, LINES, return_scores=True)
    assert found == [f"{each.text}\t{each.score:.6f}" for each in want]
    assert found != written(tmp_path, ["translate", *folder, "--scores"], input=LINES)
    scored = written(tmp_path, ["score", *folder, "--dtype", "bfloat16"], source=LINES, target=LINES)
    assert [float(line) for line in scored] == pytest.approx(score(model, tokenizer, LINES, LINES), abs=1e-5)
    assert scored != written(tmp_path, ["score", *folder], source=LINES, target=LINES)

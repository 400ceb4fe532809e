"""Tokenizers and settings of generation that do not belong to their model."""

import pytest

from configs import tiny
from doctored import change_json, problems, sound_model, texts
from tiny_translation import LETTERS
from transduct import TransductConfig, TransductTokenizer
from transduct.doctor import Findings
from transduct.doctor.tokens import examine_generation, examine_tokenizer
from transduct.presets import config_from_folder

FILE = "generation_config.json"


@pytest.fixture
def folder(tmp_path):
    return sound_model(tmp_path / "model")


def tokenizer_findings(folder, **fields) -> Findings:
    findings = Findings()
    config = TransductConfig(**{**config_from_folder(folder).to_dict(), **fields})
    examine_tokenizer(folder, config, findings)
    return findings


def generation_findings(folder, **values) -> Findings:
    change_json(folder / FILE, **values)
    findings = Findings()
    examine_generation(folder, config_from_folder(folder), findings)
    return findings


def test_what_belongs_together_has_no_problem(folder):
    assert tokenizer_findings(folder).problems == []
    assert [finding.level for finding in generation_findings(folder)] == ["ok"]


def test_no_tokenizer_is_worth_knowing(tmp_path):
    findings = Findings()
    assert examine_tokenizer(tmp_path, tiny(), findings) is None
    assert "takes ids only" in texts(findings, "note")["tokenizer"]


def test_more_ids_than_embeddings(folder):
    found = problems(tokenizer_findings(folder, vocab_size=20))
    assert "but the model only 20 embeddings" in found["tokenizer"]


def test_more_ids_of_the_target_than_embeddings(tmp_path):
    tokenizer = TransductTokenizer.train(iter(["ab"]), kind="chars", target=iter([LETTERS]))
    tokenizer.save_pretrained(tmp_path)
    findings = Findings()
    sizes = dict(vocab_size=len(tokenizer), tie_embeddings="none")
    examine_tokenizer(tmp_path, tiny(**sizes, decoder_vocab_size=tokenizer.decoder_vocab_size), findings)
    assert findings.problems == []
    examine_tokenizer(tmp_path, tiny(**sizes, decoder_vocab_size=tokenizer.decoder_vocab_size - 1), findings)
    assert "ids of the target, but the decoder" in problems(findings)["tokenizer"]


def test_files_that_are_no_tokenizer(folder):
    (folder / "tokenizer.json").write_text('{"version": ')
    assert "cannot be loaded" in problems(tokenizer_findings(folder))["tokenizer"]
    (folder / "tokenizer.json").unlink()
    assert list(problems(tokenizer_findings(folder))) == ["tokenizer"]


@pytest.mark.parametrize("name", ["pad_token_id", "eos_token_id"])
def test_special_ids_that_differ(folder, name):
    found = problems(tokenizer_findings(folder, **{name: 5}))
    assert list(found) == [name]
    assert "but 5 in config.json" in found[name]


def test_any_of_several_end_tokens_will_do(folder):
    assert tokenizer_findings(folder, eos_token_id=[7, 1]).problems == []


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"eos_token_id": 999}, "eos_token_id=999 lies outside the vocabulary"),
        ({"forced_bos_token_id": -1}, "forced_bos_token_id=-1 lies outside the vocabulary"),
        ({"suppress_tokens": [3, 4000]}, "suppress_tokens=4000 lies outside"),
        ({"bad_words_ids": [[3], [4, 5000]]}, "bad_words_ids=5000 lies outside"),
        ({"decoder_start_token_id": None}, "does not know how to begin"),
        ({"eos_token_id": None}, "only end at their greatest length"),
        ({"max_length": 900}, "exceeds what 40 learned positions can decode"),
        ({"num_beams": 1, "early_stopping": True}, "early_stopping"),
    ],
)
def test_settings_that_cannot_work(folder, values, text):
    assert any(text in finding.text for finding in generation_findings(folder, **values).problems)


@pytest.mark.parametrize(
    ("values", "text"), [({"max_length": 20}, "cuts outputs after 20 tokens"), ({"pad_token_id": 3}, "in config.json 0")]
)
def test_settings_worth_knowing(folder, values, text):
    findings = generation_findings(folder, **values)
    assert findings.problems == []
    assert text in texts(findings, "note")[FILE]


def test_a_file_that_is_cut_off_or_missing(folder):
    (folder / FILE).write_text('{"num_beams"')
    findings = Findings()
    examine_generation(folder, config_from_folder(folder), findings)
    assert "is not JSON" in problems(findings)[FILE]
    (folder / FILE).unlink()
    findings = Findings()
    examine_generation(folder, config_from_folder(folder), findings)
    assert findings.problems == []
    assert "goes by config.json" in texts(findings, "note")[FILE]

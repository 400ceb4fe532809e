"""Files of fairseq and Marian through the same doors as folders of transformers: the command, its folder, the way on."""

import json

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, AutoTokenizer

from fairseq_checkpoints import WORDS, bart, fsmt, state_of, write_checkpoint, write_dictionary
from marian_checkpoints import arrays_of, marian, write_npz
from transduct.cli.main import run
from transduct.convert import to_transformers
from transduct.convert.folders import import_folder
from transduct.convert.foreign import is_foreign, open_foreign

BART = dict(
    arch="bart_base", share_all_embeddings=True, encoder_learned_pos=True, decoder_learned_pos=True, no_scale_embedding=True,
    layernorm_embedding=True, activation_fn="gelu",
)  # fmt: skip
SOURCE = torch.tensor([[5, 7, 4, 2]])


def test_files_are_foreign_and_folders_are_not(tmp_path):
    assert is_foreign(write_checkpoint(tmp_path, state_of(fsmt())))
    assert not is_foreign(tmp_path)
    assert not is_foreign(tmp_path / "missing.pt")
    assert not is_foreign(tmp_path / "dict.de.txt")


def test_the_command_imports_a_fairseq_checkpoint_and_says_what_it_checked(tmp_path, capsys):
    path, output = write_checkpoint(tmp_path, state_of(fsmt())), tmp_path / "out"
    assert run(["import", str(path), str(output)]) == 0
    said = capsys.readouterr().out
    assert "beam-4 generation: identical ids" in said
    assert "words separated by blanks" in said
    record = json.loads((output / "import.json").read_text())
    assert record["family"] == "fairseq"
    assert record["checked"]
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(output), AutoTokenizer.from_pretrained(output)
    with torch.no_grad():
        want = fsmt()(SOURCE, decoder_input_ids=SOURCE, use_cache=False).logits
        torch.testing.assert_close(model(SOURCE, decoder_input_ids=SOURCE).logits, want, rtol=0, atol=1e-4)
    batch = tokenizer("word0 word2", text_target="word1", return_tensors="pt")
    assert batch["input_ids"].tolist() == [[4, 6, 2]]
    assert model.generation_config.num_beams == 5
    assert model.generate(batch["input_ids"]).shape[1] > 2


def test_the_command_imports_a_marian_model(tmp_path, capsys):
    path, output = write_npz(tmp_path, arrays_of(marian())), tmp_path / "out"
    assert run(["import", str(path), str(output), "--vocabulary", str(tmp_path / "target.vocab.yml")]) == 0
    assert "beam-4 generation: identical ids" in capsys.readouterr().out
    assert AutoTokenizer.from_pretrained(output)("Wort3 word3").input_ids == [5, 1, 0]


def test_the_command_imports_a_classification_head(tmp_path):
    path = write_checkpoint(tmp_path, state_of(bart(WORDS["de"] + 5, classifier=True)), **BART, task="sentence_prediction")
    folder = tmp_path / "dictionaries"
    folder.mkdir()
    write_dictionary(folder / "dict.txt", WORDS["de"])
    output = tmp_path / "out"
    assert run(["import", str(path), str(output), "--head", "mnli", "--vocabulary", str(folder)]) == 0
    model = AutoModelForSequenceClassification.from_pretrained(output)
    with torch.no_grad():
        want = bart(WORDS["de"] + 5, classifier=True)(SOURCE).logits
        torch.testing.assert_close(model(SOURCE).logits, want, rtol=0, atol=1e-4)


def test_without_a_tokenizer_and_without_a_comparison(tmp_path, capsys):
    path, output = write_checkpoint(tmp_path, state_of(fsmt()), task="their_own"), tmp_path / "out"
    assert run(["import", str(path), str(output)]) == 2
    assert "puts tokens of its own around texts" in capsys.readouterr().err
    assert not output.exists()
    assert run(["import", str(path), str(output), "--no-tokenizer", "--no-verify"]) == 0
    assert "no tokenizer" in capsys.readouterr().out
    assert not (output / "tokenizer.json").exists()


def test_options_of_other_formats_are_refused(tmp_path):
    path = write_npz(tmp_path, arrays_of(marian()))
    with pytest.raises(ValueError, match="classification_head='mnli' belongs to fairseq's models"):
        open_foreign(path, classification_head="mnli")
    path = write_checkpoint(tmp_path, state_of(fsmt()))
    with pytest.raises(ValueError, match="must be the one folder that holds fairseq's dictionaries"):
        open_foreign(path, vocabularies=("a", "b"))
    with pytest.raises(ValueError, match="classification_head can be chosen for a file of fairseq or Marian alone"):
        import_folder(tmp_path, tmp_path / "out", classification_head="mnli")


def test_files_that_are_neither(tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "model.pt")
    (tmp_path / "model.bin").write_bytes(b"something else")
    for name, message in (("model.pt", "no checkpoint of fairseq"), ("model.bin", "is no file of torch.save, or is damaged")):
        with pytest.raises(ValueError, match=message):
            open_foreign(tmp_path / name)


def test_a_bart_of_fairseq_goes_on_to_transformers(tmp_path):
    """The formats are only read; the models may become any family that has all they have."""
    ours = open_foreign(write_checkpoint(tmp_path, state_of(bart(WORDS["de"] + 4)), **BART)).model()
    with pytest.raises(ValueError, match="fairseq's own format is only read, never written: choose one of t5"):
        to_transformers(ours)
    state, want = to_transformers(ours, to="bart").state_dict(), bart(WORDS["de"] + 4).state_dict()
    assert state.keys() == want.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in want.items())


def test_marians_own_positions_are_not_lost_on_the_way_on(tmp_path):
    ours = open_foreign(write_npz(tmp_path, arrays_of(marian()))).model()
    with pytest.raises(ValueError, match=r"cannot be written as marian, .*sinusoid_layout='tensor2tensor'"):
        to_transformers(ours, to="marian")

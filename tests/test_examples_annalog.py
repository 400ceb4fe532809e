"""ANNalog's published weights, which nobody here has made: the equations of its own code, and the behaviour that it reports."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from transduct.convert.checkpoint import load_without_code

PATH = Path(__file__).parents[1] / "examples" / "annalog" / "import_annalog.py"
SPEC = importlib.util.spec_from_file_location("import_annalog", PATH)
annalog = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(annalog)

MOLECULES = ["CC(=O)Oc1ccccc1C(=O)O", "C[C@H](N)C(=O)O", "Clc1ccc(Br)cc1", "C%10CCCC%10", "CN1C=NC2=C1C(=O)N(C(=O)N2C)C"]


@pytest.fixture(scope="module")
def imported():
    return annalog.import_annalog()


class Published:
    """The equations of the package's code, on its own state dict: ids (B, S), (B, T) -> logits (B, T, V)."""

    def __init__(self):
        self.state = load_without_code(annalog.package_file(annalog.WEIGHTS))

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ self.state[f"{name}.weight"].T + self.state[f"{name}.bias"]

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (256,), self.state[f"{name}.weight"], self.state[f"{name}.bias"])

    def attend(self, name: str, query: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        parts = [self.linear(f"{name}.fc_{letter}", x) for letter, x in zip("qkv", (query, memory, memory), strict=True)]
        q, k, v = (part.unflatten(-1, (8, 32)).transpose(1, 2) for part in parts)  # (B, 8, T, 32)
        energy = (q @ k.transpose(2, 3) / math.sqrt(32)).masked_fill(~mask, -1e10)
        return self.linear(f"{name}.fc_o", (energy.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def embed(self, stack: str, ids: torch.Tensor) -> torch.Tensor:
        tokens, positions = self.state[f"{stack}.tok_embedding.weight"], self.state[f"{stack}.pos_embedding.weight"]
        return tokens[ids] * 16 + positions[: ids.shape[1]]

    def feed_forward(self, layer: str, x: torch.Tensor) -> torch.Tensor:
        inner = self.linear(f"{layer}.positionwise_feedforward.fc_1", x).relu()
        return self.norm(f"{layer}.ff_layer_norm", x + self.linear(f"{layer}.positionwise_feedforward.fc_2", inner))

    def __call__(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen = (source != annalog.PAD)[:, None, None]
        past = torch.ones(target.shape[1], target.shape[1]).tril().bool()
        memory, x = self.embed("encoder", source), self.embed("decoder", target)
        for layer in (f"encoder.layers.{number}" for number in range(3)):
            memory = self.norm(
                f"{layer}.self_attn_layer_norm", memory + self.attend(f"{layer}.self_attention", memory, memory, seen)
            )
            memory = self.feed_forward(layer, memory)
        for layer in (f"decoder.layers.{number}" for number in range(3)):
            x = self.norm(f"{layer}.self_attn_layer_norm", x + self.attend(f"{layer}.self_attention", x, x, past))
            x = self.norm(f"{layer}.enc_attn_layer_norm", x + self.attend(f"{layer}.encoder_attention", x, memory, seen))
            x = self.feed_forward(layer, x)
        return self.linear("decoder.fc_out", x)


@torch.no_grad()
def test_logits_are_those_of_the_published_code(imported):
    model, tokenizer = imported
    batch = tokenizer(MOLECULES, text_target=MOLECULES[::-1], padding=True, return_tensors="pt")
    target = torch.cat([torch.full((len(MOLECULES), 1), annalog.START), batch["labels"][:, :-1]], dim=1)
    want = Published()(batch["input_ids"], target)
    got = model(batch["input_ids"], batch["attention_mask"], target).logits
    real = target != annalog.PAD
    torch.testing.assert_close(got[real], want[real], rtol=0, atol=5e-5)
    assert want[real].std() > 1  # logits of that size: the agreement is not one of zeros


def test_aspirin_has_the_analogue_that_is_published(imported):
    found = annalog.analogues(*imported, annalog.ASPIRIN, 10)
    assert "CC(=O)Oc1cccc(C(=O)O)c1" in found
    assert found[0] == annalog.ASPIRIN
    assert len(set(found)) == 10


@torch.no_grad()
def test_the_beam_finds_them_in_the_order_of_the_published_probabilities(imported):
    model, tokenizer = imported
    found = annalog.analogues(model, tokenizer, annalog.ASPIRIN, 5)
    batch = tokenizer([annalog.ASPIRIN] * 5, text_target=found, padding=True, return_tensors="pt")
    target = torch.cat([torch.full((5, 1), annalog.START), batch["labels"][:, :-1]], dim=1)
    logits = Published()(batch["input_ids"], target).log_softmax(-1)
    chosen = logits.gather(2, batch["labels"][..., None]).squeeze(2)
    scores = chosen.masked_fill(batch["labels"] == annalog.PAD, 0).sum(1)
    assert scores.tolist() == sorted(scores.tolist(), reverse=True)


def test_smiles_are_cut_into_atoms_and_come_back_as_they_were(imported):
    _, tokenizer = imported
    symbols = tokenizer.convert_ids_to_tokens(tokenizer("[C@@H](Cl)%10Brc").input_ids)
    assert symbols == ["<sos>", "[C@@H]", "(", "Cl", ")", "%10", "Br", "c", "<eos>"]
    assert len(tokenizer) == 59
    for smiles in MOLECULES:
        assert tokenizer.decode(tokenizer(smiles).input_ids, skip_special_tokens=True) == smiles


def test_the_checkpoint_is_like_any_other(imported, tmp_path):
    model, tokenizer = imported
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, its_tokenizer = AutoModelForSeq2SeqLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))
    batch = its_tokenizer(MOLECULES[1], return_tensors="pt")
    assert torch.equal(
        again.generate(**batch, num_beams=3), model.generate(**tokenizer(MOLECULES[1], return_tensors="pt"), num_beams=3)
    )


def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(annalog, "VERSION", "2.0.0")
    with pytest.raises(ValueError, match=r"annalog 1\.0\.6 is another version .*pip install --no-deps annalog==2\.0\.0"):
        annalog.package_file(annalog.WEIGHTS)
    monkeypatch.setattr(annalog, "PACKAGE", "annalog-that-is-not-there")
    with pytest.raises(ValueError, match="the package with the weights is missing"):
        annalog.package_file(annalog.WEIGHTS)

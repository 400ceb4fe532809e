"""sentence-transformers with our encoder: embeddings of texts, whatever their batch, trained, saved and loaded."""

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss
from sentence_transformers.sentence_transformer.modules import Pooling

from tiny_translation import tiny_translation
from transduct.modeling import TransductEncoderModel
from transduct.sentences import SentenceEncoder

TEXTS = ["abc", "a", "xyz xyz xyz hello there.", "no!"]


@pytest.fixture(params=["sinusoidal", "relative_bias"])
def folder(request, tmp_path):
    """An encoder-decoder with its tokenizer."""
    model, tokenizer = tiny_translation(positions=request.param)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def embedder(folder, mode: str = "mean") -> SentenceTransformer:
    encoder = SentenceEncoder(str(folder))
    return SentenceTransformer(modules=[encoder, Pooling(encoder.get_embedding_dimension(), pooling_mode=mode)], device="cpu")


def test_embeddings_are_means_of_the_encoders_states(folder):
    model = embedder(folder)
    encoder = TransductEncoderModel.from_pretrained(folder).eval()
    found = model.encode(TEXTS, convert_to_tensor=True)
    for text, embedding in zip(TEXTS, found, strict=True):
        batch = model.tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            states = encoder(batch["input_ids"], batch["attention_mask"]).last_hidden_state[0]
        torch.testing.assert_close(embedding, states.mean(0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["mean", "max", "lasttoken"])
def test_padding_changes_nothing(folder, mode):
    model = embedder(folder, mode)
    together = model.encode(TEXTS, convert_to_tensor=True, batch_size=4)
    alone = model.encode(TEXTS, convert_to_tensor=True, batch_size=1)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


def test_saved_and_loaded(folder, tmp_path):
    model = embedder(folder)
    model.save(str(tmp_path / "sentences"))
    loaded = SentenceTransformer(str(tmp_path / "sentences"), device="cpu", trust_remote_code=True)  # for a class not of theirs
    assert type(loaded[0]) is SentenceEncoder
    assert type(loaded[0].auto_model) is TransductEncoderModel
    torch.testing.assert_close(loaded.encode(TEXTS, convert_to_tensor=True), model.encode(TEXTS, convert_to_tensor=True))


def test_training_brings_pairs_together(folder, tmp_path):
    model = embedder(folder)
    pairs = Dataset.from_dict({"sentence1": ["abc", "a"], "sentence2": ["xyz", "no!"], "score": [1.0, 1.0]})
    before = model.similarity_pairwise(model.encode(pairs["sentence1"]), model.encode(pairs["sentence2"])).mean()
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path / "out"),
        max_steps=8,
        learning_rate=1e-2,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    SentenceTransformerTrainer(model, arguments, train_dataset=pairs, loss=CosineSimilarityLoss(model)).train()
    after = model.similarity_pairwise(model.encode(pairs["sentence1"]), model.encode(pairs["sentence2"])).mean()
    assert after > before

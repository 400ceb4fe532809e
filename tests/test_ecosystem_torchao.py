"""torchao: int8 weights, with activations as they are or in int8 too; in memory and in files, of which nothing is lost."""

import pytest
import torch
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8Tensor, Int8WeightOnlyConfig, quantize_
from transformers import AutoModelForSeq2SeqLM, TorchAoConfig

import transduct
from configs import SCHEMES, build, name, pad_rows, tiny, words
from transduct import TransductForConditionalGeneration

transduct.register()
every_scheme = pytest.mark.parametrize("choice", SCHEMES, ids=name)
METHODS = pytest.mark.parametrize("method", [Int8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig])
IDS, MASK = pad_rows([words(1, length, seed=length)[0] for length in (6, 3)])


def model_of(choice):
    return build(TransductForConditionalGeneration, tiny(**choice, d_ff=32), dtype=torch.float32)


def quantized(model) -> set[str]:
    """The modules whose weights are int8."""
    return {key.rpartition(".")[0] for key, weight in model.named_parameters() if isinstance(weight.data, Int8Tensor)}


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS, attention_mask=MASK, decoder_input_ids=IDS).logits


@METHODS
@every_scheme
def test_quantised_in_memory(choice, method):
    """Every product is int8, the embeddings are not; numbers stay near, and greedy search is that of the quantised model."""
    model, plain = model_of(choice), model_of(choice)
    quantize_(model, method())
    linear = {key for key, module in plain.named_modules() if isinstance(module, torch.nn.Linear)}
    assert quantized(model) == linear
    exact, rounded = logits(plain), logits(model)
    assert 0 < (rounded - exact).abs().max() < 0.1 * exact.abs().max()
    ids = model.generate(IDS, attention_mask=MASK, max_new_tokens=5, min_new_tokens=5)
    with torch.no_grad():
        steps = model(IDS, attention_mask=MASK, decoder_input_ids=ids[:, :-1]).logits
    steps[..., model.config.eos_token_id] = float("-inf")
    chosen = steps.gather(2, ids[:, 1:, None])[..., 0]
    torch.testing.assert_close(chosen, steps.amax(-1), rtol=0.02, atol=0.02)
    assert model.generate(IDS, attention_mask=MASK, max_new_tokens=5, num_beams=3).shape[0] == 2


@METHODS
def test_quantised_while_loading_and_saved(method, tmp_path):
    plain = model_of(SCHEMES[0])
    plain.save_pretrained(tmp_path / "plain")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "plain", quantization_config=TorchAoConfig(method()))
    assert "model.decoder.layers.0.feed_forward.up_proj" in quantized(model)
    model.save_pretrained(tmp_path / "int8")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "int8")
    assert quantized(loaded) == quantized(model)
    assert torch.equal(logits(loaded), logits(model))
    assert torch.equal(loaded.generate(IDS, max_new_tokens=5), model.generate(IDS, max_new_tokens=5))

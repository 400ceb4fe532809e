"""peft: LoRA and its kin, prefix tuning, prompt tuning; trained, saved, loaded through the Auto classes, merged.

`test_training_adapters.py` covers LoRA through our own options.
"""

import pytest
import torch
from peft import (
    AutoPeftModelForSeq2SeqLM,
    IA3Config,
    LoraConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    get_peft_model,
)
from transformers import AutoModelForSeq2SeqLM

import transduct
from tiny_training import tiny_model

transduct.register()

IDS = torch.tensor([[4, 5, 6, 1], [7, 8, 1, 0]])
MASK = (IDS != 0).long()
LABELS = torch.tensor([[6, 5, 4, 1], [8, 7, 1, -100]])
TASK = "SEQ_2_SEQ_LM"
LAYERS = dict(encoder_layers=2, decoder_layers=2, dropout=0.0)

METHODS = {
    "lora": LoraConfig(task_type=TASK, r=2, target_modules=["q_proj", "v_proj"]),
    "dora": LoraConfig(task_type=TASK, r=2, target_modules=["q_proj", "v_proj"], use_dora=True),
    "all layers": LoraConfig(task_type=TASK, r=2, target_modules="all-linear"),
    "ia3": IA3Config(task_type=TASK, target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "prefix": PrefixTuningConfig(task_type=TASK, num_virtual_tokens=3),
    "prompt": PromptTuningConfig(task_type=TASK, num_virtual_tokens=3),
    "p-tuning": PromptEncoderConfig(task_type=TASK, num_virtual_tokens=3, encoder_hidden_size=8),
}
MERGED = ("lora", "dora", "all layers", "ia3")


def adapted(method: str, **fields):
    """A model with new adapters; its base starts from the same weights each time."""
    torch.manual_seed(0)
    config = METHODS[method]
    return get_peft_model(tiny_model(**LAYERS | fields), type(config)(**config.to_dict()))


def loss_of(model) -> torch.Tensor:
    return model(input_ids=IDS, attention_mask=MASK, labels=LABELS).loss


def train(model, steps: int = 8):
    """A few steps of Adam; returns the model in evaluation mode."""
    optimizer = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model.train()).backward()
        optimizer.step()
    return model.eval()


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS, attention_mask=MASK, decoder_input_ids=IDS).logits


def follow(model, rows: int = 2, tokens: int = 5) -> torch.Tensor:
    """Greedy ids (rows, 1 + tokens), each token from a forward pass of its own, without a cache of generated tokens."""
    ids = torch.zeros(rows, 1, dtype=torch.long)
    for _ in range(tokens):
        with torch.no_grad():
            step = model(input_ids=IDS, attention_mask=MASK, decoder_input_ids=ids).logits[:, -1]
        step[:, 1] = float("-inf")  # so that no row ends
        ids = torch.cat([ids, step.argmax(-1, keepdim=True)], dim=1)
    return ids


def generate(model, **options) -> torch.Tensor:
    return model.generate(input_ids=IDS, attention_mask=MASK, max_new_tokens=5, min_new_tokens=5, **options)


@pytest.mark.parametrize("method", METHODS)
def test_training_lowers_the_loss_and_touches_the_adapter_alone(method):
    model = adapted(method)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters() if not weight.requires_grad}
    untrained = loss_of(model.eval()).item()
    assert loss_of(train(model)).item() < untrained
    for name, weight in model.named_parameters():
        if name in before:
            assert torch.equal(weight, before[name])


@pytest.mark.parametrize("method", METHODS)
def test_generate_follows_the_adapted_model(method):
    """Greedy search gives what the adapted forward pass gives, token by token; a prefix is not left out on the way."""
    model = train(adapted(method))
    plain = tiny_model(**LAYERS).eval()
    greedy = generate(model)
    assert torch.equal(greedy, follow(model))
    assert not torch.equal(greedy, generate(plain))
    assert generate(model, num_beams=3, num_return_sequences=3).shape == (6, 6)


@pytest.mark.parametrize("method", METHODS)
def test_saved_and_loaded_by_the_auto_class(method, tmp_path):
    tiny_model(**LAYERS).save_pretrained(tmp_path / "base")
    torch.manual_seed(0)
    config = METHODS[method]
    base = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base")
    model = train(get_peft_model(base, type(config)(**config.to_dict())))
    model.save_pretrained(tmp_path / "adapter")
    loaded = AutoPeftModelForSeq2SeqLM.from_pretrained(tmp_path / "adapter")
    torch.testing.assert_close(logits(loaded), logits(model))
    assert torch.equal(generate(loaded), generate(model))
    again = PeftModel.from_pretrained(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    torch.testing.assert_close(logits(again), logits(model))
    if method in MERGED:
        merged = loaded.merge_and_unload()
        assert type(merged) is transduct.TransductForConditionalGeneration
        torch.testing.assert_close(logits(merged), logits(model), rtol=1e-4, atol=1e-5)
        merged.save_pretrained(tmp_path / "merged")
        whole = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "merged")
        torch.testing.assert_close(logits(whole), logits(model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "fields",
    [
        {"positions": "relative_bias"},
        {"positions": "rotary", "num_key_value_heads": 1},
        {"positions": "learned", "max_positions": 30},
        {"norm_position": "pre", "norm": "rmsnorm"},
    ],
)
def test_prefixes_of_other_architectures(fields):
    model = train(adapted("prefix", **fields))
    assert torch.equal(generate(model), follow(model))


@pytest.mark.parametrize("layers", [1, 3])
def test_a_prefix_for_a_decoder_unlike_the_encoder(layers):
    """peft goes by the encoder's number of layers and the model's width, so it must be told the decoder's."""
    config = tiny_model(decoder_layers=layers, d_kv=10, decoder_num_heads=4).config
    prefix = PrefixTuningConfig(
        task_type=TASK, num_virtual_tokens=3, num_layers=config.decoder_layers, num_attention_heads=4, token_dim=4 * config.d_kv
    )
    model = get_peft_model(tiny_model(decoder_layers=layers, d_kv=10, decoder_num_heads=4, dropout=0.0), prefix)
    assert torch.equal(generate(train(model)), follow(model))


def test_gradient_checkpointing_and_a_prefix_exclude_each_other():
    model = adapted("prefix")
    model.base_model.activation_checkpointing_enable()
    with pytest.raises(ValueError, match="gradient checkpointing cannot continue a cache"):
        loss_of(model.train())


@pytest.mark.parametrize("method", ["lora", "prompt"])
def test_gradient_checkpointing_changes_no_gradient(method):
    gradients = []
    for checkpointing in (False, True):
        model = adapted(method).train()
        if checkpointing:
            model.base_model.activation_checkpointing_enable()
            model.enable_input_require_grads()
        loss_of(model).backward()
        gradients.append([weight.grad for weight in model.parameters() if weight.requires_grad])
    assert any(gradient.abs().sum() > 0 for gradient in gradients[0])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_adapters_side_by_side():
    model = adapted("lora")
    first = logits(train(model))
    model.add_adapter("second", LoraConfig(task_type=TASK, r=2, target_modules=["k_proj"]))
    model.set_adapter("second")
    second = logits(train(model))
    model.set_adapter("default")
    assert torch.equal(logits(model), first)
    with model.disable_adapter():
        torch.testing.assert_close(logits(model), logits(tiny_model(**LAYERS)))
    assert not torch.equal(first, second)

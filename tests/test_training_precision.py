"""bfloat16, activation checkpointing and compiled models through the trainer: the loss falls, and a resume goes on."""

import pytest
import torch

from tiny_training import tiny_model, tiny_trainer

OPTIONS = dict(max_tokens_per_batch=200, schedule="constant", learning_rate=0.02, max_steps=24)
WAYS = {
    "bfloat16": dict(bf16=True),
    "pure bfloat16": dict(optimizer="adafactor", ema_decay=0.5, ema_finish=False),
    "checkpointing": dict(activation_checkpointing=True),
    "bfloat16 and checkpointing": dict(bf16=True, activation_checkpointing=True, r_drop=1.0),
    "compiled": dict(torch_compile=True, torch_compile_backend="eager", max_steps=4),
}


def trainer_of(folder, way, seed=0, **more):
    model = tiny_model(seed, positions="relative_bias")
    if way == "pure bfloat16":
        model = model.bfloat16()
    return tiny_trainer(folder, model, **{**OPTIONS, **WAYS[way], **more})


@pytest.mark.slow
@pytest.mark.parametrize("way", list(WAYS))
def test_the_loss_falls_and_a_resumed_run_is_bit_equal(tmp_path, way):
    straight = trainer_of(tmp_path / "straight", way)
    straight.train()
    untrained = trainer_of(tmp_path / "untrained", way, seed=0).evaluate()["eval_loss"]
    assert straight.evaluate()["eval_loss"] < (0.99 if way == "compiled" else 0.9) * untrained
    half = straight.state.max_steps // 2
    trainer_of(tmp_path / "stopped", way, save_strategy="steps", save_steps=half).train()
    resumed = trainer_of(tmp_path / "stopped", way, seed=9)
    resumed.train(resume_from_checkpoint=str(tmp_path / "stopped" / f"checkpoint-{half}"))
    for mine, theirs in zip(resumed.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.dtype == (torch.bfloat16 if way == "pure bfloat16" else torch.float32)


def test_checkpointing_changes_no_update(tmp_path):
    results = []
    for checkpointing in (False, True):
        trainer = tiny_trainer(tmp_path, tiny_model(), **{**OPTIONS, "max_steps": 3}, activation_checkpointing=checkpointing)
        trainer.train()
        assert trainer.model.is_activation_checkpointing == checkpointing
        results.append(dict(trainer.model.named_parameters()))
    for name, parameter in results[0].items():
        torch.testing.assert_close(parameter, results[1][name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("option", "dtype"), [({}, torch.float32), ({"bf16": True}, torch.bfloat16)])
def test_the_precision_reaches_the_model(tmp_path, option, dtype):
    trainer = tiny_trainer(tmp_path, tiny_model(), **{**OPTIONS, "max_steps": 1}, **option)
    seen = []
    trainer.model.model.decoder.layers[0].feed_forward.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    trainer.train()
    assert seen[0] == dtype

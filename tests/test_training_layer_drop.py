"""Steps that leave out all layers that are trained go backward, and train nothing; processes with pieces drop the same layers."""

import numpy as np
import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration, TrainerCallback

from tiny_training import VOCABULARY, tiny_model, tiny_trainer
from transduct.training.adapters import add_lora, freeze_weights
from transduct.training.layer_drop import SameLayers, StepsWithoutLayers, may_drop_all, must_drop_alike, stacks_of

OPTIONS = dict(max_steps=6, learning_rate=0.01, weight_decay=0.1, per_device_train_batch_size=4)


class Watch(TrainerCallback):
    """Notes for each step whether the decoder's layer ran, without which the encoder's has no effect either; whether there was a
    gradient other than zero, how many weights had one, and whether weights changed."""

    def __init__(self, model):
        self.model, self.ran, self.steps = model, 0, []
        for name, module in model.named_modules():
            if name.endswith("decoder.layers.0"):
                module.register_forward_hook(self._count)

    def _count(self, *_):
        self.ran += 1

    def _trained(self):
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def on_step_begin(self, args, state, control, **kwargs):
        self.ran, self.before = 0, [parameter.detach().clone() for parameter in self._trained()]

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.gradients = [parameter.grad for parameter in self._trained() if parameter.grad is not None]

    def on_step_end(self, args, state, control, **kwargs):
        changed = any(not torch.equal(old, new) for old, new in zip(self.before, self._trained(), strict=True))
        self.steps.append((self.ran > 0, any(gradient.any() for gradient in self.gradients), len(self.gradients), changed))


def adapted(**fields):
    return add_lora(tiny_model(**fields), {"rank": 2})


def frozen(**fields):
    model = tiny_model(**fields)
    freeze_weights(model, ["embeddings"])
    return model


@pytest.mark.parametrize("make", [adapted, frozen])
@pytest.mark.parametrize("options", [{}, {"label_smoothing_factor": 0.1}, {"optimizer": "adafactor"}, {"optim": "sgd"}])
def test_a_step_without_layers_trains_nothing_and_others_do(tmp_path, make, options):
    model = make(layer_drop=0.6)
    trainer, watch = tiny_trainer(tmp_path, model, **OPTIONS, **options), Watch(model)
    trainer.add_callback(watch)
    trainer.train()
    assert {ran for ran, *_ in watch.steps} == {False, True}
    for ran, has_gradient, count, changed in watch.steps:
        assert ran == has_gradient == (count > 0) == changed
    assert not any(isinstance(hook.__self__, StepsWithoutLayers) for hook in model._forward_hooks.values())


def test_a_loss_scaler_finds_a_gradient_of_zero(tmp_path):
    model = adapted(layer_drop=0.6)
    trainer, watch = tiny_trainer(tmp_path, model, **OPTIONS), Watch(model)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    trainer.add_callback(watch)
    trainer.train()
    assert {(ran, has_gradient) for ran, has_gradient, *_ in watch.steps} == {(False, False), (True, True)}
    assert {count for ran, _, count, _ in watch.steps if not ran} == {1}


def test_only_models_that_may_need_it_get_the_hook(tmp_path):
    assert may_drop_all(adapted(decoder_layer_drop=0.1))
    assert may_drop_all(frozen(layer_drop=0.1))
    assert not may_drop_all(tiny_model(layer_drop=0.1))
    assert not may_drop_all(adapted())
    trainer = tiny_trainer(tmp_path, tiny_model(layer_drop=0.1), **OPTIONS | {"max_steps": 1})
    trainer.train()
    assert not any(isinstance(callback, StepsWithoutLayers) for callback in trainer.callback_handler.callbacks)


def test_compiled_models_are_refused_by_the_names_of_the_options(tmp_path):
    trainer = tiny_trainer(tmp_path, frozen(layer_drop=0.1), **OPTIONS)
    trainer.args.torch_compile = True
    with pytest.raises(ValueError, match="layer_drop with frozen weights or adapters and torch_compile exclude each other"):
        StepsWithoutLayers(trainer).on_train_begin(trainer.args, trainer.state, trainer.control, model=trainer.model)


def test_other_packages_cannot_drop_layers_in_pieces(tmp_path):
    bart = BartForConditionalGeneration(
        BartConfig(
            vocab_size=VOCABULARY, d_model=8, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=8, decoder_ffn_dim=8,
            encoder_attention_heads=2, decoder_attention_heads=2, decoder_layerdrop=0.1, max_position_embeddings=16,
        )
    )  # fmt: skip
    trainer = tiny_trainer(tmp_path, bart)
    assert not must_drop_alike(trainer)
    trainer.is_fsdp_enabled = True
    with pytest.raises(ValueError, match="BartForConditionalGeneration drops layers: processes"):
        must_drop_alike(trainer)
    bart.config.decoder_layerdrop = 0.0
    assert not must_drop_alike(trainer)
    trainer.model = adapted(layer_drop=0.1)
    assert must_drop_alike(trainer)


def test_layers_by_seed_step_and_pass(tmp_path):
    """The draws of a pass do not depend on what was drawn before it, and are left alone afterwards."""
    model = tiny_model(layer_drop=0.5, encoder_layers=4)
    trainer, seen = tiny_trainer(tmp_path, model, gradient_accumulation_steps=2, **OPTIONS), []
    hooks = SameLayers()
    begin = hooks._begin

    def noted(*args):
        torch.rand(len(seen))  # as dropout would, in each process otherwise
        begin(*args)
        seen.append(torch.rand(3, generator=hooks.draws).tolist())

    hooks._begin = noted
    trainer.add_callback(hooks)
    trainer.train()
    places = [(step, number) for step in range(6) for number in range(2)]
    again = [torch.Generator().manual_seed(int(np.random.SeedSequence((7, *place)).generate_state(1)[0])) for place in places]
    assert seen == [torch.rand(3, generator=draws).tolist() for draws in again]
    assert all(stack.layer_drop_draws is None for stack in stacks_of(model))

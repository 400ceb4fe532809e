"""What a conversion must keep, for any model of transformers: the checks that the tests of all families share.

A family's test file lists `Case`s and inherits the classes here, so that each case goes through each check:

    @pytest.mark.parametrize("case", CASES, ids=str)
    class TestMarian(GenerationTests, LeftPaddingTests, ConversionTests):
        pass

`ConversionTests` suits every class, `LeftPaddingTests` those that read text, `GenerationTests` those that generate.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.mt5.modeling_mt5 import MT5LayerNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm
from transformers.models.umt5.modeling_umt5 import UMT5LayerNorm

from transduct.configuration import TransductConfig
from transduct.convert import from_transformers, to_transformers
from transduct.convert.checkpoint import Checkpoint
from transduct.convert.models import export_plan, import_plan
from transduct.convert.verifying import verify

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
LENGTHS = (9, 5, 3)
"""Tokens of each source row, the end of sequence included."""
NEW_TOKENS = 12
OUTPUTS = ("logits", "start_logits", "end_logits", "last_hidden_state")
INFERS_TARGETS = ("SequenceClassification", "QuestionAnswering")
"""Classes that make the decoder's inputs from the source."""


@dataclass(frozen=True, eq=False)
class Case:
    """One tiny model of transformers."""

    name: str
    model_class: type[PreTrainedModel]
    config: PreTrainedConfig
    untie: tuple[str, ...] = ()
    """Modules whose matrix becomes one of their own, where the class ties them whatever its config says."""
    draw: tuple[str, ...] = ()
    """Weights to be drawn beside the trained ones: frozen tables and buffers that a checkpoint brings."""
    inputs: Callable[[PreTrainedConfig], dict[str, torch.Tensor]] | None = None
    """The source, where it is not text: named inputs, in float32."""
    generate: dict[str, Any] = field(default_factory=dict)
    """Options of their `generate` alone: T5's cache there fails for unequal depths, {"use_cache": False}."""
    forced: dict[str, Any] = field(default_factory=lambda: {"forced_bos_token_id": 11, "forced_eos_token_id": 12})
    """Options of generation with forced tokens."""
    prepare: Callable[[PreTrainedModel], None] | None = None
    """Changes the random weights."""

    def __str__(self) -> str:
        return self.name


def build(case: Case) -> PreTrainedModel:
    """Their model with random weights, in evaluation mode: matrices of norm about one, norms about one, biases far from zero."""
    model = case.model_class(case.config)
    for name in case.untie:
        module = model.get_submodule(name)
        module.weight = torch.nn.Parameter(torch.empty_like(module.weight))
    generator = torch.Generator().manual_seed(1)
    state = model.state_dict(keep_vars=True)
    with torch.no_grad():
        for name, weight in state.items():
            trained = isinstance(weight, torch.nn.Parameter) and weight.requires_grad
            if trained or name in case.draw or name.endswith("final_logits_bias"):
                noise = torch.randn(weight.shape, generator=generator)
                center = 1.0 if "norm" in name and "bias" not in name else 0.0
                weight.copy_(noise * 0.35 if weight.ndim > 1 and "final_logits_bias" not in name else noise * 0.2 + center)
        if case.prepare is not None:
            case.prepare(model)
    return model.eval()


@cache
def pair(case: Case, dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Their model and ours with the same weights, in evaluation mode."""
    theirs = build(case).to(dtype)
    return theirs, from_transformers(theirs, verify=False)


def imported(
    theirs: PreTrainedModel, state: dict[str, torch.Tensor], **values: Any
) -> tuple[TransductConfig, dict[str, torch.Tensor]]:
    """Our config and tensors for a checkpoint with this state, and a config that says this as well."""
    checkpoint = Checkpoint.of_state_dict(state, "checkpoint")
    plan = import_plan(theirs.config.to_dict() | values, type(theirs).__name__, checkpoint, "checkpoint")
    return plan.config, dict(plan.to_ours(checkpoint))


def ordinary_ids(config: PreTrainedConfig) -> torch.Tensor:
    """Ids without a special meaning."""
    values = [config.to_dict().get(name) for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")]
    size = min(config.vocab_size, getattr(config, "decoder_vocab_size", None) or config.vocab_size)
    return torch.tensor([token for token in range(3, size) if token not in values])


def source(case: Case) -> dict[str, torch.Tensor]:
    """A right-padded batch, each row ending in the end of sequence."""
    if case.inputs is not None:
        return case.inputs(case.config)
    allowed = ordinary_ids(case.config)
    lengths = torch.tensor(LENGTHS)
    generator = torch.Generator().manual_seed(2)
    ids = allowed[torch.randint(len(allowed), (len(LENGTHS), max(LENGTHS)), generator=generator)]
    ids[torch.arange(len(LENGTHS)), lengths - 1] = case.config.eos_token_id
    mask = (torch.arange(max(LENGTHS)) < lengths[:, None]).long()
    return {"input_ids": ids.masked_fill(mask == 0, case.config.pad_token_id), "attention_mask": mask}


def target(case: Case, rows: int = len(LENGTHS), length: int = 6) -> dict[str, torch.Tensor]:
    """Inputs of the decoder, where the class takes any."""
    if not case.config.is_encoder_decoder or case.model_class.__name__.endswith(("EncoderModel", "TokenClassification")):
        return {}
    if case.model_class.__name__.endswith(INFERS_TARGETS):
        return {}
    allowed = ordinary_ids(case.config)
    ids = allowed[torch.randint(len(allowed), (rows, length), generator=torch.Generator().manual_seed(3))]
    ids[:, 0] = case.config.decoder_start_token_id
    return {"decoder_input_ids": ids}


def inputs(case: Case, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    both = source(case) | target(case)
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in both.items()}


def compared(output: Any, mask: torch.Tensor | None, infers: bool) -> dict[str, torch.Tensor]:
    """What two models must agree in: states of each layer and outputs, zero where the source is padding.

    Args:
        mask: (B, S) of the source, or None; infers: the decoder reads the source's tokens, padding included.
    """
    both = "encoder_last_hidden_state" in output
    tensors = {}
    for key, of_source in (("encoder_hidden_states", True), ("decoder_hidden_states", infers), ("hidden_states", True)):
        for number, state in enumerate(output.get(key) or ()):
            tensors[f"{key}[{number}]"] = hide(state, mask if of_source else None)
    for key in OUTPUTS:
        if key in output:
            tensors[key] = hide(output[key], mask if infers or not both else None)
    return tensors


def hide(tensor: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    if mask is None or tensor.shape[:2] != mask.shape:  # the logits of a whole row, or states of frames
        return tensor
    return tensor.where(mask.bool().view(*mask.shape, *[1] * (tensor.ndim - 2)), torch.zeros_like(tensor))


def assert_close(got: torch.Tensor, want: torch.Tensor, tolerance: float, name: str) -> None:
    """Within `tolerance`, of the largest value where that is over one."""
    assert got.shape == want.shape, f"{name}: {tuple(got.shape)} and {tuple(want.shape)}"
    error = (got - want).abs().max().item()
    assert error <= tolerance * max(1.0, want.abs().max().item()), f"{name} differs by {error}"


def without_record(config: PreTrainedConfig, like: PreTrainedConfig) -> dict[str, Any]:
    """All values of a config but the record of where it was written, unless the config `like` has one."""
    original = like.to_dict()
    record = {"architectures", "_name_or_path", "dtype", "transformers_version"}
    return {key: value for key, value in config.to_dict().items() if key not in record or original.get(key) is not None}


def float64_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The norms of transformers' T5s round the variance to float32 whatever the input; that alone exceeds 1e-10."""

    def forward(self, hidden_states):
        return self.weight * hidden_states * torch.rsqrt(hidden_states.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    for norm in (T5LayerNorm, MT5LayerNorm, UMT5LayerNorm):
        monkeypatch.setattr(norm, "forward", forward)


class ConversionTests:
    """The same numbers, and everything back again."""

    @pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
    def test_states_of_every_layer_and_outputs(self, case: Case, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
        if dtype == torch.float64:
            float64_norms(monkeypatch)
        batch = inputs(case, dtype)
        mask, infers = batch.get("attention_mask"), case.model_class.__name__.endswith(INFERS_TARGETS)
        with torch.no_grad():
            want, got = (compared(model(**batch, output_hidden_states=True), mask, infers) for model in pair(case, dtype))
        assert set(got) == set(want)
        assert max(want[name].abs().max() for name in OUTPUTS if name in want) > 0.5
        for name in want:
            assert_close(got[name], want[name], TOLERANCE[dtype], name)

    def test_gradients_of_every_weight(self, case: Case, monkeypatch: pytest.MonkeyPatch):
        float64_norms(monkeypatch)
        theirs, ours = pair(case, torch.float64)
        batch = inputs(case, torch.float64)
        mask, infers = batch.get("attention_mask"), case.model_class.__name__.endswith(INFERS_TARGETS)
        for model in (theirs, ours):
            model.zero_grad()
            outputs = {name: value for name, value in compared(model(**batch), mask, infers).items() if name in OUTPUTS}
            generator = torch.Generator().manual_seed(4)
            weights = {name: torch.randn(value.shape, generator=generator).double() for name, value in outputs.items()}
            sum((outputs[name] * weights[name]).sum() for name in outputs).backward()
        table = export_plan(ours.config, type(ours).__name__, None, "")[0].table()
        gradients = {name: weight.grad for name, weight in theirs.named_parameters(remove_duplicate=False)}
        mine = dict(ours.named_parameters())
        largest = max(gradient.abs().max() for gradient in gradients.values() if gradient is not None)
        compared_here = 0
        for name, others in table.items():
            want = next((gradients[other] for other in others if gradients.get(other) is not None), None)
            if want is None:  # a buffer or a frozen table there, or a weight that these outputs do not depend on
                buffer = others[0] in dict(theirs.named_buffers())
                frozen = name not in mine or not mine[name].requires_grad
                assert buffer or frozen or mine[name].grad is None, f"{name} has a gradient, but not {others}"
                continue
            scale = max(want.abs().max(), largest / 100)  # the gradient of a key's bias is zero but for rounding
            error = (mine[name].grad.view(want.shape) - want).abs().max() / scale
            assert error <= 1e-10, f"the gradient of {name} differs by {error} of itself"
            compared_here += 1
        assert compared_here >= len(table) // 2

    def test_the_comparison_of_both_finds_them_equal(self, case: Case):
        theirs, ours = pair(case)
        result = verify(theirs, ours)
        assert result.differences
        assert not result.ties

    def test_there_and_back(self, case: Case):
        theirs, ours = pair(case)
        back = to_transformers(ours, verify=False)
        assert type(back) is type(theirs)
        want, got = theirs.state_dict(), back.state_dict()
        assert list(got) == list(want)
        assert all(got[name].dtype == want[name].dtype and torch.equal(got[name], want[name]) for name in want)
        want, got = (without_record(config, theirs.config) for config in (theirs.config, back.config))
        missing = "absent"
        differing = sorted(key for key in got.keys() | want if got.get(key, missing) != want.get(key, missing))
        assert not differing, [(key, got.get(key, missing), want.get(key, missing)) for key in differing]
        if theirs.can_generate():
            assert back.generation_config.to_dict() == theirs.generation_config.to_dict()

    def test_exported_folder_loads_there(self, case: Case, tmp_path):
        theirs, ours = pair(case)
        to_transformers(ours, verify=False).save_pretrained(tmp_path)
        loaded, info = type(theirs).from_pretrained(tmp_path, output_loading_info=True)
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        batch = inputs(case, torch.float32)
        with torch.no_grad():
            want, got = theirs(**batch), loaded.eval()(**batch)
        assert all(torch.equal(want[name], got[name]) for name in OUTPUTS if name in want)


class LeftPaddingTests:
    """Sources padded on the left, which count as the unpadded ones, even where the original class does otherwise."""

    def test_left_padded_sources_are_the_unpadded_ones(self, case: Case, monkeypatch: pytest.MonkeyPatch):
        float64_norms(monkeypatch)
        theirs, ours = pair(case, torch.float64)
        right, decoder = source(case), target(case)
        left = {name: torch.stack([row.roll(-length) for row, length in zip(value, LENGTHS, strict=True)])
                for name, value in right.items()}  # fmt: skip
        with torch.no_grad():
            got = ours(**left, **decoder)
            for row, length in enumerate(LENGTHS):
                alone = {name: value[row : row + 1, :length] for name, value in right.items()}
                want = theirs(**alone, **{name: value[row : row + 1] for name, value in decoder.items()})
                for name in OUTPUTS:
                    if name in want:
                        mine = got[name][row : row + 1]
                        of_source = mine.ndim > 1 and mine.shape[1] == max(LENGTHS)
                        assert_close(mine[:, -length:] if of_source else mine, want[name], 1e-10, name)


class GenerationTests:
    """The same ids."""

    @pytest.mark.parametrize("beams", [1, 4])
    def test_generated_ids(self, case: Case, beams: int):
        self.assert_same(case, num_beams=beams)

    @pytest.mark.parametrize("beams", [1, 4])
    def test_generated_ids_with_forced_tokens(self, case: Case, beams: int):
        self.assert_same(case, num_beams=beams, **case.forced)

    def test_generated_ids_after_a_prompt(self, case: Case):
        prompt = target(case, length=3)
        generated = self.assert_same(case, num_beams=4, **prompt)
        assert [row[:3] for row in generated] == prompt["decoder_input_ids"].tolist()

    def test_generated_ids_of_left_padded_sources(self, case: Case):
        """Those that the original gives for each row alone."""
        if case.inputs is not None:
            return  # no text
        theirs, ours = pair(case)
        right = source(case)
        left = {name: torch.stack([row.roll(-length) for row, length in zip(value, LENGTHS, strict=True)])
                for name, value in right.items()}  # fmt: skip
        got = ours.generate(**left, max_new_tokens=NEW_TOKENS, num_beams=4)
        for row, length in enumerate(LENGTHS):
            alone = {name: value[row : row + 1, :length] for name, value in right.items()}
            want = theirs.generate(**alone, max_new_tokens=NEW_TOKENS, num_beams=4, **case.generate)[0].tolist()
            assert got[row].tolist()[: len(want)] == want

    @staticmethod
    def assert_same(case: Case, **options: Any) -> list[list[int]]:
        theirs, ours = pair(case)
        batch = source(case)
        want = theirs.generate(**batch, max_new_tokens=NEW_TOKENS, **options, **case.generate).tolist()
        got = ours.generate(**batch, max_new_tokens=NEW_TOKENS, **options).tolist()
        assert got == want
        return got

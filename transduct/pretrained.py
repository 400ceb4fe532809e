"""What all model classes share: initialisation, strict loading, and code that travels with each checkpoint.

Loading refuses missing, extra and misshapen weights: nothing is ever initialised behind the user's back.
"""

import os
import shutil
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.dynamic_module_utils import get_relative_import_files

from .attention import MultiHeadAttention
from .configuration import TransductConfig
from .features import LinearStem
from .layers import FeedForward, RMSNorm
from .positions import LearnedPositions, RelativePositionBias, SinusoidalPositions, sinusoid_table

HUB_OPTIONS = ("repo_id", "commit_message", "commit_description", "create_pr", "private", "revision", "tags", "token")
"""Of `save_pretrained(push_to_hub=True)`."""


class TransductPreTrainedModel(PreTrainedModel):
    """Loading, saving and initialisation for all classes."""

    config: TransductConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True  # the loss is divided by `num_items_in_batch`
    reads_source = True  # has an encoder
    new_head: str | None = None  # prefix of weights that a checkpoint of another class may lack: a head yet to be trained
    _keys_to_ignore_on_load_unexpected: list[str] | set[str] | None = None
    _no_split_modules = ["EncoderLayer", "DecoderLayer"]
    _skip_keys_device_placement = ["cache", "past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True  # where positions add no bias to the scores; see `Stack.takes_runs`
    _supports_flex_attn = True
    _can_compile_fullgraph = True

    def __init__(self, config: TransductConfig, *args, **kwargs):
        config.validate_architecture()  # its fields may have been set one by one since it was made
        super().__init__(config, *args, **kwargs)
        if self.reads_source and config.encoder_input == "features":
            self.main_input_name = "input_features"  # for `generate` and the trainer

    def post_init(self) -> None:
        super().post_init()  # which adds the patterns of inner models: TransductModel has no place for a head, but this class may
        self._keys_to_ignore_on_load_unexpected = set(type(self)._keys_to_ignore_on_load_unexpected or ())

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        """As of transformers' own models: in code that is not its own, it passes over modules without weights of their own, such
        as attention and feed-forwards, which know the standard deviations of their projections."""
        super()._initialize_weights(module)

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise one module; standard deviations by scheme:

        | weights                     | xavier          | t5 (T5 section 2.1, Mesh TensorFlow)  | normal          |
        |-----------------------------|-----------------|---------------------------------------|-----------------|
        | token, learned positions    | d^-0.5          | 1                                     | initializer_std |
        | untied output, bias buckets | d^-0.5          | d^-0.5                                | initializer_std |
        | q                           | Xavier uniform  | (d * d_kv)^-0.5                       | initializer_std |
        | k, v, up, gate              | Xavier uniform  | d^-0.5                                | initializer_std |
        | o                           | Xavier uniform  | (heads * d_value)^-0.5                | initializer_std |
        | down                        | Xavier uniform  | d_ff^-0.5                             | initializer_std |
        | stem of features            | Xavier uniform  | (values that one output sums up)^-0.5 | initializer_std |

        Frozen positions are sinusoids (Whisper). Biases start at 0, norm weights at 1. With `freeze_padding_embedding`, the
        padding token's row is 0.
        """
        scheme, width = self.config.initializer, self.config.d_model
        if isinstance(module, nn.Linear):  # a head; the layers' projections are set again below
            self._fill(module.weight, width**-0.5)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, LearnedPositions) and not module.weight.requires_grad:
            init.copy_(module.weight, sinusoid_table(module.weight.shape[0], width, "tensor2tensor"))
        elif isinstance(module, nn.Embedding):
            self._fill(module.weight, 1.0 if scheme == "t5" else width**-0.5)
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, MultiHeadAttention):
            self._project(module.q_proj, (width * module.q_proj.out_features / module.num_heads) ** -0.5)
            self._project(module.k_proj, width**-0.5)
            self._project(module.v_proj, width**-0.5)
            self._project(module.o_proj, module.o_proj.in_features**-0.5)
        elif isinstance(module, FeedForward):
            for linear in (module.up_proj, module.gate_proj, module.down_proj):
                if linear is not None:
                    self._project(linear, linear.in_features**-0.5)
        elif isinstance(module, LinearStem):
            self._project(module.proj, module.proj.in_features**-0.5)
        elif isinstance(module, nn.Conv1d):
            self._project(module, module.weight[0].numel() ** -0.5)
            init.zeros_(module.bias)
        elif isinstance(module, RelativePositionBias):
            self._fill(module.table.weight, width**-0.5)
        elif isinstance(module, (nn.LayerNorm, RMSNorm)):
            init.ones_(module.weight)
            if getattr(module, "bias", None) is not None:
                init.zeros_(module.bias)
        elif isinstance(module, SinusoidalPositions):
            init.copy_(module.table, sinusoid_table(module.table.shape[0], width, module.layout))

    def _fill(self, weight: torch.Tensor, std: float) -> None:
        init.normal_(weight, std=self.config.initializer_std if self.config.initializer == "normal" else std)

    def _project(self, linear: nn.Linear | nn.Conv1d, std: float) -> None:
        if self.config.initializer == "xavier":
            init.xavier_uniform_(linear.weight)
        else:
            self._fill(linear.weight, std)

    @staticmethod
    def _finalize_model_loading(model, load_config, loading_info):
        """As in transformers, then refuse a checkpoint that does not fit instead of continuing with random weights."""
        tied = set(model.all_tied_weights_keys)
        if loading_info.mismatched_keys and not load_config.ignore_mismatched_sizes:
            misshapen = sorted(
                f"{key}: {tuple(stored)}, not {tuple(wanted)}" for key, stored, wanted in loading_info.mismatched_keys
            )
            raise ValueError(
                f"{load_config.pretrained_model_name_or_path}: weights of another shape than the config says: {misshapen}"
            )
        loading_info = PreTrainedModel._finalize_model_loading(model, load_config, loading_info)
        missing = set(loading_info.missing_keys)
        head = {key for key in model.state_dict() if model.new_head and key.startswith(model.new_head)}
        if head <= missing and type(model).__name__ not in (model.config.architectures or ()):
            missing -= head  # of a checkpoint of another class: yet to be trained
        untied = tied - set(model.all_tied_weights_keys)
        problems = []
        if missing:
            problems.append(f"weights are missing: {sorted(missing)}")
        if loading_info.unexpected_keys:
            problems.append(f"weights that the config has no place for: {sorted(loading_info.unexpected_keys)}")
        if untied:
            tie = f"tie_embeddings={model.config.tie_embeddings!r}"
            problems.append(f"weights that {tie} ties, stored with different values: {sorted(untied)}")
        if problems:
            path = load_config.pretrained_model_name_or_path
            raise ValueError(f"{path} does not fit {type(model).__name__}: {'; '.join(problems)}")
        return loading_info

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs) -> None:
        """Save weights, configs, and the modules that `trust_remote_code=True` needs where the package is absent.

        Args:
            push_to_hub: share the model too, as `push_to_hub` does; options of that method may be among `kwargs`.

        Raises:
            ValueError: for options of saving that `push_to_hub`, which saves the model once more, would not know of.
        """
        hub = {name: kwargs.pop(name) for name in HUB_OPTIONS if name in kwargs}
        others = sorted(set(kwargs) - {"is_main_process", "max_shard_size"})
        if push_to_hub and others:
            raise ValueError(f"push_to_hub=True knows nothing of {', '.join(others)}: save first, then upload the folder")
        super().save_pretrained(save_directory, **kwargs)
        if kwargs.pop("is_main_process", True):
            ship_code(Path(save_directory))
            if push_to_hub:
                self.push_to_hub(hub.pop("repo_id", Path(save_directory).name), **hub, **kwargs)

    def return_options(self, output_attentions: bool | None, output_hidden_states: bool | None, return_dict: bool | None):
        """The caller's wishes, or the config's: whether to return attentions, hidden states, and a `ModelOutput`."""
        config = self.config
        return (
            config.output_attentions if output_attentions is None else output_attentions,
            config.output_hidden_states if output_hidden_states is None else output_hidden_states,
            config.return_dict if return_dict is None else return_dict,
        )

    @property
    def dummy_inputs(self) -> dict[str, torch.Tensor]:
        ids = torch.arange(2, 6, device=self.device).clamp(max=self.config.vocab_size - 1)[None]
        source = ids
        if self.main_input_name == "input_features":
            frames = torch.zeros(1, 4, self.config.feature_size or 0, device=self.device, dtype=self.dtype)
            source = frames if self.config.feature_layout == "time_first" else frames.transpose(1, 2)
        inputs = {self.main_input_name: source}
        return inputs | {"decoder_input_ids": ids} if self.config.is_encoder_decoder else inputs


def code_files() -> list[str]:
    """`modeling.py` and all that it imports from beside it."""
    modeling = Path(__file__).with_name("modeling.py")
    return [str(modeling), *get_relative_import_files(modeling)]


def ship_code(folder: Path) -> None:
    """Copy the modules that a checkpoint needs where the package is absent."""
    for file in code_files():
        shutil.copyfile(file, folder / Path(file).name)


def refuse_features(model_class: type, config: TransductConfig) -> None:
    """Raises ValueError if the source is no text, for classes that need one."""
    if config.encoder_input == "features":
        raise ValueError(f'encoder_input="features" has no tokens that {model_class.__name__} could predict or point at')


def one_cache(cache: Cache | None, past_key_values: Cache | None) -> Cache | None:
    """`past_key_values` is the older name of `cache`."""
    if cache is not None and past_key_values is not None:
        raise ValueError("pass either cache or past_key_values, its older name, not both")
    return past_key_values if cache is None else cache

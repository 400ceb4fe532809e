"""The options of another family's config: each is taken by name, and what nobody took is an error, never ignored."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any

from transformers import GenerationConfig, PreTrainedConfig

INHERITED = frozenset(f.name for f in fields(PreTrainedConfig)) | {
    "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal", "_commit_hash",
    "_experts_implementation_internal", "_name_or_path", "_num_labels", "architectures", "attn_implementation", "auto_map",
    "dtype", "finetuning_task", "gradient_checkpointing", "is_decoder", "is_encoder_decoder", "model_type", "num_labels",
    "prefix", "task_specific_params", "tf_legacy_loss", "tokenizer_class", "torch_dtype", "torchscript", "transformers_version",
    "use_bfloat16", "use_cache", "xla_device",
}  # fmt: skip
"""What any config holds and no architecture depends on."""

GENERATION = frozenset(vars(GenerationConfig())) | {"force_bos_token_to_be_generated"}
"""Settings of generation, which older config files hold as well; they become the generation config."""


class Options:
    """The values of a config, with defaults filled in.

    Args:
        values: all values; said: those that the file itself holds; where: for errors.
    """

    def __init__(self, values: Mapping[str, Any], said: Collection[str], where: str):
        self.values = dict(values)
        self.said = set(said)
        self.where = where
        self._taken: set[str] = set()

    def take(self, name: str, default: Any = None) -> Any:
        """The value of one option."""
        self._taken.add(name)
        return self.values.get(name, default)

    @property
    def by_transformers_5(self) -> bool:
        """Whether transformers 5 says that it wrote them; who says nothing is taken for an older one."""
        return str(self.values.get("transformers_version") or "4").startswith("5")

    @property
    def taken(self) -> frozenset[str]:
        """The names asked for so far."""
        return frozenset(self._taken)

    def require(self, name: str, expected: Any, why: str) -> None:
        """Take an option of which one value alone can be expressed.

        Raises:
            ValueError: for any other value, with the reason.
        """
        value = self.take(name, expected)
        if value != expected:
            raise ValueError(f"{self.where}: {name}={value!r} cannot be imported, only {expected!r}: {why}")

    def finish(self, without_effect: Iterable[str] = ()) -> None:
        """Refuse options that nobody took and that are not known to have no effect.

        Raises:
            ValueError: naming them.
        """
        known = self._taken | INHERITED | GENERATION | set(without_effect)
        unknown = sorted(name for name in self.said - known)
        if unknown:
            values = ", ".join(f"{name}={self.values[name]!r}" for name in unknown)
            raise ValueError(
                f"{self.where}: unknown options {values}; what they change is not known here. Remove those that change nothing "
                "from its config.json and import it again"
            )

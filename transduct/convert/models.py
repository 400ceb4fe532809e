"""Which config and which tensors of another family are which of ours, for models in memory (`memory.py`) and for folders.

A `Conversion` says which tensor is which. Both directions use the same table, so what was imported is exported bit by bit.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel

from transduct import modeling
from transduct.configuration import TransductConfig
from transduct.convert.checkpoint import Checkpoint
from transduct.convert.expressible import outputs_of, reads_source_alone
from transduct.convert.families import family_of
from transduct.convert.family import SOURCE, TARGET, Family, their_names
from transduct.convert.options import Options

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Conversion:
    """What belongs together of a model there and a model here."""

    family: Family
    their_class: str
    config: TransductConfig
    """Ours, for either direction."""
    where: str

    @property
    def our_class(self) -> type[PreTrainedModel]:
        return getattr(modeling, self.family.our_class(self.their_class))

    @property
    def computed(self) -> Mapping[str, Callable[[], torch.Tensor]]:
        """Their tensors that ours have no counterpart of, since they follow from the config."""
        return self.family.computed(self.config, self.their_class)

    @property
    def unread(self) -> str | None:
        """The name of a matrix that their class has and reads for nothing, or None."""
        names = self.family.names(self.config)
        return f"{self.family.classes[self.their_class][1]}{names.shared}.weight" if names.apart and names.shared else None

    def table(self) -> dict[str, tuple[str, ...]]:
        """For each of our tensors, tied ones once, their names for it, the one to write first."""
        return their_names(self.family, self.config, self.their_class, self._our_names())

    def marks(self, tied: bool) -> Checkpoint:
        """What a family may read of tensors, before any is written: the first name of each, with values that agree in all if
        `tied`, and in none if not."""
        marks: dict[str, torch.Tensor] = {}
        for number, name in enumerate(self._our_names(), start=1):
            with suppress(ValueError):  # no place for it: the fields of the config say why
                table = their_names(self.family, self.config, self.their_class, [name])
                marks[table[name][0]] = torch.tensor([1 if tied else number])
        return Checkpoint.of_state_dict(marks, self.where)

    def check_untied(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint that ties no output projection to embeddings, but lacks one of them.

        Raises:
            ValueError: naming what is missing. Taking the other one for it would be a guess.
        """
        names = self.family.names(self.config)
        inputs = [checkpoint.find(f"{name}.weight") for name in (names.shared, SOURCE, TARGET)]
        missing = [] if any(name in checkpoint for name in inputs) else [inputs[0]]
        if hasattr(self.our_class, "project") and f"{names.output}.weight" not in checkpoint:
            missing.append(f"{names.output}.weight")
        if missing:
            raise ValueError(
                f"{self.where} has tie_word_embeddings=False but no {' and no '.join(missing)}; if embeddings and output "
                "projection are one matrix, set it to true in config.json"
            )

    def _our_names(self) -> list[str]:
        with torch.device("meta"):
            model = self.our_class(self.config)
        return [name for name in model.state_dict() if name not in model.all_tied_weights_keys]

    def to_ours(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Our tensors, one by one.

        Raises:
            ValueError: if tensors are missing or unexpected, or two names of one matrix hold different values.
        """
        table = self.table()
        self.check(table, checkpoint)
        for name, theirs in table.items():
            held = [other for other in theirs if other in checkpoint]
            for other in held[1:]:
                if other != self.unread and not checkpoint.same(held[0], other):
                    raise ValueError(f"{self.where}: {held[0]} and {other} should be one matrix, but hold different values")
            tensor = checkpoint.tensor(held[0])
            yield name, tensor[0] if theirs[0] in self.family.without_row else tensor

    def unread_tensors(self, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
        """A copy of their `unread` matrix, where it holds other values than `to_theirs` would give it: see `unread.py`."""
        if self.unread is None or self.unread not in checkpoint:
            return {}
        twins = next(theirs for theirs in self.table().values() if self.unread in theirs)
        read = next(name for name in twins if name in checkpoint)
        return {} if checkpoint.same(read, self.unread) else {self.unread: checkpoint.tensor(self.unread).clone()}

    def to_theirs(
        self, state: Mapping[str, torch.Tensor] | Checkpoint, unread: Mapping[str, torch.Tensor] | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Their tensors, one by one, each tied one under its first name, or under each that their class does not tie.

        Args:
            unread: what `unread_tensors` gave; one of another shape, as after resizing, is out of date, and a copy of the matrix
                that is read takes its place.
        """
        read = state.tensor if isinstance(state, Checkpoint) else state.__getitem__
        apart = self.family.names(self.config).apart
        dtype = torch.float32
        for name, theirs in self.table().items():
            tensor = read(name)
            dtype = tensor.dtype
            yield theirs[0], tensor[None] if theirs[0] in self.family.without_row else tensor
            for other in theirs[1:] if apart else ():
                kept = (unread or {}).get(other, tensor)
                yield other, (kept.to(tensor) if kept.shape == tensor.shape else tensor).clone()
        for name, compute in self.computed.items() if self.family.writes_computed else ():
            yield name, compute().to(dtype)

    def check(self, table: Mapping[str, tuple[str, ...]], checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint with too few tensors, or with any that would be lost.

        Raises:
            ValueError: naming them.
        """
        missing = sorted(theirs[0] for theirs in table.values() if not any(name in checkpoint for name in theirs))
        known = {name for theirs in table.values() for name in theirs}
        computed = self.computed
        unused = self.family.unused
        unexpected = sorted(
            name for name in checkpoint.names - known - set(computed) if unused is None or not unused.fullmatch(name)
        )
        problems = [f"tensors are missing: {missing}"] if missing else []
        problems += [f"tensors that nothing here uses: {unexpected}"] if unexpected else []
        if problems:
            raise ValueError(f"{self.where} is no {self.their_class} of its config: {'; '.join(problems)}")
        for name in computed.keys() & checkpoint.names:
            if not is_table(checkpoint.tensor(name), computed[name]()):
                raise ValueError(f"{self.where}: {name} holds other values than are computed here")


def is_table(stored: torch.Tensor, computed: torch.Tensor) -> bool:
    """Whether a stored table is the one that is computed here, perhaps rounded to half precision on the way."""
    if stored.shape != computed.shape:
        return False
    stored, computed = stored.cpu().float(), computed.cpu().float()
    return torch.allclose(stored, computed, rtol=0, atol=1e-5) or any(
        torch.equal(stored.to(dtype).float(), stored) and torch.allclose(stored, computed, rtol=torch.finfo(dtype).eps, atol=1e-5)
        for dtype in HALF
    )


def import_plan(values: Mapping[str, Any], their_class: str, checkpoint: Checkpoint, where: str) -> Conversion:
    """How a checkpoint with these values in its config.json becomes ours.

    Args:
        values: of config.json; their_class: the class that wrote it; where: for errors.

    Raises:
        ValueError: for a family, a class, an option or a value that is not known here.
    """
    family = family_of(values.get("model_type", "None"), where)
    our_class = getattr(modeling, family.our_class(their_class))
    try:
        theirs: PreTrainedConfig = CONFIG_MAPPING[family.model_type].from_dict(dict(values))
    except (StrictDataclassError, TypeError, AttributeError) as error:  # the last: for a dtype that torch does not have
        raise ValueError(f"{where} is no config of {family.model_type}: {error}") from error
    if values.get("is_encoder_decoder") is False and not reads_source_alone(our_class):
        raise ValueError(f"{where} has is_encoder_decoder=False, but {their_class} has a decoder: set it to true")
    defaults = theirs.to_dict() | {"transformers_version": None}  # a file that does not say was not written today
    said = {name: value for name, value in values.items() if value is not None or name not in defaults}
    fields = family.read(Options(defaults | said, values, where), checkpoint)
    origin = {"family": family.name, "class": their_class, "config": dict(values)}
    try:
        config = TransductConfig(**fields, **labels_of(theirs, our_class), origin=origin, use_cache=theirs.use_cache)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    conversion = Conversion(family, their_class, config, where)
    if values.get("tie_word_embeddings") is False:
        conversion.check_untied(checkpoint)
    return conversion


def labels_of(config: PreTrainedConfig, our_class: type[PreTrainedModel]) -> dict[str, Any]:
    """The names of the labels, of classes that have any."""
    return {"id2label": config.id2label, "label2id": config.label2id} if "Classification" in our_class.__name__ else {}


def export_plan(config: TransductConfig, our_class: str, to: str | None, where: str) -> tuple[Conversion, PreTrainedConfig]:
    """How a model of ours becomes one of another family, and its config there.

    Args:
        to: the family; None: that from which it was imported.

    Raises:
        ValueError: if there is no such family, or a field that it cannot express, named with its value.
    """
    origin = config.origin or {}
    if to is None and not origin:
        raise ValueError(f"{where} was not imported from another family: say with `to` which one it should become")
    family = family_of(to or origin["family"])
    same_family = origin.get("family") == family.name
    same_class = same_family and family.our_class(origin["class"]) == our_class
    their_class = origin["class"] if same_class else family.their_class(our_class)
    conversion = Conversion(family, their_class, config, where)
    values = (dict(origin["config"]) if same_family else {}) | family.write(config) | labels_of(config, conversion.our_class)
    try:
        theirs = CONFIG_MAPPING[family.model_type].from_dict(values)
    except (StrictDataclassError, TypeError) as error:
        raise ValueError(f"{where} cannot be written as {family.name}, whose config refuses it: {error}") from error
    _check_expressible(conversion, theirs)
    theirs.architectures = [their_class]
    return conversion, theirs


def _check_expressible(conversion: Conversion, theirs: PreTrainedConfig) -> None:
    """Read the exported config again: every field that matters must come back.

    Raises:
        ValueError: naming the fields that do not.
    """
    config, our_class, values = conversion.config, conversion.our_class, theirs.to_dict()
    options = Options(values, values, conversion.where)
    try:
        fields = conversion.family.read(options, conversion.marks(tied=False))
    except ValueError:  # matrices are apart that the family has as one
        fields = conversion.family.read(options, conversion.marks(tied=True))
    there = TransductConfig(**fields)
    mine, again = outputs_of(config, our_class), outputs_of(there, our_class)
    lost = sorted(name for name in mine.keys() & again.keys() if mine[name] != again[name])  # others hang on one of these
    if lost:
        named = ", ".join(f"{name}={_shown(config, mine, name)} (there {_shown(there, again, name)})" for name in lost)
        raise ValueError(f"{conversion.where} cannot be written as {conversion.family.name}, which has no way to say {named}")


def _shown(config: TransductConfig, outputs: Mapping[str, Any], name: str) -> str:
    """A field as it was set, or what its None stands for."""
    value = getattr(config, name)
    return repr(outputs[name] if value is None else value)

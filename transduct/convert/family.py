"""What a family of models is to a conversion: how its config says what ours says, and how it names the same tensors.

A family is data and two functions, `read` from its config to our fields and `write` back. The names of all tensors follow from
our own model: each of our names has one of theirs, in both directions, so what is imported is exported bit by bit. Whether a
model can be exported follows too: exactly if `read(write(config))` is the config again.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from transduct.configuration import TransductConfig
from transduct.convert.checkpoint import Checkpoint
from transduct.convert.options import Options

LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.(.+)")
SOURCE, TARGET, OUTPUT = "encoder.embed_tokens", "decoder.embed_tokens", "lm_head"
"""Our modules that hold a row for each token."""


@dataclass(frozen=True)
class Names:
    """A family's names of our modules, by their paths without the leading "model."."""

    layer: str
    """A layer, with {stack} and {index}: "{stack}.block.{index}"."""
    encoder: Mapping[str, str]
    """Modules inside an encoder layer: ours to theirs."""
    decoder: Mapping[str, str]
    """Modules inside a decoder layer."""
    rest: Mapping[str, str] = field(default_factory=dict)
    """Modules outside the layers, or single tensors where the family stores them apart: "lm_head.bias": "final_logits_bias"."""
    shared: str = "shared"
    """The matrix of tokens of both sides, beside those of one side and of the output projection, which are called as here."""
    output: str = OUTPUT
    """The output projection, which never has the prefix."""
    apart: bool = False
    """Whether the class ties nothing and holds each matrix of tokens under each name. It then reads the shared one for no side
    that has its own, and what that holds does not matter."""


@dataclass(frozen=True)
class Family:
    """One family of published checkpoints."""

    name: str
    """What `--to` and errors call it: "t5"."""
    model_type: str
    """`model_type` in its config.json."""
    classes: Mapping[str, tuple[str, str]]
    """transformers' classes by name: ours, and what stands before the names of all but the head's tensors ("model."). Of several
    for one of ours, the first is exported."""
    read: Callable[[Options, Checkpoint], dict[str, Any]]
    """Its config to fields of `TransductConfig`; must call `options.finish`."""
    write: Callable[[TransductConfig], dict[str, Any]]
    """Fields to its config, as well as it can; what it cannot express is found by reading it again."""
    names: Callable[[TransductConfig], Names]
    """How it names our modules."""
    without_row: frozenset[str] = frozenset()
    """Of its tensors, those with a leading dimension of one that ours lack."""
    computed: Callable[[TransductConfig, str], Mapping[str, Callable[[], torch.Tensor]]] = lambda config, their_class: {}
    """Tensors that files of one of its classes may hold and ours compute, such as sinusoids: they must agree."""
    writes_computed: bool = False
    """Whether its files must hold them."""
    older: Callable[[TransductConfig], Mapping[str, Any]] = lambda config: {}
    """What config.json says besides, for programs that read the files of older versions of transformers."""
    unused: re.Pattern[str] | None = None
    """Tensors that its files may hold and nothing uses."""

    def our_class(self, theirs: str) -> str:
        """Our class for one of transformers'.

        Raises:
            ValueError: for a class that has none here.
        """
        if theirs not in self.classes:
            raise ValueError(f"{theirs} has no counterpart in transduct; of this family there are {', '.join(self.classes)}")
        return self.classes[theirs][0]

    def their_class(self, ours: str) -> str:
        """transformers' class for one of ours.

        Raises:
            ValueError: for a class that has none there.
        """
        for theirs, (mine, _) in self.classes.items():
            if mine == ours:
                return theirs
        known = ", ".join(sorted({mine for mine, _ in self.classes.values()}))
        raise ValueError(f"{ours} has no counterpart among transformers' {self.name} models, only {known}")


def their_names(family: Family, config: TransductConfig, their_class: str, ours: list[str]) -> dict[str, tuple[str, ...]]:
    """For each of our tensors, tied ones once, the names under which the family may hold it; it holds it under one at least.

    The first is the one to write. Only matrices of tokens have several.

    Raises:
        ValueError: for a tensor that the family has no name for.
    """
    names, prefix = family.names(config), family.classes[their_class][1]
    has_head = any(name.startswith(OUTPUT) for name in ours) or config.tie_embeddings in ("all", "target_output")
    table = {}
    for name in ours:
        module, _, tensor = name.removeprefix("model.").rpartition(".")
        if module in (SOURCE, TARGET, OUTPUT) and tensor == "weight":
            table[name] = _token_matrices(names, module, config.tie_embeddings, prefix, has_head)
        else:
            try:
                table[name] = (_their_name(names, module, tensor, prefix),)
            except KeyError as error:
                raise ValueError(f"{family.name} models have no place for {name}") from error
    return table


def _their_name(names: Names, module: str, tensor: str, prefix: str) -> str:
    if f"{module}.{tensor}" in names.rest:
        return names.rest[f"{module}.{tensor}"]
    layer = LAYER.fullmatch(module)
    if layer is None:
        theirs = names.rest[module]
        return f"{theirs}.{tensor}" if not module.startswith(("encoder", "decoder")) else f"{prefix}{theirs}.{tensor}"
    stack, index, inside = layer.groups()
    within = (names.encoder if stack == "encoder" else names.decoder)[inside]
    return f"{prefix}{names.layer.format(stack=stack, index=index)}.{within}.{tensor}"


def _token_matrices(names: Names, module: str, tie: str, prefix: str, has_head: bool) -> tuple[str, ...]:
    """All names of the matrix that our `module` holds and others may share."""
    together = {"all": (SOURCE, TARGET, OUTPUT), "source_target": (SOURCE, TARGET), "target_output": (TARGET, OUTPUT)}
    group = next((group for key, group in together.items() if key == tie and module in group), (module,))
    shared = (f"{prefix}{names.shared}",) if SOURCE in group and names.shared else ()
    sides = tuple(f"{prefix}{side}" for side in group if side != OUTPUT)
    output = (names.output,) if OUTPUT in group and has_head else ()
    ordered = sides + output + shared if names.apart else shared + sides + output
    return tuple(f"{name}.weight" for name in ordered)


def read_ties(checkpoint: Checkpoint, names: Names) -> str:
    """Which of source, target and output are one matrix, by the values that the checkpoint holds, as `tie_embeddings` says it.

    A side that has no matrix of its own uses the shared one.

    Raises:
        ValueError: if there is a shared matrix and another one of a side with other values, or a matrix is missing.
    """
    shared = checkpoint.find(f"{names.shared}.weight")
    held = {}
    for side in (SOURCE, TARGET):
        name = checkpoint.find(f"{side}.weight")
        if name in checkpoint and shared in checkpoint and not checkpoint.same(name, shared):
            raise ValueError(
                f"{checkpoint.where}: {name} and {shared} should be one matrix, but differ; it is not known which one is right"
            )
        held[side] = name if name in checkpoint else shared
    output = f"{names.output}.weight"
    held[OUTPUT] = output if output in checkpoint else held[TARGET]
    present = {side: name for side, name in held.items() if name in checkpoint}
    if not present:
        raise ValueError(f"{checkpoint.where} holds no embeddings: none of {sorted(set(held.values()))}")
    names_of = [present.get(side, next(iter(present.values()))) for side in (SOURCE, TARGET, OUTPUT)]
    source, target, out = names_of
    both_sides = source == target or checkpoint.same(source, target)
    target_output = target == out or checkpoint.same(target, out)
    return {
        (True, True): "all", (True, False): "source_target", (False, True): "target_output", (False, False): "none"
    }[both_sides, target_output]  # fmt: skip

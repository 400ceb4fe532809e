"""Options and tensors of a fairseq checkpoint under one set of names, whichever version wrote it.

- Up to 0.9 a file holds "args", an `argparse.Namespace`; from 0.10 on "cfg", a dictionary or OmegaConf, whose "model" is flat, or
  has groups "encoder", "decoder" and "quant_noise"; flat names are used here.
- Up to 0.6 queries, keys and values were one matrix, `in_proj_weight`; up to 0.5 the norms of a layer were a list. The untied
  output projection was `decoder.embed_out`, and sinusoids were stored.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from transduct.convert.torch_files import load_with_stand_ins, plain

IN_PROJ = re.compile(r"(.+\.)in_proj_(weight|bias)")
LAYER_NORMS = re.compile(r"((encoder|decoder)\.layers\.\d+\.)layer_norms\.(\d)\.(weight|bias)")
NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
CLASSIFICATION_HEAD = re.compile(r"classification_heads\.(.+)\.((?:dense|out_proj)\.(?:weight|bias))")
OUTPUT = "decoder.output_projection.weight"


@dataclass(frozen=True)
class Saved:
    """What a checkpoint says and holds."""

    options: dict[str, Any]
    """Of the model and, under the names that the model has not taken, of the task; "arch" and "task" name them."""
    state: dict[str, torch.Tensor]


def read_saved(path: str | Path) -> Saved:
    """Read a checkpoint of fairseq without executing anything.

    Raises:
        ValueError: for a file that is none, or is damaged.
    """
    saved = load_with_stand_ins(path)
    state = saved.get("model") if isinstance(saved, Mapping) else None
    if not isinstance(state, Mapping) or not ("args" in saved or "cfg" in saved):
        raise ValueError(f'{str(path)!r} is no checkpoint of fairseq: it must hold "model" and either "args" or "cfg"')
    if not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise ValueError(f'{str(path)!r}: "model" must hold nothing but tensors')
    options = _flat_options(plain(saved.get("args")), plain(saved.get("cfg")))
    if options is None:
        raise ValueError(
            f'{str(path)!r} holds no options of a model: "args" must be a Namespace, or "cfg" have "model" and "task"'
        )
    return Saved(options, modern_names(state))


def _flat_options(args: Any, cfg: Any) -> dict[str, Any] | None:
    if isinstance(args, dict):
        return args
    if not isinstance(cfg, dict) or not isinstance(cfg.get("model"), dict):
        return None
    model, task = cfg["model"], cfg.get("task")
    task = task if isinstance(task, dict) else {}
    flat: dict[str, Any] = {}
    for name, value in model.items():
        if name in ("encoder", "decoder", "quant_noise") and isinstance(value, dict):
            flat |= {f"{name}_{inner}": one for inner, one in value.items()}
        else:
            flat[name] = value
    named = {"arch": model.get("arch") or model.get("_name"), "task": task.get("_name") or task.get("task")}
    return task | flat | named


def modern_names(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors under the names of fairseq 0.12: each of ours has one of theirs then."""
    modern: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        packed, norm = IN_PROJ.fullmatch(name), LAYER_NORMS.fullmatch(name)
        if packed and tensor.shape[0] % 3 == 0:
            for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                modern[f"{packed[1]}{letter}_proj.{packed[2]}"] = part
        elif norm and int(norm[3]) < len(NORMS[norm[2]]):
            modern[f"{norm[1]}{NORMS[norm[2]][int(norm[3])]}.{norm[4]}"] = tensor
        elif name == "decoder.embed_out":
            modern[OUTPUT] = tensor
        else:
            modern[name] = tensor
    return modern


def choose_head(state: dict[str, torch.Tensor], head: str | None, where: str) -> dict[str, torch.Tensor]:
    """The tensors of one classification head as "classification_head", or of none.

    Args:
        head: its name; None: the model is to generate.

    Raises:
        ValueError: if there are heads and none was chosen, which would be lost, or the chosen one is not there.
    """
    heads = sorted({match[1] for name in state if (match := CLASSIFICATION_HEAD.fullmatch(name))})
    if head is None and heads:
        raise ValueError(
            f"{where} has classification heads {heads}, which a model that generates has no place for: pass "
            f"classification_head={heads[0]!r} to import the classifier"
        )
    if head is None:
        return state
    if head not in heads:
        raise ValueError(f"classification_head={head!r} is none of those in {where}: {heads}")
    if len(heads) > 1:
        raise ValueError(f"{where} has several classification heads, {heads}; all but {head!r} would be lost")
    renamed = {}
    for name, tensor in state.items():
        match = CLASSIFICATION_HEAD.fullmatch(name)
        renamed[f"classification_head.{match[2]}" if match else name] = tensor
    return renamed

"""Sound model folders, ways to damage them, and findings as tests read them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tiny_translation import tiny_translation
from transduct.doctor import Findings

WEIGHTS = "model.safetensors"


def sound_model(path: Path, **fields: Any) -> Path:
    """Write a model with a tokenizer, as `save_pretrained` writes them; `fields` are those of its config."""
    model, tokenizer = tiny_translation(**{"positions": "learned", "max_positions": 40, "tie_embeddings": "all", **fields})
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def change_json(path: Path, **values: Any) -> None:
    """Set keys of a JSON file; None removes one."""
    found = json.loads(path.read_text()) | values
    path.write_text(json.dumps({name: value for name, value in found.items() if value is not None}))


def change_weights(path: Path, **tensors: torch.Tensor | None) -> None:
    """Set tensors of a file of safetensors, dots in their names written as two underscores; None removes one."""
    found: dict[str, Any] = load_file(path) | {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file({name: tensor for name, tensor in found.items() if tensor is not None}, path, {"format": "pt"})


def problems(findings: Findings) -> dict[str, str]:
    """The texts of problems by their subject."""
    return {finding.subject: finding.text for finding in findings.problems}


def texts(findings: Findings, level: str) -> dict[str, str]:
    return {finding.subject: finding.text for finding in findings if finding.level == level}

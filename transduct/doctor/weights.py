"""The files of weights: whole, complete, of the shapes that the config says, tied alike, and finite."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from transduct.convert.checkpoint import SAFETENSORS, TORCH, Checkpoint, read_json
from transduct.doctor.findings import Findings
from transduct.presets import model_without_weights

FIRST = 3
"""Names of tensors that a sentence gives."""


def examine_weights(folder: Path, config: Any, class_name: str, findings: Findings) -> Checkpoint | None:
    """The tensors of a model folder, if its files can be read; findings about them otherwise."""
    files: list[Path] = []
    with findings.problems_of("weights"):
        files = files_of_weights(folder, findings)
    whole = [path for path in files if _is_whole(path, findings)]
    if not files or len(whole) < len(files):
        return None
    checkpoint = None
    with findings.problems_of("weights"):
        checkpoint = Checkpoint.of_folder(folder)
        size = sum(path.stat().st_size for path in whole)
        findings.ok("weights", f"{len(checkpoint.names)} tensors in {_files(len(whole))}, {size / 1e6:,.1f} MB", size)
        quantised = getattr(config, "quantization_config", None)
        if quantised:
            method = dict(quantised).get("quant_method") if isinstance(quantised, dict) else quantised.quant_method
            findings.note(
                "weights", f"quantised by {method}, which stores them its own way: only loading shows whether all are there"
            )
        else:
            _compare_with_config(checkpoint, config, class_name, findings)
        _look_at_numbers(checkpoint, findings)
    return checkpoint


def files_of_weights(folder: Path, findings: Findings) -> list[Path]:
    """The files that `from_pretrained` would read; what is missing is a finding."""
    index = folder / f"{SAFETENSORS}.index.json"
    if (folder / SAFETENSORS).is_file():
        if index.is_file():
            findings.note(index.name, f"is not read, since there is {SAFETENSORS}: delete what is not the model")
        return [folder / SAFETENSORS]
    if index.is_file():
        return _shards(index, findings)
    if (folder / TORCH).is_file():
        findings.note(TORCH, "is a pickle: it loads without executing anything, but save the model again as safetensors")
        return [folder / TORCH]
    stray = sorted(path.name for path in folder.glob("*.safetensors") if path.name != "adapter_model.safetensors")
    if stray:
        text = f"there is {', '.join(stray[:FIRST])}, but no {index.name} that says what is in it: copy the whole checkpoint"
        findings.problem("weights", text)
    else:
        findings.problem("weights", f"there are none: no {SAFETENSORS}. Copy the whole folder, or save the model again")
    return []


def _shards(index: Path, findings: Findings) -> list[Path]:
    """The shards that an index names; none, if one of them is not there.

    Raises:
        ValueError: for a file that is no index.
    """
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise ValueError(f"{index.name} has no weight_map from names of tensors to names of files: copy it again")
    named = sorted(set(places.values()))
    missing = [name for name in named if Path(name).name != name or not (index.parent / name).is_file()]
    for name in missing:
        count = sum(place == name for place in places.values())
        findings.problem(name, f"is missing, with {count} tensors that {index.name} says it holds: copy it again")
    others = sorted(path.name for path in index.parent.glob("model-*.safetensors") if path.name not in named)
    if others:
        findings.note(others[0], f"is not named by {index.name}, so nothing reads it" + _more(others[1:]))
    return [] if missing else [index.parent / name for name in named]


def _is_whole(path: Path, findings: Findings) -> bool:
    """Whether a file of weights can be opened; its header says how long it is."""
    try:
        Checkpoint.of_files([path], path.name)
    except (ValueError, OSError) as error:
        findings.problem(path.name, str(error).replace(f"{path} ", "").replace(f"{str(path)!r} ", ""))
        return False
    return True


def _compare_with_config(checkpoint: Checkpoint, config: Any, class_name: str, findings: Findings) -> None:
    """Names, shapes and ties, compared with those of the model that the config describes."""
    model = model_without_weights(config, class_name)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    tied: dict[str, str] = dict(model.all_tied_weights_keys)
    groups = {name: {name, source, *(other for other, its in tied.items() if its == source)} for name, source in tied.items()}
    groups |= {source: groups[name] for name, source in tied.items()}
    missing = sorted(name for name in shapes if not groups.get(name, {name}) & checkpoint.names)
    unexpected = sorted(checkpoint.names - set(shapes))
    if missing:
        findings.problem("weights", f"missing: {_first(missing)}. They are of another model than config.json, or not all there")
    if unexpected:
        findings.problem("weights", f"config.json has no place for {_first(unexpected)}: it is of another model")
    misshapen = [
        f"{name} is {stored}, not {shapes[name]}"
        for name in sorted(checkpoint.names & set(shapes))
        if (stored := tuple(checkpoint.tensor(name).shape)) != shapes[name]
    ]
    if misshapen:
        findings.problem("weights", f"of another shape than config.json says: {_first(misshapen)}")
    for name, source in tied.items():
        both = name in checkpoint and source in checkpoint
        if both and not checkpoint.same(name, source):
            tie = f"tie_embeddings={config.tie_embeddings!r}"
            findings.problem("ties", f"{name} and {source} are one matrix by {tie}, but stored with different values")


def _look_at_numbers(checkpoint: Checkpoint, findings: Findings) -> None:
    """Numbers that are none, matrices of zeros, and types."""
    broken, empty = [], []
    types: dict[str, int] = {}
    for name, tensor in _floating(checkpoint):
        dtype = str(tensor.dtype).removeprefix("torch.")
        types[dtype] = types.get(dtype, 0) + 1
        count = tensor.numel() - int(tensor.isfinite().sum())
        if count:
            broken.append(f"{name} ({count} of {tensor.numel():,})")
        elif tensor.ndim > 1 and tensor.numel() and not tensor.any():
            empty.append(name)
    if broken:
        findings.problem("numbers", f"NaN or infinite in {_first(broken)}: take an earlier checkpoint")
    if empty:
        findings.note("numbers", f"all zero in {_first(empty)}: were they ever set?")
    if len(types) > 1:
        findings.note("types", ", ".join(f"{count} tensors of {dtype}" for dtype, count in types.items()))
    if not broken:
        findings.ok("numbers", f"all finite, {' and '.join(types)}", sorted(types))


def _floating(checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
    for name in sorted(checkpoint.names):
        tensor = checkpoint.tensor(name)
        if tensor.is_floating_point():
            yield name, tensor


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _first(names: list[str]) -> str:
    return ", ".join(names[:FIRST]) + (f" and {len(names) - FIRST} more" if len(names) > FIRST else "")


def _more(names: list[str]) -> str:
    return f"; the same of {len(names)} more" if names else ""

"""Checkpoints on disk: other programs' as ours, and ours as transformers'.

Tensors go from file to file, a shard at a time; see `checkpoint.py` and `writing.py`. The new folder is there when all of it is
written and, unless `verify=False`, both models have been compared; otherwise there is none. Beside the weights it holds:

- what `save_pretrained` writes: config.json, generation_config.json and, of ours, the code that travels with a checkpoint;
- tokenizer and processor, unchanged; see `tokenizers.py`;
- licences and notices, unchanged, and the model card as README.original.md: its terms go on to hold, its advice may not;
- of ours, import.json: where it came from, with a checksum of each file of weights, and what was compared; and, for the way back,
  what nothing reads (`unread.py`).
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

import transduct
from transduct import modeling
from transduct.configuration import TransductConfig
from transduct.convert import unread
from transduct.convert.checkpoint import Checkpoint, read_json
from transduct.convert.foreign import Opened, is_foreign
from transduct.convert.memory import quiet
from transduct.convert.models import export_plan
from transduct.convert.offloading import weights_on_disk
from transduct.convert.sources import CONFIG, GENERATION, NOTICES, Located, locate, open_source
from transduct.convert.tokenizers import bring_along, load_tokenizer
from transduct.convert.verifying import Verification
from transduct.convert.verifying import verify as verify_pair
from transduct.convert.writing import Weights, new_folder, write_weights
from transduct.presets import model_without_weights
from transduct.pretrained import ship_code

transduct.register()  # the command line does so only when a class is asked for; the new folder's tokenizer may be ours

RECORD = "import.json"
CARD, ORIGINAL_CARD = "README.md", "README.original.md"


@dataclass
class Converted:
    """What a conversion did, for people."""

    source: str
    output: Path
    family: str
    from_class: str
    to_class: str
    weights: Weights
    files: list[str] = field(default_factory=list)
    """All files of the new folder."""
    vocabulary: str = "no tokenizer"
    notes: list[str] = field(default_factory=list)
    """What was not taken along."""
    checked: Verification | None = None
    """The report of `verifying.verify`; None: nothing was compared."""
    unchecked: str = "by the wish of --no-verify"
    """Why nothing was compared."""


def import_folder(
    source: str | Path,
    output: str | Path,
    revision: str | None = None,
    token: str | None = None,
    verify: bool = True,
    shard_size: int | str = "5GB",
    dtype: torch.dtype | None = None,
    their_class: str | None = None,
    verify_memory: int | str | None = None,
    **foreign: Any,
) -> Converted:
    """Write a checkpoint of another family as ours.

    Args:
        source: a folder of transformers, an id of the Hub, or a file of another program.
        output: the folder to write; it must not hold anything yet.
        revision, token: for the Hub.
        verify: compare both models, which takes the memory of both, or `verify_memory` for the weights of each: in bytes or as
            "4GB", while the rest stays on disk, which is slow.
        shard_size: of one file at most.
        dtype: to which weights are rounded; None: each stays as it is.
        their_class: transformers' class, where config.json does not say it.
        foreign: options of `foreign.open_foreign`, for a file of another program.

    Raises:
        ValueError: for whatever cannot be imported without a doubt, and where both models differ.
    """
    _check_memory(verify_memory, dtype)
    with new_folder(output) as part:
        located = locate(source, revision, token)
        opened = open_source(located, their_class, **foreign)
        plan = opened.conversion
        empty = model_without_weights(plan.config, plan.our_class.__name__)
        shapes = {name: tensor.shape for name, tensor in empty.state_dict().items()}
        weights = write_weights(_of_shapes(plan.to_ours(opened.checkpoint), shapes, plan.where), part, shard_size, dtype)
        unread.write(plan.unread_tensors(opened.checkpoint), part)
        _write_config(empty.config, plan.our_class.__name__, weights, part)
        _write_generation(opened, located, part)
        ship_code(part)
        result = Converted(str(located), Path(output), plan.family.name, plan.their_class, plan.our_class.__name__, weights)
        result.vocabulary = _bring_tokenizer(opened, located, part, empty.config)
        result.notes = _notes(plan.config.origin or {}, opened)
        copy_notices(located.folder, part)
        if verify:
            result.checked = _compare(opened, located, part, weights, dtype is not None, verify_memory)
            result.unchecked = "transformers has no such model to compare with"
        _write_record(result, located, opened.checkpoint, part)
        result.files = sorted(path.name for path in part.iterdir())
    return result


def export_folder(
    source: str | Path,
    output: str | Path,
    to: str | None = None,
    verify: bool = True,
    shard_size: int | str = "5GB",
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    token: str | None = None,
    verify_memory: int | str | None = None,
) -> Converted:
    """Write a checkpoint of ours as one of transformers' classes.

    Args:
        source: a folder or an id of the Hub; output: the folder to write; it must not hold anything yet.
        to: the family; None: that from which it was imported.
        verify, shard_size, dtype, revision, token, verify_memory: as for `import_folder`.

    Raises:
        ValueError: for a family that has no way to say what this model is, and where both models differ.
    """
    _check_memory(verify_memory, dtype)
    with new_folder(output) as part:
        located = locate(source, revision, token)
        config, our_class = our_config(located)
        checkpoint = Checkpoint.of_folder(located.path)
        plan, theirs = export_plan(config, our_class.__name__, to, located.name)
        _check_names(checkpoint, model_without_weights(config, our_class.__name__), located.name)
        weights = write_weights(plan.to_theirs(checkpoint, unread.read(located.path)), part, shard_size, dtype)
        _write_config(theirs, plan.their_class, weights, part, plan.family.older(config))
        if (located.path / GENERATION).is_file():
            shutil.copyfile(located.path / GENERATION, part / GENERATION)
        result = Converted(str(located), Path(output), plan.family.name, our_class.__name__, plan.their_class, weights)
        names = bring_along(located.path, part, config.vocab_size, config.resolved_decoder_vocab_size)
        result.vocabulary = _described_vocabulary(located.path, config) if names else result.vocabulary
        copy_notices(located.path, part)
        if verify:
            with weights_on_disk(verify_memory, part) as there, weights_on_disk(verify_memory, part) as here:
                written = load_precisely(getattr(transformers, plan.their_class), part, weights.dtype, **there)
                ours = load_precisely(our_class, located.path, weights.dtype, dtype is not None, **here)
                result.checked = verify_pair(written, ours)
        result.files = sorted(path.name for path in part.iterdir())
    return result


def load(
    source: str | Path,
    verify: bool = True,
    revision: str | None = None,
    token: str | None = None,
    their_class: str | None = None,
) -> PreTrainedModel:
    """A checkpoint of another family as our model in memory, with the data type of its weights, in evaluation mode.

    Args:
        source, verify, revision, token, their_class: as for `import_folder`.

    Raises:
        ValueError: as `import_folder`.
    """
    located = locate(source, revision, token)
    opened = open_source(located, their_class)
    ours = opened.model()
    theirs = _original(opened, located, ours.dtype, rounded=False) if verify else None
    if theirs is not None:
        verify_pair(theirs, ours)
    return ours


def load_precisely(
    model_class: type[PreTrainedModel], folder: Path, dtype: torch.dtype | None, rounded: bool = False, **on_disk: Any
) -> PreTrainedModel:
    """The model of a folder with its weights in float32, or in what is finer, to compare with.

    Args:
        dtype: of the converted weights; rounded: they were rounded to it, so these must be too.
        on_disk: of `weights_on_disk`.

    Raises:
        ValueError: for weights that are missing, or that the class has no place for.
    """
    precise = torch.promote_types(dtype or torch.float32, torch.float32)
    with quiet():
        model, info = model_class.from_pretrained(
            folder, local_files_only=True, dtype=torch.float64 if rounded else precise, output_loading_info=True, **on_disk
        )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[kind]:
            raise ValueError(f"{folder} does not fit {model_class.__name__}: {kind.replace('_', ' ')} {sorted(info[kind])}")
    if rounded:
        model = _rounded(model, dtype)
    return (model if on_disk else model.to(precise)).eval()


def _compare(
    opened: Opened, located: Located, folder: Path, weights: Weights, rounded: bool, memory: int | str | None
) -> Verification | None:
    """Compare what was written with the original; None where there is none to compare with."""
    with weights_on_disk(memory, folder) as there, weights_on_disk(memory, folder) as here:
        theirs = _original(opened, located, weights.dtype, rounded, **there)
        if theirs is None:
            return None
        return verify_pair(theirs, load_precisely(opened.conversion.our_class, folder, weights.dtype, **here))


def _check_memory(memory: int | str | None, dtype: torch.dtype | None) -> None:
    """Raises ValueError for weights that should be compared rounded, and from disk."""
    if memory is not None and dtype is not None:
        raise ValueError(
            f"verify_memory={memory!r} leaves weights on disk as they are, so rounded ones (dtype={dtype}) cannot be compared: "
            "convert without dtype, or without verifying"
        )


def _rounded(model: PreTrainedModel, dtype: torch.dtype | None) -> PreTrainedModel:
    """The model with what its files hold rounded; tables that it computes stay exact."""
    for weight in model.state_dict(keep_vars=True).values():
        if weight.is_floating_point():
            weight.data = weight.data.to(dtype)
    return model


def _original(
    opened: Opened, located: Located, dtype: torch.dtype | None, rounded: bool, **on_disk: Any
) -> PreTrainedModel | None:
    """The model to compare with, as `load_precisely` gives it; None where transformers has none for a file of another program."""
    if not is_foreign(located.path):
        return load_precisely(getattr(transformers, opened.conversion.their_class), located.path, dtype, rounded, **on_disk)
    if opened.original is None:
        return None
    theirs = opened.original()
    return (_rounded(theirs, dtype) if rounded else theirs).to(torch.promote_types(dtype or torch.float32, torch.float32)).eval()


def _of_shapes(
    tensors: Iterator[tuple[str, torch.Tensor]], shapes: Mapping[str, torch.Size], where: str
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors, each of which has the shape that its config says.

    Raises:
        ValueError: for one that has not.
    """
    for name, tensor in tensors:
        if tensor.shape != shapes[name]:
            raise ValueError(
                f"{where}: the tensor for our {name} has the shape {tuple(tensor.shape)}, but by its config.json "
                f"{tuple(shapes[name])}; they do not belong together"
            )
        yield name, tensor


def _check_names(checkpoint: Checkpoint, model: PreTrainedModel, where: str) -> None:
    """Raises ValueError unless a checkpoint of ours holds exactly the tensors of its model, tied ones once or more often."""
    names, tied = set(model.state_dict()), model.all_tied_weights_keys
    missing, unexpected = sorted(names - set(tied) - checkpoint.names), sorted(checkpoint.names - names)
    problems = [f"tensors are missing: {missing}"] if missing else []
    problems += [f"tensors that its config has no place for: {unexpected}"] if unexpected else []
    problems += [
        f"{name} and {first} are tied, but stored with different values"
        for name, first in tied.items()
        if name in checkpoint and first in checkpoint and not checkpoint.same(name, first)
    ]
    if problems:
        raise ValueError(f"{where} cannot be exported: {'; '.join(problems)}")


def our_config(located: Located) -> tuple[TransductConfig, type[PreTrainedModel]]:
    """Config and class of a checkpoint of ours.

    Raises:
        ValueError: for one of another kind.
    """
    path = located.folder / CONFIG
    if not path.is_file():
        hint = "; merge the adapter into its model first" if (located.folder / "adapter_config.json").is_file() else ""
        if (located.folder / "model" / CONFIG).is_file():
            hint = f"; that of the run is {located.folder / 'model'}"
        raise ValueError(f"{located.name!r} has no {CONFIG}: it is no checkpoint of transduct{hint}")
    values = read_json(path)
    if values.get("model_type") != TransductConfig.model_type:
        raise ValueError(f"{path} is of model_type={values.get('model_type')!r}: only checkpoints of transduct are exported")
    names = values.get("architectures") or ["none"]
    if not hasattr(modeling, names[0]):
        raise ValueError(f"{path} has architectures={names}, which is no class of transduct")
    return TransductConfig.from_dict(values), getattr(modeling, names[0])


def _write_config(
    config: PreTrainedConfig, architecture: str, weights: Weights, folder: Path, besides: Mapping[str, Any] | None = None
) -> None:
    config.architectures = [architecture]
    config.dtype = str(weights.dtype).removeprefix("torch.")
    with quiet():
        config.save_pretrained(folder)
    if besides:
        path = folder / CONFIG
        values = json.loads(path.read_text(encoding="utf-8")) | besides
        path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _write_generation(opened: Opened, located: Located, folder: Path) -> None:
    if not is_foreign(located.path) and (located.path / GENERATION).is_file():
        shutil.copyfile(located.path / GENERATION, folder / GENERATION)
    elif opened.generation is not None:
        with quiet():
            opened.generation.save_pretrained(folder)


def _bring_tokenizer(opened: Opened, located: Located, folder: Path, config: TransductConfig) -> str:
    """Tokenizer and processor of the source; says how many ids have an embedding."""
    if is_foreign(located.path):
        if opened.tokenizer is None:
            return "no tokenizer"
        opened.tokenizer.save_pretrained(folder)
        return _described_vocabulary(folder, config)
    if not bring_along(located.path, folder, config.vocab_size, config.resolved_decoder_vocab_size):
        return "no tokenizer"
    return _described_vocabulary(folder, config)


def _described_vocabulary(folder: Path, config: TransductConfig) -> str:
    tokenizer = load_tokenizer(folder)
    if tokenizer is None:
        return "no tokenizer"
    tokens, rows = 1 + max(tokenizer.get_vocab().values(), default=-1), config.vocab_size
    unused = f", {rows - tokens:,} of them unused" if rows > tokens else ""
    return f"{tokens:,} ids of the {type(tokenizer).__name__}, {rows:,} embeddings{unused}"


def _notes(origin: Mapping[str, Any], opened: Opened) -> list[str]:
    """What the tokenizer expects, and what older programs did with config.json that none does today."""
    values = origin.get("config", {})
    notes = [opened.text] if opened.text else []
    if values.get("prefix"):
        prefix = f"prefix={values['prefix']!r}"
        notes.append(f"{prefix} is kept in config.origin: translate and pipelines put it before texts, generate does not")
    if values.get("task_specific_params"):
        tasks = ", ".join(values["task_specific_params"])
        notes.append(
            f"the settings of tasks ({tasks}) are kept in config.origin: translate and pipelines apply them, generate does not"
        )
    return notes


def copy_notices(source: Path, target: Path) -> None:
    """Copy licences and notices; a model card as README.original.md."""
    for path in sorted(path for pattern in NOTICES for path in source.glob(pattern) if path.is_file()):
        name = path.name if path.name != CARD else ORIGINAL_CARD
        if not (target / name).exists() or path.name == ORIGINAL_CARD:
            shutil.copyfile(path, target / name)


def _write_record(result: Converted, located: Located, checkpoint: Checkpoint, folder: Path) -> None:
    """import.json: where the model came from."""
    read = checkpoint.files or [located.path]
    record = {
        "source": located.name,
        "commit": located.commit,
        "family": result.family,
        "class": result.from_class,
        "weights": {path.name: {"bytes": path.stat().st_size, "sha256": _checksum(path)} for path in read},
        "checked": None if result.checked is None else str(result.checked).splitlines(),
        "transduct": transduct.__version__,
        "transformers": transformers.__version__,
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

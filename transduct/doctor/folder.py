"""A folder: what it is, and what is wrong with it.

Known are models, checkpoints of a training, whole runs of `transduct train`, adapters of peft, and exports for other engines.

What belongs to training and decoding is imported inside functions: a training that shares its model has it examined first.
"""

from pathlib import Path
from typing import Any

import transduct
from transduct.convert.checkpoint import LFS_POINTER, Checkpoint, read_json
from transduct.convert.memory import quiet
from transduct.doctor.findings import Findings
from transduct.doctor.tokens import examine_generation, examine_tokenizer
from transduct.doctor.trial import try_model
from transduct.doctor.weights import examine_weights
from transduct.pretrained import code_files

transduct.register()  # the command line does so only when a class is asked for

CONFIG, ADAPTER, RECIPE = "config.json", "adapter_config.json", "recipe.yaml"
HALF_WRITTEN = ("*.part", "*.part.journal", ".*.part")
"""Names under which this package writes what is not whole yet."""


def examine_folder(folder: str | Path, load: bool = True) -> Findings:
    """What is wrong with a folder.

    Args:
        load: load the model too, run it once, and let it write a few tokens.

    Raises:
        ValueError: if there is no such folder.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ValueError(f"there is no folder {str(folder)!r}" + (": it is a file" if path.is_file() else ""))
    findings = Findings(str(folder))
    _examine(path, load, findings)
    return findings


def _examine(folder: Path, load: bool, findings: Findings, of_run: bool = False) -> None:
    """Look at what it is.

    Args:
        of_run: it is what a run has come to, and no run itself: a link may lead back to where it was found.
    """
    from transduct.decoding.engines import engine_of
    from transduct.training.checkpoints import list_checkpoints

    if engine_of(folder) is not None:
        _export(folder, load, findings)
    elif (folder / CONFIG).is_file():
        _model(folder, load, findings)
    elif (folder / ADAPTER).is_file():
        _adapter(folder, load, findings)
    elif not of_run and ((folder / RECIPE).is_file() or (folder / "checkpoints").is_dir() or list_checkpoints(folder)):
        _run(folder, load, findings)
    else:
        _unfinished(folder, findings)
        inside = sorted(path.parent.name for path in folder.glob(f"*/{CONFIG}"))
        hint = f". Its folder {inside[0]} holds a model: name that" if inside else ""
        findings.problem(CONFIG, f"is missing: this folder holds no model, no run, no adapter and no export{hint}")


def _model(folder: Path, load: bool, findings: Findings) -> None:
    """A model folder, or a checkpoint of a training, which has a model in it."""
    from transduct.training.checkpoints import MANIFEST, STATE

    _unfinished(folder, findings)
    if (folder / MANIFEST).is_file() or (folder / STATE).is_file():
        _checkpoint(folder, findings)
    described = None
    with findings.problems_of(CONFIG):
        described = _config(folder, findings)
    if described is None:
        return
    config, class_name = described
    before = len(findings.problems)
    checkpoint = examine_weights(folder, config, class_name, findings)
    tokenizer = examine_tokenizer(folder, config, findings)
    if class_name in ("TransductForConditionalGeneration", "TransductForCausalLM"):
        examine_generation(folder, config, findings)
    _code(folder, findings)
    if load and checkpoint is not None:
        try_model(folder, class_name, tokenizer, findings)
    elif load and len(findings.problems) > before:
        findings.note("loading", "not tried, because of the problems above")


def _config(folder: Path, findings: Findings) -> tuple[Any, str]:
    """Config and name of the class.

    Raises:
        ValueError: if config.json does not say both.
    """
    from transduct import modeling
    from transduct.configuration import TransductConfig

    if _is_pointer(folder / CONFIG):
        raise ValueError("is a pointer of Git LFS, not the file itself: get it with `git lfs pull`")
    values = read_json(folder / CONFIG)
    kind = values.get("model_type")
    if kind != TransductConfig.model_type:
        text = "only models of transduct are examined. `transduct import` makes one of many others"
        raise ValueError(f"has model_type={kind!r}: {text}")
    newer = TransductConfig.unknown_keys(values)
    if newer:
        findings.note(CONFIG, f"has keys that this version of transduct does not know, and ignores: {', '.join(newer)}")
    with quiet():
        config = TransductConfig.from_dict(values)
    names = config.architectures or ["TransductForConditionalGeneration"]
    if len(names) != 1 or not names[0].startswith("Transduct") or not hasattr(modeling, names[0]):
        raise ValueError(f"architectures={names!r} must name one model class of transduct")
    findings.ok(CONFIG, f"{names[0]}, {config.encoder_layers}+{config.decoder_layers} layers of width {config.d_model}")
    return config, names[0]


def _is_pointer(path: Path) -> bool:
    """Whether Git LFS left its pointer in place of a file."""
    with path.open("rb") as file:
        return file.read(len(LFS_POINTER)) == LFS_POINTER


def _code(folder: Path, findings: Findings) -> None:
    """The modules that travel with a model, for places without this package."""
    ours = {Path(file).name: Path(file) for file in code_files()}
    missing = sorted(name for name in ours if not (folder / name).is_file())
    changed = sorted(name for name in set(ours) - set(missing) if (folder / name).read_bytes() != ours[name].read_bytes())
    if missing:
        text = f"{', '.join(missing[:3])} {'is' if len(missing) == 1 else 'are'} missing: it loads with this package alone"
        findings.note("code", f"{text}, and not with trust_remote_code=True. save_pretrained writes them")
    elif changed:
        findings.note(
            "code", f"{', '.join(changed[:3])}: of another version than this package, which loads the model with its own"
        )
    else:
        findings.ok("code", f"{len(ours)} modules, as in this package")


def _unfinished(folder: Path, findings: Findings) -> None:
    """What a write that was stopped has left."""
    for pattern in HALF_WRITTEN:
        for path in sorted(folder.glob(pattern)):
            findings.problem(
                path.name, "is half-written: its command was stopped, or is still at work. Run it again, or delete this"
            )
    for path in sorted(folder.glob("*.old")):
        whole = path.with_suffix("")
        if whole.exists():
            findings.note(path.name, f"is what {whole.name} was before: it may be deleted")
        else:
            findings.problem(path.name, f"was set aside for a new {whole.name} that is not there: give it that name again")


def _checkpoint(folder: Path, findings: Findings) -> None:
    """A training can go on at a checkpoint that is whole."""
    from transduct.training.checkpoints import checkpoint_fault, off_schedule

    fault = checkpoint_fault(folder)
    if fault is not None:
        findings.problem("checkpoint", f"{fault}: no training can go on here, so take the one before")
    elif off_schedule(folder) is not None:
        findings.ok("checkpoint", "whole, written because its training was stopped or ended there")
    else:
        findings.ok("checkpoint", "whole: a training can go on here")


def _run(folder: Path, load: bool, findings: Findings) -> None:
    """The output folder of `transduct train`: its recipe, checkpoints, and the model that it came to."""
    from transduct.training.checkpoints import UNFINISHED, find_checkpoints
    from transduct.training.recipe import load_recipe

    _unfinished(folder, findings)
    if (folder / RECIPE).is_file():
        with findings.problems_of(RECIPE):
            load_recipe(folder / RECIPE)
            findings.ok(RECIPE, "is read")
    checkpoints = folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder
    whole, faults = find_checkpoints(checkpoints)
    for path, fault in faults.items():
        findings.problem(path.name, f"{fault}: a run that goes on sets it aside, and takes the one before")
    if (checkpoints / UNFINISHED).exists():
        text = "holds a checkpoint that is half-written: the run was killed, or is writing it now. The next start removes it"
        findings.note(UNFINISHED, text)
    if whole:
        findings.ok("checkpoints", f"{len(whole)} whole, the newest is {whole[-1].name}", [path.name for path in whole])
    else:
        findings.note("checkpoints", "there is none that is whole")
    finished = folder / "model"
    if not finished.is_dir() and checkpoints != folder:
        findings.note("model", "is not there yet: the same command goes on with the training, and writes it at its end")
    newest = finished if finished.is_dir() else whole[-1] if whole else None
    if newest is not None:
        with findings.within(str(newest)):
            _examine(newest, load, findings, of_run=True)


def _adapter(folder: Path, load: bool, findings: Findings) -> None:
    """What peft saved: low-rank weights and the name of the model that they belong to."""
    from transduct.training.checkpoints import MANIFEST

    _unfinished(folder, findings)
    if (folder / MANIFEST).is_file():
        _checkpoint(folder, findings)
    with findings.problems_of(ADAPTER):
        values = read_json(folder / ADAPTER)
        base = values.get("base_model_name_or_path")
        findings.ok(ADAPTER, f"{values.get('peft_type')} for {base}")
        local = base is not None and Path(str(base)).is_dir()
        if not local:
            findings.note(
                ADAPTER, f"its model {base!r} is no folder here: it must be got from the Hub, or named when it is loaded"
            )
    weights = folder / "adapter_model.safetensors"
    if not weights.is_file():
        findings.problem(weights.name, "is missing: copy the whole adapter")
        return
    with findings.problems_of(weights.name):
        checkpoint = Checkpoint.of_files([weights], str(folder))
        broken = [name for name in sorted(checkpoint.names) if not bool(checkpoint.tensor(name).isfinite().all())]
        if broken:
            findings.problem(weights.name, f"NaN or infinite in {broken[0]}: take an earlier checkpoint")
        else:
            findings.ok(weights.name, f"{len(checkpoint.names)} tensors, all finite")
        if load and local:
            from peft import AutoPeftModelForSeq2SeqLM

            with findings.problems_of("loading"):
                AutoPeftModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
                findings.ok("loading", f"onto {base}")


def _export(folder: Path, load: bool, findings: Findings) -> None:
    """A folder that was written for another engine."""
    from transduct.convert.tokenizers import load_tokenizer
    from transduct.decoding.engines import engine_of, load_engine

    engine = engine_of(folder)
    _unfinished(folder, findings)
    findings.ok("export", f"for {engine}: `transduct translate` runs it")
    if load:
        with findings.problems_of("loading"):
            model, tokenizer = load_engine(folder, engine), load_tokenizer(folder)
            findings.ok("loading", f"by {engine}")
            if tokenizer is None:
                findings.problem("tokenizer", "there is none: export the model again, with its tokenizer in its folder")
                return
            ids = tokenizer("a", return_tensors="pt")
            with findings.problems_of("generate"):
                model.generate(ids["input_ids"], attention_mask=ids["attention_mask"], num_beams=1, max_new_tokens=3)
                findings.ok("generate", "3 tokens at most")

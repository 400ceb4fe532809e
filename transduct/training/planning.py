"""What a recipe will take before it is started: memory of each device, tokens, steps, operations and hours.

Nothing is built and no data are loaded: `describe` counts by closed formulas, files are counted by their lines.

- Tokens a step: pairs of a batch x (source + target) x accumulation x devices, padding included, since it is computed too.
  With `max_tokens_per_batch` a batch is as many pairs of the given lengths as the budget allows. The labels of an encoder or a
  decoder alone lie on its inputs, and only these count.
- Operations: a multiply-add is two; the backward pass takes twice the forward pass (Kaplan et al. 2020, arXiv 2001.08361,
  section 2.1), attention's scores and the output projection included; gradient checkpointing computes the layers once more.
- Hours: operations / (devices x peak operations a second x utilisation). 0.4 is a usual utilisation (PaLM, arXiv 2204.02311,
  table 3, lists 21 to 46 % as model FLOPs utilisation); small models and slow networks reach less.
- Memory: `layouts.py`; lengths and numbers of pairs: `workload.py`.
"""

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from transduct import register
from transduct.accounting import ModelDescription, describe
from transduct.presets import config_from_folder, model_without_weights
from transduct.training.adapters import prepare_weights
from transduct.training.arguments import NO_LIMIT_OF_EPOCHS, TransductTrainingArguments
from transduct.training.checks import check_count, check_number, in_section
from transduct.training.devices import device_named, slowest_with
from transduct.training.layouts import LAYOUTS, LayoutMemory, layout_memory, needs
from transduct.training.recipe import Recipe, preset_config
from transduct.training.recipe_data import model_kind
from transduct.training.workload import count_pairs, mean_lengths

GIB = 2**30
LAYOUT_NAMES = {"ddp": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "fsdp": "FSDP (ZeRO-3)"}


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What a recipe does not say: the machines, and the data where they cannot be counted.

    Raises:
        ValueError: for values out of range, and for a `gpu` that is not known.
    """

    gpus: int = 1
    """Devices, over all machines."""
    gpu: str | None = None
    """A name of `devices.DEVICES`, which gives `flops` and `gpu_memory`."""
    gpu_memory: float | None = None
    """GiB of one device. Without `gpu` and `flops` it is taken for the slowest known one of this size."""
    flops: float | None = None
    """Peak floating-point operations a second of one device."""
    utilisation: float = 0.4
    """Share of the peak that the training reaches."""
    reserve: float = 0.1
    """Share of the memory that is set aside for CUDA, workspaces and the allocator's pieces."""
    source_length: int | None = None
    target_length: int | None = None
    """Mean tokens of a source and of a target."""
    examples: int | None = None
    """Training pairs."""
    vocab_size: int | None = None

    def __post_init__(self):
        for name in ("gpus", "source_length", "target_length", "examples", "vocab_size"):
            if getattr(self, name) is not None:
                check_count(getattr(self, name), name, 1)
        for name in ("gpu_memory", "flops"):
            if getattr(self, name) is not None:
                check_number(getattr(self, name), name, above=0)
        if not 0 < self.utilisation <= 1:
            raise ValueError(f"utilisation={self.utilisation} must lie in (0, 1]: the share of the peak that is reached")
        if not 0 <= self.reserve < 1:
            raise ValueError(f"reserve={self.reserve} must lie in [0, 1): the share of the memory that is set aside")
        if self.gpu is not None:
            device_named(self.gpu)


@dataclass(frozen=True)
class Plan:
    """A recipe in figures. None: it cannot be known; `assumptions` then says what to give."""

    model: str
    parameters: int
    optimizer: str
    precision: str
    gradient_checkpointing: bool
    devices: int
    pairs_per_batch: int
    source_length: int
    target_length: int
    accumulation: int
    tokens_per_step: int
    examples: int | None
    steps_per_epoch: int | None
    steps: int | None
    flops_per_step: int
    flops: float | None
    flops_per_second: float | None
    """Of all devices together, at the assumed utilisation."""
    hours: float | None
    layouts: list[LayoutMemory]
    assumptions: list[str] = field(default_factory=list)
    one_stack: bool = False
    """An encoder or a decoder alone, whose labels lie on its inputs."""

    @property
    def epochs(self) -> float | None:
        return self.steps / self.steps_per_epoch if self.steps and self.steps_per_epoch else None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts, as for JSON."""
        return {**asdict(self), "epochs": self.epochs, "layouts": [layout.to_dict() for layout in self.layouts]}

    def __str__(self) -> str:
        def number(value: float | None, form: str = ",") -> str:
            return "not known" if value is None else format(value, form)

        length = f"{self.source_length:,}" if self.one_stack else f"({self.source_length:,} + {self.target_length:,})"
        batch = f"{self.pairs_per_batch:,} x {length} tokens"
        steps = number(self.steps) + (f" ({self.epochs:,.2f} epochs)" if self.epochs else "")
        rows = [
            ("model", self.model),
            ("parameters", f"{self.parameters:,}"),
            ("optimizer, precision", f"{self.optimizer}, {self.precision}"),
            ("gradient checkpointing", "yes" if self.gradient_checkpointing else "no"),
            ("batch of a device", batch),
            ("devices x accumulation", f"{self.devices:,} x {self.accumulation:,}"),
            ("tokens a step", f"{self.tokens_per_step:,}"),
            ("training pairs", number(self.examples)),
            ("steps an epoch", number(self.steps_per_epoch)),
            ("steps", steps),
            ("FLOPs a step", f"{self.flops_per_step:.3e}"),
            ("FLOPs", number(self.flops, ".3e")),
            ("hours", number(self.hours, ",.2f")),
        ]
        width = max(len(label) for label, _ in rows)
        lines = [f"{label:<{width}}  {value}" for label, value in rows]
        return "\n".join([*lines, "", *_memory_table(self.layouts), "", *(f"- {note}" for note in self.assumptions)])


def make_plan(recipe: Recipe, options: PlanOptions | None = None) -> Plan:
    """The figures of a recipe on the given machines.

    Raises:
        ValueError: for a recipe whose values contradict each other, a model that is not transduct's own, an optimizer whose
            state is not known, and a pair that is longer than the token budget.
    """
    options = options or PlanOptions()
    notes: list[str] = []
    args = _arguments(recipe)
    config = planned_config(recipe, options.vocab_size, notes)
    source, target = mean_lengths(recipe, (options.source_length, options.target_length), config.max_positions, notes)
    model = _what_is_trained(recipe, config, args)
    one_stack = model_kind(recipe.objective) != "TransductForConditionalGeneration"
    sides = (source,) if one_stack else (source, target)
    rows = _pairs_per_batch(args, sides)
    passes = 2 if args.r_drop else 1  # R-drop sees each batch twice
    half = "bfloat16" if args.bf16 else "float16" if args.fp16 else None
    optimizer = optimizer_name(args)
    checkpointing = _checkpointing(args)
    need = needs(model, (passes * rows, source, target), optimizer, half, checkpointing, averages=int(args.ema_decay is not None))
    examples = _training_pairs(recipe, options, notes)
    pairs_per_step = rows * options.gpus * args.gradient_accumulation_steps
    flops_per_step = passes * pairs_per_step * training_flops(describe(model), source, target, checkpointing)
    rate = _flops_per_second(args, options, half)
    per_epoch = None
    if examples is not None and recipe.without_end is None and _mean_is_known(args, options, notes):
        per_epoch = math.ceil(examples / pairs_per_step)
    steps = _steps(args, per_epoch, None if rate is None else rate / flops_per_step)
    _say_what_is_missing(notes, args, options, steps, rate)
    flops = None if steps is None else float(steps) * flops_per_step
    return Plan(
        model=recipe.model.get("preset") or str(recipe.model["from_pretrained"]),
        parameters=need.parameters,
        optimizer=optimizer,
        precision=f"{half} mixed" if half else "float32",
        gradient_checkpointing=checkpointing,
        devices=options.gpus,
        pairs_per_batch=rows,
        source_length=source,
        target_length=target,
        accumulation=args.gradient_accumulation_steps,
        tokens_per_step=pairs_per_step * sum(sides),
        examples=examples,
        steps_per_epoch=per_epoch,
        steps=steps,
        flops_per_step=flops_per_step,
        flops=flops,
        flops_per_second=rate,
        hours=None if flops is None or rate is None else flops / rate / 3600,
        layouts=[layout_memory(layout, need, options.gpus, _available(options)) for layout in LAYOUTS],
        assumptions=notes,
        one_stack=one_stack,
    )


def training_flops(described: ModelDescription, source: int, target: int, checkpointing: bool) -> int:
    """Floating-point operations of one pair's forward and backward pass."""
    forward = described.multiply_adds(source, target)
    again = forward - target * described.output_multiply_adds_per_target_token if checkpointing else 0
    return 2 * (3 * forward + again)


# ---- what the recipe says ------------------------------------------------------------------------------------------------------


def _arguments(recipe: Recipe) -> TransductTrainingArguments:
    """The recipe's training arguments. Half precision is planned for other machines: this one need not have it."""
    given = {**recipe.training, "output_dir": recipe.output, "report_to": "none"}
    precision = {name: bool(given.pop(name, False)) for name in ("bf16", "fp16", "tf32")}
    if precision["bf16"] and precision["fp16"]:
        raise ValueError("training.bf16 and training.fp16 exclude each other")
    with in_section("training", given):
        args = TransductTrainingArguments(**{**given, "use_cpu": True})
    for name, value in precision.items():
        setattr(args, name, value)
    return args


def planned_config(recipe: Recipe, vocab_size: int | None = None, notes: list[str] | None = None) -> Any:
    """The config of the model that the recipe trains, with the vocabulary that it will have as far as that is known."""
    options = dict(recipe.model)
    if "from_pretrained" in options:
        with in_section("model", options):
            return config_from_folder(options.pop("from_pretrained"), **options)
    sizes = vocabulary(recipe, vocab_size)
    if sizes:
        tokens = dict(pad_token_id=0, eos_token_id=1, bos_token_id=None, decoder_start_token_id=0)  # TransductTokenizer's
        sizes |= tokens
    elif notes is not None:
        notes.append("the vocabulary is the preset's: a tokenizer that is trained first may have another size; give --vocab-size")
    return preset_config(options, **sizes)


def _what_is_trained(recipe: Recipe, config: Any, args: TransductTrainingArguments) -> Any:
    """What `describe` takes: the config, or a model on the meta device where a config does not say all.

    That is an encoder or a decoder alone, and a model of which a part is trained.
    """
    kind = model_kind(recipe.objective)
    if kind == "TransductForConditionalGeneration" and args.freeze is None and args.lora is None:
        return config
    config.is_encoder_decoder = kind == "TransductForConditionalGeneration"
    with in_section("training", recipe.training):
        return prepare_weights(model_without_weights(config, kind), args)


def vocabulary(recipe: Recipe, vocab_size: int | None = None) -> dict[str, int | None]:
    """Sizes of the vocabularies: as given, of a tokenizer that exists, or as the recipe orders them; {} where nothing says."""
    ordered = recipe.tokenizer
    if vocab_size is not None:
        return {"vocab_size": vocab_size, "decoder_vocab_size": vocab_size if ordered.get("separate_vocabularies") else None}
    for folder in (Path(recipe.output) / "tokenizer", Path(ordered.get("from_pretrained") or "/nonexistent")):
        if folder.is_dir():
            register()
            tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            separate = bool(getattr(tokenizer, "separate_vocabularies", False))
            return {"vocab_size": len(tokenizer), "decoder_vocab_size": tokenizer.decoder_vocab_size if separate else None}
    if ordered.get("vocab_size") is None:
        return {}
    target = ordered.get("target_vocab_size") or ordered["vocab_size"]
    return {"vocab_size": ordered["vocab_size"], "decoder_vocab_size": target if ordered.get("separate_vocabularies") else None}


def optimizer_name(args: TransductTrainingArguments) -> str:
    """The optimizer by the names of `describe`, which knows what it keeps.

    Raises:
        ValueError: for an optimizer whose state is not known here.
    """
    if args.optimizer is not None:
        return "adafactor" if args.optimizer == "adafactor" else "adamw"
    name = str(getattr(args.optim, "value", args.optim))
    if name.startswith("adamw_torch") or name == "adamw_apex_fused":
        return "adamw"
    if name in ("adafactor", "sgd"):
        return name
    raise ValueError(f"training.optim={name!r} cannot be planned: its state is known for adamw_torch and kin, adafactor and sgd")


def _checkpointing(args: TransductTrainingArguments) -> bool:
    options = args.activation_checkpointing_kwargs or {}
    if args.activation_checkpointing and (options.get("every_n_layers", 1) != 1 or options.get("offload")):
        raise ValueError(
            f"training.activation_checkpointing_kwargs={options} cannot be planned: only every layer, without offload"
        )
    return bool(args.activation_checkpointing)


def _pairs_per_batch(args: TransductTrainingArguments, lengths: tuple[int, ...]) -> int:
    """How many pairs, of so many tokens on each side, a batch holds."""
    budget: Any = args.max_tokens_per_batch
    if budget is None:
        return args.per_device_train_batch_size
    if isinstance(budget, str):
        raise ValueError(
            f"training.max_tokens_per_batch={budget!r} is found out on the device: plan with numbers, such as "
            "--set training.max_tokens_per_batch=8192"
        )
    if sum(lengths) > budget:
        pair = " + ".join(map(str, lengths))
        raise ValueError(
            f"training.max_tokens_per_batch={budget} is less than one pair of {pair} tokens: raise it, or give the mean lengths "
            "with --source-length and --target-length"
        )
    return budget // sum(lengths)


def _training_pairs(recipe: Recipe, options: PlanOptions, notes: list[str]) -> int | None:
    """As given, or counted by lines."""
    pairs = options.examples
    if pairs is None and all(recipe.objective_of(part).of_pairs for part in recipe.data.parts):
        pairs = count_pairs(recipe.data.parts, recipe.folder)
    if pairs is None and recipe.without_end is None:
        notes.append("how many training pairs there are is not counted: --examples gives their number")
    return pairs


def _mean_is_known(args: TransductTrainingArguments, options: PlanOptions, notes: list[str]) -> bool:
    """Whether the pairs of a batch are as many as planned: with a token budget they depend on the mean lengths."""
    known = args.max_tokens_per_batch is None or None not in (options.source_length, options.target_length)
    if not known:
        notes.append("steps an epoch depend on the mean lengths: give --source-length and --target-length")
    return known


def _steps(args: TransductTrainingArguments, per_epoch: int | None, steps_per_second: float | None) -> int | None:
    """Updates in all: the least of what steps, epochs and minutes allow."""
    if args.max_steps > 0:
        limits: list[float | None] = [args.max_steps]
    elif args.num_train_epochs == NO_LIMIT_OF_EPOCHS:
        limits = []
    else:
        limits = [None if per_epoch is None else math.ceil(per_epoch * (args.num_train_epochs or 0))]
    if args.max_minutes is not None:
        limits.append(None if steps_per_second is None else args.max_minutes * 60 * steps_per_second)
    known = [limit for limit in limits if limit is not None]
    return int(min(known)) if known else None


def _flops_per_second(args: TransductTrainingArguments, options: PlanOptions, half: str | None) -> float | None:
    """Of all devices together, at the assumed utilisation."""
    peak = options.flops
    if peak is None and (name := options.gpu or _assumed(options)) is not None:
        device = device_named(name)
        peak = device.half if half else device.tf32 if args.tf32 else device.single
    return None if peak is None else peak * options.utilisation * options.gpus


def _assumed(options: PlanOptions) -> str | None:
    """The device whose peak is taken, where memory alone is told."""
    if options.gpu is not None or options.flops is not None or options.gpu_memory is None:
        return None
    return slowest_with(options.gpu_memory)


def _available(options: PlanOptions) -> int | None:
    memory = options.gpu_memory
    if memory is None and options.gpu is not None:
        memory = device_named(options.gpu).memory
    return None if memory is None else int(memory * GIB * (1 - options.reserve))


def _say_what_is_missing(
    notes: list[str],
    args: TransductTrainingArguments,
    options: PlanOptions,
    steps: int | None,
    rate: float | None,
) -> None:
    for name in ("lora", "freeze"):
        if getattr(args, name) is not None:
            notes.append(f"training.{name}: FLOPs are those of training all weights, a bound from above")
    if rate is None:
        notes.append("hours need --flops, the peak of one device, or --gpu, its name")
    else:
        notes.append(f"{rate / options.gpus:.3g} FLOP/s a device: {options.utilisation:.0%} of its peak")
    if (assumed := _assumed(options)) is not None:
        notes.append(f"the peak is that of {assumed}, the slowest known here with {options.gpu_memory:g} GiB: --gpu names yours")
    if steps is None:
        notes.append("the number of steps is open: give --examples for epochs, or --flops for a budget of minutes")
    if _available(options) is None:
        notes.append("what fits needs --gpu-memory, in GiB, or --gpu")
    elif options.reserve:
        notes.append(f"{options.reserve:.0%} of the memory is set aside for CUDA, workspaces and fragments (--reserve)")


def _memory_table(layouts: list[LayoutMemory]) -> list[str]:
    parts = ("parameters", "gradients", "optimizer", "activations", "working", "total")
    unit, name = (GIB, "GiB") if max(layout.total for layout in layouts) >= GIB else (2**20, "MiB")
    lines = [f"{f'{name} a device':<14}" + "".join(f"{part:>12}" for part in parts)]
    for layout in layouts:
        figures = "".join(f"{getattr(layout, part) / unit:>12.2f}" for part in parts)
        verdict = ""
        if layout.spare is not None:
            verdict = (
                f"  fits, {layout.spare / GIB:.1f} to spare"
                if layout.fits
                else f"  does not fit: {-layout.spare / GIB:.1f} too much"
            )
        lines.append(f"{LAYOUT_NAMES[layout.layout]:<14}{figures}{verdict}")
    return lines

"""Figures of a model and its training, drawn by matplotlib.

    from transduct import plot
    plot.cross_attention(model, tokenizer, "a source").savefig("attention.png")

Every function returns a `matplotlib.figure.Figure` and touches neither pyplot nor any setting of matplotlib, so that it serves
scripts, servers and notebooks alike, with or without a screen. Labels are drawn as they are: `$` starts no formula. For scripts
that matplotlib's own font lacks, name an installed one in `matplotlib.rcParams["font.family"]` before.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from transduct.decoding.attention_maps import AttentionMap, attention_map
from transduct.decoding.score import Target
from transduct.decoding.token_labels import clipped, visible
from transduct.decoding.translate import translate
from transduct.positions import RelativePositionBias, sinusoid_table
from transduct.training.history import History, further_keys, logged_points, read_history
from transduct.training.metrics import without_timings
from transduct.training.schedules import ScheduleName, cooldown_factor, cosine_factor, schedule_function

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONGEST_LABEL = 20
"""Characters of a token that are drawn."""
MOST_STEPS = 2000
"""Steps of a schedule that are drawn; of longer ones as many, evenly apart."""
SEQUENTIAL, DIVERGING = "Blues", "RdBu_r"
"""Colour maps: of weights, and of values around zero."""


def cross_attention(
    model: Any,
    tokenizer: Any,
    source: str,
    target: Target | None = None,
    layer: int = -1,
    heads: Sequence[int] | None = None,
    *,
    each_head: bool = False,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    task: str | None = None,
    prefix: str | None = None,
) -> "Figure":
    """Where in the source the decoder looks while it chooses each token of the target.

    Args:
        model, tokenizer, source, target: see `attention_map`; without a target what `translate` makes of the source.
        layer: of the decoder, counted from 0, or from the last with negative numbers.
        heads: of that layer; None: all. Their mean is drawn, or with `each_head` a panel for each.
        src_lang, tgt_lang, task, prefix: see `decoding/languages.py`.

    Raises:
        ValueError: for a text that is too long or none, and a layer or a head that is not there.
    """
    direction: dict[str, Any] = dict(src_lang=src_lang, tgt_lang=tgt_lang, task=task, prefix=prefix)
    if target is None:
        target = translate(model, tokenizer, [source], return_scores=True, **direction)[0].token_ids
    found = attention_map(model, tokenizer, source, target, **direction)
    mean = found.mean(layer, heads)  # (T, S)
    place = f"decoder layer {layer % len(found.layers)}"
    if each_head:
        return _heads(found, layer, range(found.heads) if heads is None else heads, place)
    which = "mean of all heads" if heads is None else f"heads {', '.join(map(str, heads))}"
    return attention(mean, found.source, found.target, f"{place}, {which}")


def attention(weights: torch.Tensor, source: Sequence[str], target: Sequence[str], title: str = "") -> "Figure":
    """A map of weights (T, S) with the labels of T target and S source tokens, which may be any text.

    Raises:
        ValueError: for labels of another number than rows or columns.
    """
    if tuple(weights.shape) != (len(target), len(source)):
        raise ValueError(f"weights of shape {tuple(weights.shape)} need as many labels, not {len(target)} and {len(source)}")
    weights = weights.detach().float().cpu()
    size = _size(len(source), len(target))
    figure, ((axes,),) = _panels(1, 1, (size[0] + 2.5, size[1] + 1.5))
    image = _matrix(axes, weights, target, source, (0.0, max(float(weights.max()), 1e-6)), SEQUENTIAL)
    axes.set_xlabel("source")
    axes.set_ylabel("target")
    _plain(axes.set_title(title))
    figure.colorbar(image, ax=axes, label="weight")
    return figure


def _heads(found: AttentionMap, layer: int, heads: Sequence[int], title: str) -> "Figure":
    """A panel for each head, all on one scale."""
    columns = min(4, len(heads))
    rows = math.ceil(len(heads) / columns)
    width, height = _size(len(found.source), len(found.target))
    figure, panels = _panels(rows, columns, (columns * (width + 1.0) + 1.0, rows * (height + 1.2)))
    every = [axes for row in panels for axes in row]
    for axes, head in zip(every, heads, strict=False):
        image = _matrix(axes, found.mean(layer, [head]), found.target, found.source, (0.0, 1.0), SEQUENTIAL)
        axes.set_title(f"head {head}")
    for axes in every[len(heads) :]:
        axes.set_axis_off()
    figure.suptitle(title)
    figure.colorbar(image, ax=every, label="weight")
    return figure


def position_bias(model: Any, layer: int | None = None) -> "Figure":
    """What relative positions add to the attention scores: for each head and bucket of distances (T5, section 2.1).

    Args:
        model: of transduct, with `positions="relative_bias"`; of others `transduct.convert.from_transformers` makes one.
        layer: of models with a table for each layer (UMT5), that of one of them; None: all tables.

    Raises:
        ValueError: for a model without such a table, and a layer that has none.
    """
    tables = {name: part for name, part in model.named_modules() if isinstance(part, RelativePositionBias)}
    if not tables:
        raise ValueError(
            f"{type(model).__name__} has no relative position bias of transduct: its positions are others, or it is to be "
            "converted by transduct.convert.from_transformers"
        )
    if layer is not None:
        tables = {name: part for name, part in tables.items() if f".layers.{layer}." in f".{name}"}
        if not tables:
            raise ValueError(f"layer={layer}: no table of position biases belongs to it; leave layer out for all tables")
    figure, panels = _panels(len(tables), 1, (11.0, 1.0 + sum(1.6 + 0.25 * part.table.embedding_dim for part in tables.values())))
    for (axes,), (name, part) in zip(panels, tables.items(), strict=True):
        _bias(axes, part)
        axes.set_title(name.removeprefix("model."))
        figure.colorbar(axes.images[0], ax=axes, label="added to the score")
    return figure


def _bias(axes: "Axes", part: RelativePositionBias) -> None:
    """Heads by buckets, from far behind to far ahead."""
    buckets = bucket_distances(part)
    weights = part.table.weight.detach().float().cpu()[list(buckets)].T  # (H, used buckets)
    most = max(float(weights.abs().max()), 1e-6)
    _matrix(axes, weights, range(len(weights)), list(buckets.values()), (-most, most), DIVERGING)
    axes.set_xlabel("key position - query position")
    axes.set_ylabel("head")


def bucket_distances(part: RelativePositionBias) -> dict[int, str]:
    """Which distances (key - query) each bucket holds, such as "-9…-8", in their order; without buckets that hold none."""
    reach = part.max_distance + 1
    distances = torch.arange(-reach, (reach if part.bidirectional else 0) + 1)
    numbers = part._relative_position_bucket(distances, part.bidirectional, part.num_buckets, part.max_distance)
    spans: dict[int, list[int]] = {}
    for number, distance in zip(numbers.tolist(), distances.tolist(), strict=True):
        spans.setdefault(number, []).append(distance)
    return {number: _span(span, reach) for number, span in spans.items()}


def _span(distances: Sequence[int], reach: int) -> str:
    first, last = distances[0], distances[-1]
    if first == -reach:
        return f"≤{last}"
    if last == reach:
        return f"≥{first}"
    return str(first) if first == last else f"{first}…{last}"


def sinusoids(length: int = 128, d_model: int = 512, layout: str = "interleaved") -> "Figure":
    """The position encodings (length, d_model) of Vaswani et al. 2017, section 3.5; `layout`: see `sinusoid_table`.

    Raises:
        ValueError: for a length or a width without a table.
    """
    if length < 1 or d_model < 2 or d_model % 2:
        raise ValueError(f"length={length} must be at least 1 and d_model={d_model} even")
    if layout not in ("interleaved", "halves", "tensor2tensor"):
        raise ValueError(f"layout={layout!r} must be 'interleaved', 'halves' or 'tensor2tensor'")
    figure, ((axes,),) = _panels(1, 1, (8.0, 4.0))
    table = sinusoid_table(length, d_model, layout)
    image = axes.imshow(table.numpy(), cmap=DIVERGING, vmin=-1.0, vmax=1.0, aspect="auto", interpolation="nearest")
    axes.set_xlabel("feature")
    axes.set_ylabel("position")
    axes.set_title(f"sinusoids, {layout}")
    figure.colorbar(image, ax=axes)
    return figure


def schedules(
    names: ScheduleName | Sequence[ScheduleName],
    steps: int,
    warmup_steps: int,
    *,
    d_model: int | None = None,
    learning_rate: float = 1.0,
    cooldown: float = 0.0,
) -> "Figure":
    """The learning rate at each update of runs of `steps` updates, by the names of `TransductTrainingArguments.schedule`.

    Args:
        d_model: the width of the model, which "vaswani" needs.
        learning_rate: what the schedules are factors of; 1 for "vaswani" and "t5", which are rates by themselves.
        cooldown: share of the run over which the rate falls to zero; the cosine does so by itself.

    Raises:
        ValueError: for an unknown name and what `schedule_function` refuses.
    """
    names = [names] if isinstance(names, str) else list(names)
    if steps < 1:
        raise ValueError(f"steps={steps} must be at least 1")
    if not 0 <= cooldown <= 1:
        raise ValueError(f"cooldown={cooldown} must lie in [0, 1]")
    shown = sorted({*range(1, steps + 1, math.ceil(steps / MOST_STEPS)), min(max(warmup_steps, 1), steps), steps})
    figure, ((axes,),) = _panels(1, 1, (7.0, 4.0))
    for name in names:
        factor = schedule_function(name, warmup_steps, d_model)
        rates = [learning_rate * factor(step) * _decline(name, step - 1, steps, warmup_steps, cooldown) for step in shown]
        axes.plot(shown, rates, label=name)
    axes.set_xlabel("update")
    axes.set_ylabel("learning rate")
    axes.set_ylim(bottom=0.0)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _decline(name: str, done: int, steps: int, warmup: int, cooldown: float) -> float:
    """By what the end of a run lowers the rate after `done` updates, as `BudgetedLR` does."""
    if name != "cosine":
        return cooldown_factor(done / steps, cooldown)
    if done < warmup or warmup >= steps:
        return cosine_factor(0.0 if done < warmup else 1.0)
    return cosine_factor((done - warmup) / (steps - warmup))


def training_curves(run: str | Path | History) -> "Figure":
    """Losses, learning rate, validation metrics and whatever else was logged by update; values that are not finite are gaps.

    Args:
        run: the folder of a run or of a checkpoint, a `trainer_state.json`, or `trainer.state.log_history`.

    Raises:
        ValueError: for a folder without a checkpoint, a file that is none, and a history without numbers.
    """
    history = read_history(Path(run)) if isinstance(run, (str, Path)) else run
    filled = {name: {label: line for label, line in lines.items() if line} for name, lines in _lines(history).items()}
    filled = {name: lines for name, lines in filled.items() if lines}
    if not filled:
        raise ValueError("this history holds no loss, learning rate or metric: nothing was logged yet")
    columns = min(2, len(filled))
    rows = math.ceil(len(filled) / columns)
    figure, panels = _panels(rows, columns, (5.5 * columns, 3.2 * rows))
    every = [axes for row in panels for axes in row]
    for axes, (name, lines) in zip(every, filled.items(), strict=False):
        _curves(axes, name, lines)
    for axes in every[: len(filled)]:
        axes.set_xlim(0, max(1, *(row.get("step", 0) for row in history)))
    for axes in every[len(filled) :]:
        axes.set_axis_off()
    return figure


def _lines(history: History) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Panel -> label -> points; what is measured both in training and in validation shares a panel, as the loss does."""
    measured = without_timings({key: None for row in history for key in row if key.startswith("eval_")})
    lines: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for key in ("loss", "eval_loss", "learning_rate", "grad_norm", *measured, *further_keys(history)):
        label = "validation" if key.startswith("eval_") else "training"
        lines.setdefault(key.removeprefix("eval_").replace("_", " "), {})[label] = logged_points(history, key)
    return {name: dict(sorted(labelled.items())) for name, labelled in lines.items()}


def _curves(axes: "Axes", name: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    for label, line in lines.items():
        axes.plot(*zip(*line, strict=True), label=label, marker=".", markevery=_dotted([value for _, value in line]))
    _plain(axes.set_title(name))
    axes.set_xlabel("update")
    axes.grid(alpha=0.3)
    if len(lines) > 1:
        axes.legend()


def _dotted(values: Sequence[float]) -> list[int]:
    """Which values of a line have a dot: those of a short one, and those between gaps, of which nothing else would show."""
    finite = [False, *map(math.isfinite, values), False]
    return [i for i in range(len(values)) if len(values) < 30 or (finite[i + 1] and not (finite[i] or finite[i + 2]))]


# ---- what all figures share -------------------------------------------------------------------------------------------
def _panels(rows: int, columns: int, size: tuple[float, float]) -> "tuple[Figure, list[list[Axes]]]":
    """A figure of its own, in inches, and its axes by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False).tolist()


def _size(columns: int, rows: int) -> tuple[float, float]:
    """Inches of a matrix with a label for each column and row."""
    return min(max(0.32 * columns, 1.5), 40.0), min(max(0.28 * rows, 1.5), 40.0)


def _matrix(
    axes: "Axes", values: torch.Tensor, rows: Sequence[Any], columns: Sequence[Any], span: tuple[float, float], colours: str
) -> Any:
    """An image of values (rows, columns) with a label for each."""
    image = axes.imshow(
        values.numpy(), cmap=colours, vmin=span[0], vmax=span[1], aspect="auto", interpolation="nearest", rasterized=True
    )
    across, down = ([clipped(visible(str(label)), LONGEST_LABEL) for label in labels] for labels in (columns, rows))
    axes.set_xticks(range(len(across)), across, rotation=90 if max(map(len, across)) > 2 else 0)
    axes.set_yticks(range(len(down)), down)
    for text in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        _plain(text)
    return image


def _plain(text: Any) -> None:
    """Draw what is written, be it `$x$` or anything that TeX would read."""
    text.set_parse_math(False)
    text.set_usetex(False)

"""Figures: what is drawn are the model's own numbers, labels are drawn as they are written, and pyplot is left alone."""

import io
import json
import sys

import matplotlib
import pytest
import torch
from matplotlib.figure import Figure

from configs import build, tiny
from tiny_translation import theirs, tiny_translation
from transduct import TransductForConditionalGeneration, plot
from transduct.decoding.attention_maps import attention_map
from transduct.positions import RelativePositionBias, sinusoid_table
from transduct.training.schedules import BudgetedLR, schedule_function

ODD = ["$\\frac{1$", "<b>&amp;", "שלום", "\u202eabc", "a\0b", "x" * 500, "{", "\\", "", "%", "👩\u200d💻", "_^"]


def drawn(figure: Figure) -> bytes:
    """The figure as a file; a label that cannot be drawn is an error here."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=40)
    assert file.getvalue().startswith(b"\x89PNG")
    return file.getvalue()


def image(figure: Figure, panel: int = 0) -> torch.Tensor:
    return torch.tensor(figure.axes[panel].images[0].get_array().tolist())


def labels(axes, side: str) -> list[str]:
    return [text.get_text() for text in (axes.get_xticklabels() if side == "x" else axes.get_yticklabels())]


# ---- attention --------------------------------------------------------------------------------------------------------
def test_cross_attention_is_the_models():
    model, tokenizer = tiny_translation()
    figure = plot.cross_attention(model, tokenizer, "hello", "the end", layer=0, heads=[1, 2])
    found = attention_map(model, tokenizer, "hello", "the end")
    assert torch.allclose(image(figure), found.layers[0][[1, 2]].mean(0))
    assert labels(figure.axes[0], "x") == ["h", "e", "l", "l", "o", "</s>"]
    assert labels(figure.axes[0], "y") == ["t", "h", "e", "␣", "e", "n", "d", "</s>"]
    assert figure.axes[0].get_title() == "decoder layer 0, heads 1, 2"
    drawn(figure)


def test_without_a_target_the_models_own_output_is_shown():
    model, tokenizer = tiny_translation(end=2.0)
    model.generation_config.max_new_tokens = 5
    figure = plot.cross_attention(model, tokenizer, "cab")
    assert figure.axes[0].get_title() == "decoder layer 1, mean of all heads"
    assert image(figure).shape == (len(labels(figure.axes[0], "y")), 4)


def test_each_head_has_a_panel():
    model, tokenizer = tiny_translation()
    found = attention_map(model, tokenizer, "abc", "xyz")
    figure = plot.cross_attention(model, tokenizer, "abc", "xyz", each_head=True)
    for head in range(4):
        assert torch.allclose(image(figure, head), found.layers[1][head])
        assert figure.axes[head].get_title() == f"head {head}"
    three = plot.cross_attention(model, tokenizer, "abc", "xyz", heads=[3, 0, 1], each_head=True)
    assert torch.allclose(image(three), found.layers[1][3])
    drawn(three)


def test_models_of_transformers_are_drawn_too():
    _, tokenizer = tiny_translation()
    model = theirs("bart", tokenizer)
    figure = plot.cross_attention(model, tokenizer, "abc", "xyz")
    assert torch.allclose(image(figure), attention_map(model, tokenizer, "abc", "xyz").layers[1].mean(0))


@pytest.mark.filterwarnings("ignore:Glyph")  # the font of this machine may lack them
def test_labels_of_any_text_are_drawn_as_they_are():
    weights = torch.rand(len(ODD), len(ODD))
    figure = plot.attention(weights, ODD, ODD, title="$x_1$ and $")
    shown = labels(figure.axes[0], "y")
    assert shown[0] == "$\\frac{1$"
    assert shown[3:6] == ["U+202Eabc", "aU+0000b", "x" * 19 + "…"]
    drawn(figure)
    formula, plain = (plot.attention(torch.ones(1, 1), [text], [""]) for text in ("$x$", "x"))
    assert drawn(formula) != drawn(plain)


@pytest.mark.parametrize("options", [{"dtype": torch.bfloat16}, {"dtype": torch.float16}, {"requires_grad": True}], ids=str)
def test_weights_of_any_type_are_drawn(options):
    weights = torch.tensor([[0.25, 0.75], [1.0, 0.0]], **options)
    assert image(plot.attention(weights, ["a", "b"], ["c", "d"])).tolist() == [[0.25, 0.75], [1.0, 0.0]]


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"log_history": 5}', '{"log_history": [5]}', "[" * 100_000], ids=len)
def test_files_that_are_no_history(text, tmp_path):
    (tmp_path / "trainer_state.json").write_text(text)
    with pytest.raises(ValueError, match="it has no log_history"):
        plot.training_curves(tmp_path)


def test_attention_needs_a_label_for_each_token():
    with pytest.raises(ValueError, match=r"weights of shape \(2, 3\) need as many labels, not 2 and 2"):
        plot.attention(torch.rand(2, 3), ["a", "b"], ["c", "d"])
    model, tokenizer = tiny_translation()
    for options, message in (
        ({"layer": 5}, "attention layer 5 is not there"),
        ({"heads": [4]}, "attention head 4 is not there"),
        ({"heads": [], "each_head": True}, "empty list"),
    ):
        with pytest.raises(ValueError, match=message):
            plot.cross_attention(model, tokenizer, "a", "b", **options)


# ---- positions --------------------------------------------------------------------------------------------------------
def test_position_bias_holds_what_the_model_adds():
    """Each cell is what the module itself adds to the score at a distance of the bucket that the column names."""
    model = build(TransductForConditionalGeneration, tiny(positions="relative_bias"), torch.float32)
    figure = plot.position_bias(model)
    modules = [model.model.encoder.position_bias, model.model.decoder.position_bias]
    for axes, module in zip(figure.axes[:2], modules, strict=True):
        cells = torch.tensor(axes.images[0].get_array().tolist())  # (H, buckets)
        seen = set()
        for column, label in enumerate(labels(axes, "x")):
            for distance in distances_of(label):
                bias = module(torch.tensor([[max(-distance, 0)]]), torch.tensor([[max(distance, 0)]]), torch.float32)
                assert torch.allclose(cells[:, column], bias[0, :, 0, 0])
                seen.add(distance)
        assert seen == set(range(-30, 31 if module.bidirectional else 1))
    assert [axes.get_title() for axes in figure.axes[:2]] == ["encoder.position_bias", "decoder.position_bias"]
    drawn(figure)


def distances_of(label: str) -> range:
    """Of a column's label, as far as 30."""
    if label.startswith("≤"):
        return range(-30, int(label[1:]) + 1)
    if label.startswith("≥"):
        return range(int(label[1:]), 31)
    first, _, last = label.partition("…")
    return range(int(first), int(last or first) + 1)


def test_a_table_of_each_layer():
    config = tiny(positions="relative_bias", relative_bias_per_layer=True)
    model = build(TransductForConditionalGeneration, config, torch.float32)
    assert len([axes for axes in plot.position_bias(model).axes if axes.images and "layers" in axes.get_title()]) == 4
    figure = plot.position_bias(model, layer=1)
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == [
        f"{side}.layers.1.position_bias" for side in ("encoder", "decoder")
    ]
    with pytest.raises(ValueError, match="layer=2: no table"):
        plot.position_bias(model, layer=2)


def test_buckets_of_t5_are_those_of_the_paper():
    """32 buckets, exact below 8, distances of 113 and more in the last (Raffel et al., section 2.1)."""
    spans = plot.bucket_distances(RelativePositionBias(32, 128, 1, bidirectional=True))
    assert list(spans.values())[8:23] == [str(distance) for distance in range(-7, 8)]
    assert (spans[15], spans[31], spans[8], spans[24]) == ("≤-91", "≥91", "-11…-8", "8…11")
    assert 16 not in spans  # a distance of 0 that lies ahead
    assert len(plot.bucket_distances(RelativePositionBias(32, 128, 1, bidirectional=False))) == 32


def test_models_without_a_bias_are_refused():
    _, tokenizer = tiny_translation()
    for model in (tiny_translation()[0], theirs("t5", tokenizer)):
        with pytest.raises(ValueError, match="has no relative position bias of transduct"):
            plot.position_bias(model)


@pytest.mark.parametrize("layout", ["interleaved", "halves", "tensor2tensor"])
def test_sinusoids_are_the_table(layout):
    figure = plot.sinusoids(10, 16, layout)
    assert torch.equal(image(figure), sinusoid_table(10, 16, layout))
    drawn(figure)


@pytest.mark.parametrize("arguments", [(0, 16), (4, 15), (4, 16, "halfs")])
def test_sinusoids_that_do_not_exist_are_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        plot.sinusoids(*arguments)


# ---- schedules and curves ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "cooldown"),
    [("vaswani", 0.0), ("inverse_sqrt", 0.25), ("t5", 0.0), ("constant", 1.0), ("cosine", 0.0)],
)
def test_schedules_are_those_of_the_trainer(name, cooldown):
    """Step by step the rates that an optimizer would have."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    cosine = 7 if name == "cosine" else None
    scheduler = BudgetedLR(optimizer, schedule_function(name, 7, 64), total_steps=40, cooldown=cooldown, cosine_after=cosine)
    rates = []
    for _ in range(40):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    figure = plot.schedules([name], 40, 7, d_model=64, learning_rate=0.5, cooldown=cooldown)
    (line,) = figure.axes[0].lines
    assert line.get_xdata().tolist() == list(range(1, 41))
    assert line.get_ydata().tolist() == pytest.approx(rates)
    drawn(figure)


def test_long_schedules_are_thinned_but_keep_their_peak():
    figure = plot.schedules(["vaswani", "constant"], 300_000, 4001, d_model=512)
    first, second = figure.axes[0].lines
    assert len(first.get_xdata()) < 2100
    assert max(first.get_ydata()) == pytest.approx((512 * 4001) ** -0.5)
    assert first.get_xdata()[-1] == 300_000
    assert second.get_label() == "constant"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("linear", 10, 2), "schedule='linear' is unknown"),
        (("vaswani", 10, 2), "needs the width of the model"),
        (("constant", 0, 2), "steps=0 must be at least 1"),
    ],
)
def test_schedules_that_do_not_exist_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plot.schedules(*arguments)


HISTORY = [
    {"step": 10, "loss": 3.0, "learning_rate": 0.1, "grad_norm": 1.0, "epoch": 0.5, "target_tokens_per_second": 900},
    {"step": 20, "loss": float("nan"), "learning_rate": 0.2, "grad_norm": 2.0, "epoch": 1.0},
    {"step": 20, "eval_loss": 2.5, "eval_chrf": 30.0, "eval_runtime": 1.0, "eval_samples_per_second": 2.0},
    {"step": 30, "loss": 2.0, "learning_rate": 0.1, "grad_norm": 1.5, "epoch": 1.5, "target_tokens_per_second": 950, "once": 1},
]


def test_training_curves_hold_what_was_logged(tmp_path):
    figure = plot.training_curves(HISTORY)
    panels = {axes.get_title(): axes for axes in figure.axes if axes.lines}
    assert list(panels) == ["loss", "learning rate", "grad norm", "chrf", "target tokens per second"]
    training, validation = panels["loss"].lines
    assert training.get_xdata().tolist() == [10, 20, 30]
    assert training.get_ydata().tolist() == pytest.approx([3.0, float("nan"), 2.0], nan_ok=True)
    assert (validation.get_xdata().tolist(), validation.get_ydata().tolist()) == ([20], [2.5])
    assert panels["chrf"].lines[0].get_ydata().tolist() == [30.0]
    drawn(figure)


def test_what_is_logged_in_training_and_in_validation_shares_a_panel():
    history = [{"step": 1, "loss": 2.0, "chrf": 10}, {"step": 2, "loss": 1.0, "chrf": 20}, {"step": 2, "eval_chrf": 15}]
    panels = {axes.get_title(): axes for axes in plot.training_curves(history).axes if axes.lines}
    assert [(line.get_label(), line.get_ydata().tolist()) for line in panels["chrf"].lines] == [
        ("training", [10, 20]), ("validation", [15])
    ]  # fmt: skip
    assert {text.get_text() for text in panels["chrf"].get_legend().get_texts()} == {"training", "validation"}
    assert panels["loss"].get_legend() is None


def test_values_between_gaps_are_dots():
    """No line leads to them."""
    losses = [1.0] * 20 + [float("nan"), 2.0, float("inf")] + [1.0] * 20
    (line,) = plot.training_curves([{"step": step, "loss": loss} for step, loss in enumerate(losses)]).axes[0].lines
    assert (line.get_marker(), line.get_markevery()) == (".", [21])
    figure = plot.training_curves([{"step": 0, "loss": 1.0}])
    assert figure.axes[0].lines[0].get_markevery() == [0]
    drawn(figure)


def test_training_curves_of_a_run(tmp_path):
    for number, losses in ((10, HISTORY[:1]), (30, HISTORY)):
        folder = tmp_path / "checkpoints" / f"checkpoint-{number}"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": losses}))
    for place in (tmp_path, tmp_path / "checkpoints", folder, folder / "trainer_state.json", str(tmp_path)):
        assert plot.training_curves(place).axes[0].lines[0].get_xdata().tolist() == [10, 20, 30]
    (folder / "trainer_state.json").write_text("[]")
    with pytest.raises(ValueError, match=r"is no trainer_state\.json"):
        plot.training_curves(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(ValueError, match=r"has no trainer_state\.json"):
        plot.training_curves(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="holds no loss"):
        plot.training_curves([{"step": 1}])


# ---- the library ------------------------------------------------------------------------------------------------------
def settings() -> dict[str, str]:
    """matplotlib's, read so that it chooses no backend."""
    return {name: repr(dict.__getitem__(matplotlib.rcParams, name)) for name in dict.keys(matplotlib.rcParams)}


def test_pyplot_and_the_settings_are_left_alone(monkeypatch):
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    before = settings()
    for figure in (plot.sinusoids(4, 4), plot.schedules("constant", 9, 2), plot.attention(torch.ones(1, 1), ["$"], ["$"])):
        drawn(figure)
    assert "matplotlib.pyplot" not in sys.modules
    assert settings() == before

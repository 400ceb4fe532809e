"""The training report: whole, self-contained, escaped, and right for runs of every kind."""

import math
import re
from html.parser import HTMLParser

import pytest
from matplotlib import rc_context
from transformers import T5Config, T5ForConditionalGeneration

from tiny_training import tiny_model
from transduct.training.report import REPORT, Sample, TrainingRecord, command_line, number, render, report_run

HISTORY = [
    {"loss": 5.0, "grad_norm": 2.0, "learning_rate": 1e-3, "epoch": 0.1, "step": 20},
    {
        "eval_loss": 4.5,
        "eval_bleu": 3.25,
        "eval_lead_time": 55.5,
        "eval_runtime": 77.7,
        "eval_samples_per_second": 66.6,
        "epoch": 0.2,
        "step": 40,
    },
    {"loss": 4.0, "grad_norm": 1.0, "learning_rate": 9e-4, "epoch": 0.2, "step": 40},
    {"train_runtime": 12.0, "train_loss": 4.5, "total_flos": 3, "epoch": 0.2, "step": 40},
]


def record(**changes) -> TrainingRecord:
    given = dict(
        title="runs/x", recipe="output: runs/x\n", history=HISTORY, model="parameters 7", command="transduct train x.yaml"
    )
    return TrainingRecord(**{**given, **changes})


class Page(HTMLParser):
    """Refuses tags that are not closed in order, and keeps the text and what the page would load."""

    VOID = {"meta", "br"}

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [
            value
            for name, value in attributes
            if (name in ("src", "href", "xlink:href", "data", "srcset") and not value.startswith("#"))
            or ("url(" in (value or "") and not value.startswith("url(#"))
        ]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_it_shows_the_whole_run():
    samples = [Sample("ein Haus", "a house", ["a house", "one house"]), Sample("zwei", "too", ["two"]), Sample("drei", "three")]
    page = Page(render(record(samples=samples, metrics={"word error": 0.12345, "BLEU": 31.2})))
    for text in (
        "runs/x", "40 steps, 0.20 epochs, last training loss 4.0000", "word error 0.1235", "31.2000",
        "one house", "equal", "differs", "parameters 7", "output: runs/x",
        "transduct train x.yaml", "torch", "bleu", "3.2500", "lead time", "55.5000", "1 evaluations",
        "training", "validation", "learning rate", "grad norm", "update",
    ):  # fmt: skip
        assert text in page.text, text
    assert page.tags.count("svg") == 1
    assert "77.7" not in page.text
    assert "66.6" not in page.text


def test_it_needs_nothing_from_outside():
    html = render(record(samples=[Sample("https://example.org/x.js", "b")]))
    page = Page(html)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert page.links == []
    assert "@import" not in html
    assert set(re.findall(r"url\(.", html)) <= {"url(#"}  # what an element of the picture says of another


def test_every_text_is_escaped():
    bad = '<script>alert("x")</script>&amp;<b>'
    html = render(
        record(
            title=bad, recipe=bad, model=bad, command=bad, metrics={bad: 1.0}, samples=[Sample(bad, bad, [bad])],
            history=[{"eval_" + bad: 1.0, "step": 1}, {"loss": 1.0, bad: 3.0, "step": 1}, {"loss": 1.0, bad: 4.0, "step": 2}],
        )
    )  # fmt: skip
    page = Page(html)
    assert not {"script", "b"} & set(page.tags)
    assert page.text.count(bad) >= 9


def test_the_report_of_a_folder(tmp_path):
    (tmp_path / "recipe.yaml").write_text("seed: 7\n")
    model = tiny_model()
    report_run(tmp_path, HISTORY, model, {"bleu": 3.0}, [Sample("a", "b")])
    page = Page((tmp_path / REPORT).read_text(encoding="utf-8"))
    assert f"parameters {model.num_parameters():,}" in page.text
    assert "seed: 7" in page.text
    foreign = T5ForConditionalGeneration(T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2))
    report_run(tmp_path, HISTORY, foreign, {}, [])
    page = Page((tmp_path / REPORT).read_text(encoding="utf-8"))
    assert f"T5ForConditionalGeneration {foreign.num_parameters():,} parameters" in page.text


@pytest.mark.parametrize(
    "history",
    [
        [],
        [{"loss": 2.0, "learning_rate": 0.1, "epoch": 1.0, "step": 5}],
        [{"loss": math.nan, "grad_norm": math.inf, "learning_rate": 0.1, "step": 1}, {"loss": 2.0, "step": 2}],
        [{"eval_loss": math.nan, "step": 3}],
        [{"loss": 1.0, "step": 1, "epoch": None}],
    ],
)
def test_it_is_a_page_for_every_history(history):
    Page(render(record(history=history)))


def test_a_step_that_was_trained_again_counts_once():
    again = [{"loss": 9.0, "step": 20}, {"loss": 8.0, "step": 40}, {"loss": 7.0, "step": 40}, {"loss": 6.0, "step": 60}]
    html = render(record(history=again))
    assert "last training loss 6.0000" in Page(html).text
    assert html == render(record(history=again[:1] + again[2:]))


def test_values_that_are_not_finite_are_counted():
    history = [{"loss": math.nan, "grad_norm": math.inf, "step": 1}, {"loss": 2.0, "step": 2}, {"loss": 1.0, "step": 3}]
    text = Page(render(record(history=history))).text
    assert "2 values are not finite and are left out" in text
    assert "grad norm" in text
    assert "left out" not in Page(render(record(history=history[1:]))).text
    assert "nothing was logged yet" in Page(render(record(history=[{"step": 1}]))).text


def test_names_in_any_script_and_settings_of_matplotlib(recwarn):
    """Text stays text, for which the browser has fonts, and needs no TeX."""
    history = [{"eval_错误率": 1.0, "eval_$x_{$": 2.0, "step": 1}]
    with rc_context({"text.usetex": True}):
        text = Page(render(record(history=history))).text
    assert text == Page(render(record(history=history))).text
    assert text.count("错误率") == text.count("$x {$") == 2
    assert not list(recwarn)


def test_the_curves_are_those_of_the_history():
    """The loss falls by equal steps, so that its line does."""
    page = render(record(history=[{"loss": 5.0 - number, "step": 10 * number} for number in range(1, 4)]))
    (drawn,) = re.findall(r'd="M ([^"]*)" clip-path="[^"]*" style="fill: none; stroke: #1f77b4', page)
    heights = [float(point.split()[1]) for point in drawn.split("L")]  # counted from above
    assert heights[2] - heights[1] == pytest.approx(heights[1] - heights[0])
    assert heights[1] > heights[0]


def test_tokens_are_not_given_away():
    html = render(
        record(recipe="training:\n  hub_token: hf_secret\n", command="transduct train --set training.hub_token=hf_secret")
    )
    assert "hf_secret" not in html
    assert "hub_token" in html


def test_the_command_can_be_pasted(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/transduct", "train", "my recipe.yaml", "--set", "training.seed=2"])
    assert command_line() == "transduct train 'my recipe.yaml' --set training.seed=2"
    monkeypatch.setattr("sys.argv", ["/x/transduct/training/__main__.py", "c.yaml"])
    assert command_line() == "python -m transduct.training c.yaml"


@pytest.mark.parametrize("processes", [None, "1", "2", "8"])
def test_the_report_says_that_a_launcher_started_the_command(tmp_path, monkeypatch, processes):
    """Which the processes themselves do not see: as it stands, the command would be one of them alone."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if processes is not None:
        monkeypatch.setenv("WORLD_SIZE", processes)
    monkeypatch.setattr("sys.argv", ["/x/transduct/training/__main__.py", "c.yaml"])
    (tmp_path / "recipe.yaml").write_text("seed: 7\n")
    report_run(tmp_path, HISTORY, tiny_model(), {}, [])
    text = Page((tmp_path / REPORT).read_text(encoding="utf-8")).text
    assert "python -m transduct.training c.yaml" in text
    several = f"python -m transduct.training c.yaml in {processes} processes, started by a launcher such as accelerate launch"
    assert (several in text) == (processes in ("2", "8"))
    assert ("launcher" in text) == (processes in ("2", "8"))


FIGURES = [
    (0.12345, "0.1235"),
    (3e-5, "3e-05"),
    (12345.6, "1.235e+04"),
    (1200, "1,200"),
    (math.nan, "nan"),
    (0.0, "0.0000"),
    ("<", "&lt;"),
]


@pytest.mark.parametrize(("value", "shown"), FIGURES)
def test_numbers(value, shown):
    assert number(value) == shown

"""The page in gradio: components and what happens when they are used. What they show is made elsewhere, see `views.py`."""

from html import escape
from typing import Any

import gradio as gr

from transduct.page import views
from transduct.page.answers import Demonstration
from transduct.page.drawing import STYLE, note, words
from transduct.page.settings import MOST_BEAMS, MOST_CHARACTERS, MOST_TOKENS, SEARCHES, default_penalty

EVENT: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
MODEL: dict[str, Any] = {**EVENT, "concurrency_id": "model", "concurrency_limit": 1}
"""Events that wait for the model."""
KEPT = 3600.0
"""Seconds for which a visitor's results are kept."""
FIELDS = (
    "search", "beams", "hypotheses", "normalization", "length_penalty", "tokens", "temperature", "top_k", "top_p", "seed",
    "src_lang", "tgt_lang", "task", "prefix",
)  # fmt: skip
"""Of `Settings`, each with a component."""
ATTENTION = "Each row tells where the model looked while it chose the token at its left: the darker, the more."
ALIGNMENT = "Lines join each output token with the source tokens it looked at; the strongest one stands out."
TREE = (
    "What the search held at each step, best first, with summed log-probabilities: what became the output that is shown (amber), "
    "what ended (green, with its rank), what goes on, and what was dropped later (grey)."
)
CSS = (
    STYLE
    + """
#source textarea, #prefix textarea { unicode-bidi: plaintext; }
#head h1 { font-size: 1.25rem; margin: 0; } #head p { margin: 0; color: var(--faint); overflow-wrap: anywhere; }
footer { display: none !important; }
"""
)


def theme() -> gr.Theme:
    """Fonts that every computer has: none is fetched."""
    return gr.themes.Default(
        primary_hue="blue",
        font=[gr.themes.Font("system-ui"), gr.themes.Font("sans-serif")],
        font_mono=[gr.themes.Font("ui-monospace"), gr.themes.Font("monospace")],
    )


class Page(gr.Blocks):
    """Blocks that take texts and numbers alone.

    gradio itself takes the address of a file in place of any value, fetches it, keeps it, and serves what it has fetched. What it
    cannot take, such as a number that a visitor has just deleted, it tells on the terminal, with a traceback; here on the page.
    """

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *others: Any, **options: Any) -> Any:
        if not all(value is None or isinstance(value, (str, int, float)) for value in inputs):
            raise gr.Error("the page takes texts and numbers, no files", print_exception=False)
        try:
            taken = await super().preprocess_data(block_fn, inputs, *others, **options)
            for component, value in zip(block_fn.inputs, taken, strict=True):
                if value is None and isinstance(component, (gr.Radio, gr.Dropdown)):
                    raise ValueError("nothing is chosen")
            return taken
        except Exception as error:
            why = error.message if isinstance(error, gr.Error) else "a number is missing, or a setting is of another kind"
            raise gr.Error(escape(why), print_exception=False) from None


class Layout:
    """The page of one model.

    Args:
        name: of the model, any text.
    """

    def __init__(self, page: Demonstration, name: str):
        self.page, self.offer = page, page.offer
        self.inputs: dict[str, Any] = {}
        with Page(title=f"transduct: {name}", analytics_enabled=False, fill_width=False) as self.blocks:
            size = f"{page.model.num_parameters():,} parameters"
            _html(f"<h1>{words(name)}</h1><p>{words(type(page.model).__name__)}, {size}</p>", elem_id="head")
            with gr.Row():
                with gr.Column(scale=3):
                    self._source()
                with gr.Column(scale=2):
                    self._settings()
            self._results()
            self._events()
        self.blocks.queue(max_size=32, default_concurrency_limit=4)

    # ---- what there is --------------------------------------------------------------------------------------------
    def _source(self) -> None:
        self.text = gr.Textbox(
            label="Source",
            lines=4,
            max_lines=12,
            max_length=MOST_CHARACTERS + 1,  # one more, so that what was too long is known to be
            placeholder="Type a text; Shift+Enter runs the search",
            elem_id="source",
        )
        self.button = gr.Button("Run", variant="primary", elem_id="run")
        self.message = _html("", elem_id="message", visible=False)
        offer, default = self.offer, [("as the model says", "")]
        with gr.Row(visible=bool(offer.target_languages or offer.tasks)):
            for field, label, choices in (
                ("src_lang", "From", offer.source_languages),
                ("tgt_lang", "To", offer.target_languages),
                ("task", "Task", offer.tasks),
            ):
                pairs = [*default, *((choice, choice) for choice in choices)]
                self.inputs[field] = gr.Dropdown(pairs, value="", label=label, visible=bool(choices), elem_id=field)
        self.inputs["prefix"] = gr.Textbox(
            label="Prefix of the source", placeholder="as the model says", max_lines=1, elem_id="prefix"
        )

    def _settings(self) -> None:
        chosen = self.offer.defaults
        inputs = self.inputs
        inputs["search"] = gr.Radio(list(SEARCHES), value=chosen.search, label="Search", elem_id="search")
        inputs["hypotheses"] = _slider(1, MOST_BEAMS, chosen.hypotheses, 1, "Outputs", "hypotheses")
        inputs["tokens"] = _slider(0, MOST_TOKENS, chosen.tokens, 1, "Most tokens (0: the model's own)", "tokens")
        with gr.Group() as self.of_beams:
            inputs["beams"] = _slider(1, MOST_BEAMS, chosen.beams, 1, "Beams (1: greedy search)", "beams")
        with gr.Group(visible=False) as self.of_samples:
            inputs["temperature"] = _slider(0.05, 3.0, chosen.temperature, 0.05, "Temperature", "temperature")
            inputs["top_k"] = _slider(0, 200, chosen.top_k, 1, "Top k (0: any token)", "top_k")
            inputs["top_p"] = _slider(0.05, 1.0, chosen.top_p, 0.05, "Top p", "top_p")
            inputs["seed"] = gr.Number(chosen.seed, label="Seed", precision=0, elem_id="seed")
        with gr.Accordion("Comparison of lengths", open=False):
            kinds = [
                ("tokens^a (transformers, fairseq, Marian)", "hf"),
                ("((5 + tokens) / 6)^a (Vaswani et al., T5X)", "gnmt"),
                ("tokens^a (Sockeye)", "sockeye"),
                ("none", "none"),
            ]
            inputs["normalization"] = gr.Dropdown(kinds, value="hf", label="Length penalty", elem_id="normalization")
            inputs["length_penalty"] = gr.Number(chosen.length_penalty, label="Its exponent a", elem_id="length_penalty")

    def _results(self) -> None:
        layers, heads = self.offer.layers, self.offer.heads
        self.answer = gr.State(None, time_to_live=KEPT)
        with gr.Column(visible=False) as self.results:
            self.table = _html("", elem_id="table")
            with gr.Row():
                self.rank = gr.Radio([1], value=1, label="Show output", elem_id="rank")
                places = [(f"{number}{', the last' if number == layers - 1 else ''}", number) for number in range(layers)]
                self.layer = gr.Dropdown(places, value=layers - 1, label="Decoder layer", elem_id="layer")
                each = [("mean of all", views.ALL_HEADS), *((str(number), number) for number in range(heads))]
                self.head = gr.Dropdown(each, value=views.ALL_HEADS, label="Head", elem_id="head-choice")
            with gr.Tab("Attention"):
                _html(note(ATTENTION))
                self.attention = _html("", elem_id="attention")
            with gr.Tab("Alignment"):
                _html(note(ALIGNMENT))
                self.alignment = _html("", elem_id="alignment")
            with gr.Tab("Search, step by step"):
                _html(note(TREE))
                with gr.Row(equal_height=True):
                    self.back = gr.Button("◀", scale=0, min_width=60, elem_id="back")
                    self.step = _slider(1, 2, 1, 1, "Step", "step")
                    self.forth = gr.Button("▶", scale=0, min_width=60, elem_id="forth")
                self.tree = _html("", elem_id="tree")
                self.kept = _html("", elem_id="kept")

    # ---- what happens ---------------------------------------------------------------------------------------------
    def _events(self) -> None:
        chosen = [self.inputs[field] for field in FIELDS]
        shown = [self.answer, self.message, self.table, self.attention, self.alignment, self.tree, self.kept]
        asked: dict[str, Any] = {
            "inputs": [self.text, self.layer, self.head, *chosen],
            "outputs": [*shown, self.results, self.rank, self.step],
        }
        gr.on([self.button.click, self.text.submit], self._run, **asked, **MODEL)
        self.rank.input(self._choose, [self.answer, self.rank, self.step, self.layer, self.head], shown, **MODEL)
        pictures: dict[str, Any] = {
            "inputs": [self.answer, self.rank, self.layer, self.head],
            "outputs": [self.attention, self.alignment],
        }
        gr.on([self.layer.input, self.head.input], self._look, **pictures, **MODEL)
        hidden: dict[str, Any] = {**EVENT, "show_progress": "hidden"}
        walk: dict[str, Any] = {"inputs": [self.answer, self.step, self.rank], "outputs": [self.tree, self.kept]}
        self.step.input(self._walk, **walk, trigger_mode="always_last", **hidden)
        for button, way in ((self.back, -1), (self.forth, 1)):
            button.click(self._walker(way), walk["inputs"], [self.step, *walk["outputs"]], **hidden)
        search, kind, beams, outputs = (self.inputs[name] for name in ("search", "normalization", "beams", "hypotheses"))
        beams.input(self._no_more, [outputs, beams, search], outputs, **hidden)
        outputs.input(self._no_less, [outputs, beams, search], beams, **hidden)
        search.change(self._kinds, [outputs, beams, search], [self.of_beams, self.of_samples, beams], **hidden)
        kind.input(self._penalty, kind, self.inputs["length_penalty"], **hidden)

    def _run(self, text: str, layer: int, head: int, *chosen: Any) -> list[Any]:
        view = views.run(self.page, text, dict(zip(FIELDS, chosen, strict=True)), layer, head)
        found = view.answer is not None
        outputs = len(view.answer.hypotheses) if view.answer else 1
        steps = len(view.answer.tree.steps) if view.answer else 1
        return [
            *_shown(view),
            gr.Column(visible=found),
            gr.Radio(list(range(1, outputs + 1)), value=1),
            gr.Slider(maximum=max(steps, 2), value=steps, interactive=steps > 1),
        ]

    def _choose(self, answer: Any, rank: int, step: int, layer: int, head: int) -> list[Any]:
        return _shown(views.choose(self.page, answer, rank - 1, step, layer, head))

    def _look(self, answer: Any, rank: int, layer: int, head: int) -> tuple[str, str]:
        return views.look(self.page, answer, rank - 1, layer, head)

    def _walk(self, answer: Any, step: int, rank: int) -> tuple[str, str]:
        return views.walk(self.page, answer, step, rank - 1)

    def _walker(self, way: int) -> Any:
        def walker(answer: Any, step: int, rank: int) -> tuple[int, str, str]:
            steps = 1 if answer is None else len(answer.tree.steps)
            there = min(max(step + way, 1), steps)
            return there, *views.walk(self.page, answer, there, rank - 1)

        return walker

    def _no_more(self, outputs: int, beams: int, search: str) -> int:
        """Outputs that a search with so many beams has."""
        return min(outputs, beams) if search == SEARCHES[0] else outputs

    def _no_less(self, outputs: int, beams: int, search: str) -> int:
        """Beams that so many outputs need."""
        return max(outputs, beams) if search == SEARCHES[0] else beams

    def _kinds(self, outputs: int, beams: int, search: str) -> tuple[Any, Any, int]:
        samples = search != SEARCHES[0]
        return gr.Group(visible=not samples), gr.Group(visible=samples), self._no_less(outputs, beams, search)

    def _penalty(self, kind: str) -> float:
        return default_penalty(kind, self.offer.defaults.length_penalty)


def _shown(view: views.View) -> list[Any]:
    message = gr.HTML(view.message, visible=bool(view.message))
    return [view.answer, message, view.table, view.attention, view.alignment, view.tree, view.kept]


def _html(markup: str, **options: Any) -> gr.HTML:
    """A place for markup, without a script of gradio's."""
    return gr.HTML(markup, js_on_load=None, **options)


def _slider(least: float, most: float, value: float, step: float, label: str, name: str) -> gr.Slider:
    return gr.Slider(least, most, value=value, step=step, label=label, elem_id=name)

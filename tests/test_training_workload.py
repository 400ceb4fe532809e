"""How much the data of a recipe are: counted by lines, or computed from the objective, equal to what training would see."""

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from test_training_planning import DOCUMENTS, recipe
from transduct.training.objectives import UL2
from transduct.training.planning import make_plan
from transduct.training.pretraining import text_tokens
from transduct.training.recipe import ObjectiveSection
from transduct.training.workload import objective_lengths


class BareTokenizer:
    """Puts nothing but an end token around a text."""

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [7, 1] if add_special_tokens else [7]}


def test_csv_headers_and_empty_lines_are_no_pairs(tmp_path):
    (tmp_path / "a.csv").write_text("source,target\nx,y\nz,w\n\n")
    assert make_plan(recipe(tmp_path, data={"train": {"csv": "a.csv"}})).examples == 2
    (tmp_path / "a.jsonl").write_text('{"source": "x", "target": "y"}\n')
    assert make_plan(recipe(tmp_path, data={"train": {"json": "a.jsonl"}})).examples == 1


def test_parquet_and_patterns_are_counted(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"source": ["a"] * 7, "target": ["b"] * 7}), tmp_path / "rows.parquet")
    assert make_plan(recipe(tmp_path, data={"train": {"parquet": "rows.parquet"}})).examples == 7
    for number in (1, 2):
        (tmp_path / f"part-{number}.tsv").write_text("source\ttarget\n" + "x\ty\n" * number)
    assert make_plan(recipe(tmp_path, data={"train": {"tsv": "part-*.tsv"}})).examples == 3


@pytest.mark.parametrize(
    ("objective", "lengths"),
    [
        ({"name": "span_corruption"}, (512, 114)),
        ({"name": "span_corruption", "inputs_length": 256}, (256, 58)),
        ({"name": "bart", "inputs_length": 100}, (100, 100)),
        ({"name": "prefix_lm", "inputs_length": 100, "target_share": 0.25}, (75, 25)),
        ({"name": "masked_lm", "inputs_length": 200}, (200, 30)),
    ],
)
def test_objectives_make_the_lengths(tmp_path, objective, lengths):
    planned = make_plan(recipe(tmp_path, data=DOCUMENTS, objective=objective, max_steps=9))
    assert (planned.source_length, planned.target_length) == lengths
    assert planned.examples is None


@pytest.mark.parametrize("weights", [None, [1.0, 0, 0, 0, 0, 0, 0], [1.0, 1, 1, 1, 1, 1, 10]])
def test_lengths_of_ul2_are_those_of_its_examples(weights):
    objective = UL2(tuple(range(1000, 1300)), 1, {"[NLU]": 3, "[NLG]": 4, "[S2S]": 5}, weights=weights and tuple(weights))
    section = ObjectiveSection(name="ul2", inputs_length=256, weights=weights)
    text = text_tokens(section, objective, BareTokenizer())
    made = [objective(list(range(10, 10 + text)), np.random.default_rng(seed)) for seed in range(300)]
    planned = objective_lengths(section)
    for side, length in zip(("input_ids", "labels"), planned, strict=True):
        assert np.mean([len(example[side]) for example in made]) == pytest.approx(length, rel=0.05)

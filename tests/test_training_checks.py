"""Checks of what users write: errors name the path, the value, the rule, and what may have been meant."""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from transduct.configuration import TransductConfig
from transduct.training.checks import check_count, check_names, check_number, check_type, checked, in_section


@dataclass
class Section:
    needed: int
    optional: list[int] = field(default_factory=list)
    filled_in: str = field(default="", metadata={"internal": True})


def test_a_section_is_a_mapping_with_its_keys():
    raw = {"needed": 1}
    assert checked(raw, Section, "data") == raw
    assert checked(raw, Section, "data") is not raw


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([1], r"data must be a mapping with keys of needed, optional, not \[1\]"),
        ({"neded": 1}, r"data\.neded is no key of a recipe: did you mean needed\?"),
        ({"needed": 1, "filled_in": "x"}, r"data\.filled_in is no key of a recipe"),
        ({"optional": []}, r"data\.needed is missing from the recipe"),
        ({"needed": None}, r"data\.needed is missing from the recipe"),
    ],
)
def test_other_sections_are_refused(raw, message):
    with pytest.raises(ValueError, match=message):
        checked(raw, Section, "data")


def test_names():
    check_names({"a": 1}, "model", {"a", "b"})
    with pytest.raises(ValueError, match=r"model\.c is no key of a recipe: known are a, b"):
        check_names({"c": 1}, "model", {"a", "b"})


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", True, None])
def test_counts(value):
    check_count(1, "threads", 1)
    with pytest.raises(ValueError, match=f"threads={value!r} must be a whole number of at least 1"):
        check_count(value, "threads", 1)


@pytest.mark.parametrize(
    ("value", "rule"), [(float("nan"), "a number"), (float("inf"), "a number"), ("1", "a number"), (True, "a number"),
                        (0, "more than 0"), (-0.5, "more than 0")],
)  # fmt: skip
def test_numbers(value, rule):
    check_number(0.5, "temperature", above=0)
    check_number(-0.5, "temperature")
    with pytest.raises(ValueError, match=f"temperature={value!r} must be {rule}"):
        check_number(value, "temperature", above=0)


class Colour(Enum):
    RED, BLUE = "red", "blue"


@pytest.mark.parametrize(
    ("hint", "good", "bad", "rule"),
    [
        (int, [1, np.int64(2)], [1.0, True, "1", None], "a whole number"),
        (float | int, [1, 0.5, np.float32(2)], [True, "1", None], "a number"),
        (bool, [True], [1, "true"], "true or false"),
        (str | None, ["a", None, Path("a")], [1, ["a"]], "a text or None"),
        (Literal["a", "b"], ["a"], ["c", 1, ["a"]], "'a' or 'b'"),
        (Literal["a"] | None, [None, "a"], ["b"], "'a' or None"),
        (Colour | str, ["red", Colour.BLUE], ["green", 1], "'red' or 'blue'"),
        (list[str] | None, [["a"], [], None], ["a", [1]], "a list of texts or None"),
        (dict[str, Any] | None, [{}, None], [[], "a"], "a mapping or None"),
        (None | int | list[int], [1, [1, 2]], [[1, "a"], 0.5], "a whole number, a list of whole numbers or None"),
    ],
)
def test_types(hint, good, bad, rule):
    for value in good:
        check_type(value, hint, "x")
    for value in bad:
        with pytest.raises(ValueError) as raised:
            check_type(value, hint, "model.x")
        assert str(raised.value) == f"model.x={value!r} must be {rule}"


def test_errors_get_the_path_of_their_section():
    for inside, message in (
        (lambda: TransductConfig(d_model=0), "model.d_model=0 must be at least 1"),
        (lambda: check_count(0, "nodes", 1), "model.d_model=0 must be a whole number of at least 1"),
        (lambda: check_count(0, "d_model.x", 1), "model.d_model.x=0 must be a whole number of at least 1"),
    ):
        with pytest.raises(ValueError) as raised, in_section("model", {"d_model"}, nodes="d_model"):
            inside()
        assert str(raised.value) == message
    with pytest.raises(ValueError, match=r"^other=0 must be"), in_section("model", {"d_model"}):
        check_count(0, "other", 1)

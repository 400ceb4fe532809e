"""Options of another family's config: taken by name, or refused."""

import pytest
from transformers import GenerationConfig, T5Config

from transduct.convert.options import GENERATION, INHERITED, Options


def options(**values):
    return Options({"default": 1} | values, values, "here")


def test_what_was_taken_is_known_and_anything_else_is_named():
    some = options(width=5, depth=6, colour="red")
    assert some.take("width") == 5
    assert some.take("absent", 7) == 7
    with pytest.raises(ValueError, match=r"here: unknown options colour='red', depth=6; .* Remove those that change nothing"):
        some.finish()
    some.take("depth")
    some.finish(without_effect=["colour"])


def test_defaults_that_the_file_does_not_say_are_no_unknown_options():
    some = options()
    assert some.take("default") == 1
    options().finish()


def test_one_value_alone_may_be_required():
    some = options(kind="round", size=3)
    some.require("kind", "round", "no other is built here")
    some.require("absent", True, "no other is built here")
    with pytest.raises(ValueError, match="here: size=3 cannot be imported, only 4: no other is built here"):
        some.require("size", 4, "no other is built here")
    some.finish()


@pytest.mark.parametrize(
    "values",
    [
        {"num_beams": 4, "length_penalty": 2.0, "no_repeat_ngram_size": 3, "forced_bos_token_id": 0, "max_length": 142},
        {"architectures": ["T5Model"], "torch_dtype": "float16", "transformers_version": "4.1", "_name_or_path": "x"},
        {
            "task_specific_params": {},
            "use_bfloat16": False,
            "gradient_checkpointing": True,
            "finetuning_task": None,
            "torchscript": False,
        },
        {"id2label": {}, "label2id": {}, "problem_type": None, "tokenizer_class": "T5Tokenizer", "prefix": None},
        {"output_attentions": False, "output_hidden_states": False, "return_dict": True, "chunk_size_feed_forward": 0},
    ],
    ids=["generation", "files", "old files", "labels", "outputs"],
)
def test_what_any_config_holds_is_no_unknown_option(values):
    options(**values).finish()


def test_settings_of_generation_and_of_any_config_are_those_of_transformers():
    assert {name for name in GenerationConfig().to_dict() if not name.startswith("_")} <= GENERATION | INHERITED
    own = set(T5Config().to_dict())
    assert {"d_model", "feed_forward_proj", "num_layers", "vocab_size"} <= own - INHERITED - GENERATION

"""The configs of examples/accelerate are read by accelerate as they are meant."""

from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType
from accelerate.utils.launch import prepare_multi_gpu_env

from transduct.modeling import TransductForConditionalGeneration

FOLDER = Path(__file__).parents[1] / "examples" / "accelerate"
KINDS = {
    "ddp": DistributedType.MULTI_GPU,
    "fsdp2": DistributedType.FSDP,
    "deepspeed_zero3": DistributedType.DEEPSPEED,
}


def test_each_kind_has_a_config():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == KINDS.keys()


@pytest.mark.parametrize("name", KINDS)
def test_accelerate_reads_it_without_a_leftover(name):
    config = load_config_from_file(str(FOLDER / f"{name}.yaml"))  # raises for a key that it does not know
    assert config.distributed_type == KINDS[name]
    assert config.mixed_precision == "bf16"


@pytest.mark.parametrize("name", KINDS)
def test_the_command_in_its_comment_is_understood(name):
    """Every option of the line, down to the environment that the processes get."""
    text = (FOLDER / f"{name}.yaml").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("#   accelerate launch"))
    words = line.removeprefix("#   accelerate launch").split()
    arguments = launch_command_parser().parse_args([*words[:1], str(FOLDER / f"{name}.yaml"), *words[2:]])
    assert (arguments.module, arguments.training_script) == (True, "transduct.training")
    assert arguments.training_script_args == ["CONFIG.yaml"]
    assert words[1] == f"examples/accelerate/{name}.yaml"


def test_the_processes_get_the_options_of_fsdp():
    arguments = launch_command_parser().parse_args(["--config_file", str(FOLDER / "fsdp2.yaml"), "-m", "transduct.training", "x"])
    arguments, _, _ = _validate_launch_command(arguments)
    environment = prepare_multi_gpu_env(arguments)
    expected = {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
        "FSDP_RESHARD_AFTER_FORWARD": "true",
    }
    assert {name: environment[name].removeprefix("_") for name in expected} == expected
    layers = environment["FSDP_TRANSFORMER_CLS_TO_WRAP"].split(",")
    assert set(layers) == set(TransductForConditionalGeneration._no_split_modules)

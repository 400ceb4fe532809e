"""The `transduct` command: cheap to start, one line for an error, exit codes that scripts can rely on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_translation import save_translation
from transduct.accounting import describe
from transduct.cli.main import app, run
from transduct.configuration import TransductConfig
from transduct.modeling import TransductEncoderModel, TransductForSequenceClassification
from transduct.presets import config_from_preset, preset_names

TINY = dict(vocab_size=11, d_model=8, d_ff=12, num_heads=2, encoder_layers=1, decoder_layers=2)


@pytest.fixture
def folder(tmp_path):
    TransductConfig(**TINY).save_pretrained(tmp_path)
    return tmp_path


def fails(capsys, *arguments: str) -> str:
    """Run a command that must refuse its input; return the message, after checking its form."""
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("transduct: ")
    assert printed.err.count("\n") == 1
    return printed.err


COMMAND = Path(sys.executable).with_name("transduct")
"""The command that pip installed beside this Python."""


@pytest.mark.parametrize("arguments", [["--help"], ["describe", "--help"], ["plan", "--help"], ["--version"], ["nonsense"]])
def test_starting_imports_no_heavy_library(arguments):
    code = (
        "import sys, runpy\n"
        f"sys.argv = {[str(COMMAND), *arguments]!r}\n"
        "try:\n"
        "    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally:\n"
        "    print(sorted({'torch', 'transformers', 'datasets', 'numpy'} & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.splitlines()[-1] == "[]"
    assert result.returncode == (2 if arguments == ["nonsense"] else 0)


def test_the_help_says_all_of_what_each_command_is():
    printed = subprocess.run([COMMAND, "--help"], capture_output=True, text=True, env=os.environ | {"COLUMNS": "80"}).stdout
    assert len(app.registered_commands) == printed.partition("Commands:\n")[2].count("\n")
    assert "..." not in printed.partition("Commands:\n")[2]


def test_the_installed_command_reports_an_error_in_one_line():
    result = subprocess.run([COMMAND, "nonsense"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "transduct: No such command 'nonsense'. (see transduct --help)\n"


def test_without_a_command_it_shows_the_help(capsys):
    assert run([]) == 2
    assert "describe" in capsys.readouterr().out


def test_version(capsys):
    from importlib.metadata import version

    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"transduct {version('transduct')}\n"


def test_describe_prints_the_table_of_a_preset(capsys):
    assert run(["describe", "vaswani-base", "--batch-size", "4", "--source-length", "10", "--target-length", "7"]) == 0
    expected = describe(config_from_preset("vaswani-base"), batch_size=4, source_length=10, target_length=7)
    assert capsys.readouterr().out == f"{expected}\n"
    assert "63,082,496" in str(expected)


def test_describe_prints_json(capsys):
    options = ["--dtype", "bfloat16", "--optimizer", "adafactor", "--attention", "eager", "--gradient-checkpointing"]
    assert run(["describe", "t5-small", "--json", *options]) == 0
    expected = describe(
        config_from_preset("t5-small"), dtype="bfloat16", optimizer="adafactor", attention="eager", gradient_checkpointing=True
    )
    assert json.loads(capsys.readouterr().out) == expected.to_dict()


def test_describe_reads_a_folder(folder, capsys):
    assert run(["describe", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == describe(TransductConfig(**TINY)).to_dict()


@pytest.mark.parametrize("model_class", [TransductEncoderModel, TransductForSequenceClassification])
def test_describe_builds_the_class_that_saved_the_folder(model_class, tmp_path, capsys):
    model = model_class(TransductConfig(**TINY))
    model.save_pretrained(tmp_path)
    capsys.readouterr()
    assert run(["describe", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == sum(parameter.numel() for parameter in model.parameters())


def test_a_preset_comes_before_a_folder_of_its_name(folder, capsys, monkeypatch):
    (folder / "t5-small").mkdir()
    TransductConfig(**TINY).save_pretrained(folder / "t5-small")
    monkeypatch.chdir(folder)
    found = []
    for name in ("t5-small", "./t5-small"):
        assert run(["describe", name, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["parameters"])
    assert found == [60_506_624, describe(TransductConfig(**TINY)).parameters]


def test_describe_lists_the_presets(capsys):
    assert run(["describe", "--list"]) == 0
    assert capsys.readouterr().out.split() == preset_names()


def test_an_unknown_preset_names_its_neighbours(capsys):
    assert "'t5-smal' is not a preset; did you mean t5-small" in fails(capsys, "describe", "t5-smal")
    assert "'gpt' is not a preset; preset_names() and `transduct describe --list` list them all" in fails(
        capsys, "describe", "gpt"
    )
    assert "there is no folder './t5-smal'" in fails(capsys, "describe", "./t5-smal")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["describe"], "Missing argument"),
        (["describe", "t5-small", "--bogus"], "No such option: --bogus (see transduct describe --help)"),
        (["train", "no/such.yaml"], "transduct: no/such.yaml: No such file or directory"),
        (["describe", "t5-small", "--batch-size", "many"], "--batch-size"),
        (["describe", "t5-small", "--batch-size", "0"], "batch_size=0 must be"),
        (["describe", "t5-small", "--dtype", "int3"], "dtype='int3' must be one of"),
        (["describe", "t5-small", "--optimizer", "magic"], "optimizer='magic' must be one of"),
    ],
)
def test_bad_options_are_named(arguments, message, capsys):
    assert message in fails(capsys, *arguments)


def test_folders_that_hold_no_model_of_ours(folder, capsys):
    config = folder / "config.json"
    config.write_text('{"model_type": "t5"}')
    assert "model_type='t5', not 'transduct'" in fails(capsys, "describe", str(folder))
    config.write_text('{"model_type": ')
    assert "is not a JSON object" in fails(capsys, "describe", str(folder))
    config.write_text('{"model_type": "transduct", "num_heads": 3}')
    assert "num_heads=3 must divide d_model=512" in fails(capsys, "describe", str(folder))
    config.write_text('{"model_type": "transduct", "architectures": ["Nonsense"]}')
    assert "architectures=['Nonsense'], which must name one" in fails(capsys, "describe", str(folder))
    config.unlink()
    assert "holds no config.json" in fails(capsys, "describe", str(folder))


def test_debug_shows_the_traceback(capsys):
    for arguments in (["--debug", "describe", "t5-smal"], ["describe", "t5-smal", "--debug"]):
        assert run(arguments) == 2
        printed = capsys.readouterr().err
        assert "Traceback" in printed
        assert printed.splitlines()[-1].startswith("transduct: ")


def test_a_fault_of_the_program_is_told_from_bad_input(capsys, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("transduct.accounting.describe", broken)
    assert run(["describe", "t5-small"]) == 1
    assert capsys.readouterr().err == "transduct: RuntimeError: two lines (a fault of the program; --debug shows where)\n"


def of_torch():
    import torch

    torch.empty(2**60)


def of_a_gpu():
    import torch

    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize("ask", [of_torch, of_a_gpu, lambda: bytearray(2**60)], ids=["torch", "GPU", "Python"])
def test_memory_that_does_not_suffice_is_no_fault_of_the_program(ask, capsys, monkeypatch):
    monkeypatch.setattr("transduct.accounting.describe", lambda *args, **kwargs: ask())
    assert run(["describe", "t5-small"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("transduct: there is not enough memory: ")
    assert said.count("\n") == 1


def test_a_missing_package_is_no_fault_of_the_program(capsys, monkeypatch):
    def lacking(*args, **kwargs):
        raise ImportError("install the package")

    monkeypatch.setattr("transduct.accounting.describe", lacking)
    assert run(["describe", "t5-small"]) == 2
    assert capsys.readouterr().err == "transduct: install the package\n"


def test_an_interrupt_has_its_own_exit_code(monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("transduct.accounting.describe", interrupted)
    assert run(["describe", "t5-small"]) == 130


def test_messages_cannot_act_on_the_terminal(capsys):
    assert run(["describe", "no/\x1b[31m\x07\u202ename"]) == 2
    assert "no/\\x1b[31m\\x07\\u202ename" in capsys.readouterr().err


def test_a_reader_that_stops_reading_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run([COMMAND, "describe", "--list"], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (result.returncode, result.stderr) == (1, "")


# ---- completion ----------------------------------------------------------------------------------------------------------------


def complete(shell: str, *words: str) -> str:
    """What the shell gets for a line whose last word is incomplete; no heavy library may be loaded for it."""
    line = {"bash": "COMP_WORDS", "zsh": "_TYPER_COMPLETE_ARGS", "fish": "_TYPER_COMPLETE_ARGS"}[shell]
    environment = {
        "_TRANSDUCT_COMPLETE": f"complete_{shell}",
        line: " ".join(["transduct", *words]),
        "COMP_CWORD": str(len(words)),
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    return light(environment)


def light(environment: dict[str, str]) -> str:
    code = (
        "import sys, runpy\n"
        f"sys.argv = {[str(COMMAND)]!r}\n"
        "try:\n"
        "    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally:\n"
        "    assert not {'torch', 'transformers', 'datasets', 'numpy'} & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_and_completes(shell):
    script = light({"_TRANSDUCT_COMPLETE": f"source_{shell}"})
    assert "transduct" in script
    assert f"complete_{shell}" in script
    if shell == "bash":
        assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True).returncode == 0
    commands = complete(shell, "tra")
    assert "translate" in commands
    assert "train" in commands
    assert "export" not in commands
    assert "--n-best" in complete(shell, "translate", "--n-b")


def test_help_offers_completion(capsys):
    assert run(["--help"]) == 0
    printed = capsys.readouterr().out
    assert "--install-completion" in printed
    assert "--show-completion" in printed


@pytest.mark.parametrize("text", ["{", "[]", "null"])
@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_json_that_is_damaged_is_no_fault_of_the_program(file, text, tmp_path, monkeypatch, capsys):
    save_translation(tmp_path / "model")
    (tmp_path / "model" / file).write_text(text)
    (tmp_path / "lines.txt").write_text("abc\n")
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert run(["translate", "model", "--input", "lines.txt"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "fault of the program" not in said
    assert "transduct doctor model" in said or file in said


@pytest.mark.parametrize("line", ["translate model --input lines.txt", "score model --source lines.txt --target lines.txt",
                                  "average model model --output out", "demo model --port 0"])  # fmt: skip
def test_weights_that_are_cut_off_are_no_fault_of_the_program(line, tmp_path, monkeypatch, capsys):
    save_translation(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:30_000])
    (tmp_path / "lines.txt").write_text("abc\n")
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert run(line.split()) == 2
    assert "a file of weights is damaged or cannot be written" in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.glob("*out*"))

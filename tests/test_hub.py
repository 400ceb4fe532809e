"""A checkpoint carries its code: it loads in a fresh process where transduct cannot be imported, again and again."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import transduct
from configs import build, tiny, words
from transduct import modeling
from transduct.configuration import AUTO_MAP

PACKAGE = Path(transduct.__file__).parent
ALLOWED = {"torch", "transformers", "tokenizers", "huggingface_hub"} | sys.stdlib_module_names
MODELS = {reference.split(".")[1]: auto_name for auto_name, reference in AUTO_MAP.items() if auto_name != "AutoConfig"}

# One script for both generations of a checkpoint: load each class, compare with the saved outputs, save it again.
SCRIPT = """
import importlib.abc, json, pathlib, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "transduct" or name.startswith("transduct."):
            raise ModuleNotFoundError(f"{name} is not installed here")

sys.meta_path.insert(0, Refuse())
root, generation, models = pathlib.Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
import torch, transformers
torch.set_num_threads(1)

for class_name, auto_name in models.items():
    folder = root / f"{class_name}-{generation}"
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    assert type(config).__name__ == "TransductConfig", type(config)
    model = getattr(transformers, auto_name).from_pretrained(folder, trust_remote_code=True)
    assert type(model).__name__ == class_name, type(model)
    assert type(model).__module__.startswith("transformers_modules."), type(model).__module__
    saved = torch.load(root / f"{class_name}.pt")
    torch.manual_seed(0)
    with torch.no_grad():
        outputs = [value for value in model(**saved["inputs"]).to_tuple() if isinstance(value, torch.Tensor)]
    for got, want in zip(outputs, saved["outputs"], strict=True):
        assert torch.equal(got, want), (class_name, (got - want).abs().max())
    if saved["generated"] is not None:
        assert model.generate(saved["inputs"]["input_ids"], max_new_tokens=6, num_beams=3).tolist() == saved["generated"]
    model.save_pretrained(root / f"{class_name}-{generation + 1}")
assert "transduct" not in sys.modules
print("done")
"""


def shipped_files(*roots: str) -> list[Path]:
    """`modeling.py`, or other modules, and all siblings that they import, directly or not."""
    found, todo = {}, list(roots or ("modeling",))
    while todo:
        name = todo.pop()
        if name not in found:
            found[name] = PACKAGE / f"{name}.py"
            tree = ast.parse(found[name].read_text())
            todo += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 1]
    return sorted(found.values())


# ---- the guards ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("file", shipped_files("modeling", "tokenization"), ids=lambda file: file.name)
def test_shipped_files_import_siblings_by_name_and_nothing_unusual(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                assert alias.name.split(".")[0] in ALLOWED, ast.unparse(node)
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module.split(".")[0] in ALLOWED - {"__future__"}, ast.unparse(node)
        if isinstance(node, ast.ImportFrom) and node.level:
            assert node.level == 1, ast.unparse(node)
            assert node.module is not None, f"{ast.unparse(node)}: name the module"
            assert "." not in node.module, ast.unparse(node)
            assert node.names[0].name != "*", ast.unparse(node)


@pytest.mark.parametrize("file", shipped_files("modeling", "tokenization"), ids=lambda file: file.name)
def test_shipped_files_never_ask_for_their_own_config_class(file):
    """Loaded from a folder, the class is another one."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
            assert "TransductConfig" not in ast.unparse(node.args[1]), ast.unparse(node)
        assert not (isinstance(node, ast.Name) and node.id == "TYPE_CHECKING")


def test_the_closure_is_what_transformers_would_copy():
    """Its search for imports works on lines of text, docstrings included."""
    from transformers.dynamic_module_utils import get_relative_import_files

    theirs = {Path(file).name for file in get_relative_import_files(str(PACKAGE / "modeling.py"))} | {"modeling.py"}
    assert theirs == {file.name for file in shipped_files()}
    assert {reference.split(".")[0] + ".py" for reference in AUTO_MAP.values()} <= theirs


def test_every_model_class_has_its_auto_class():
    assert set(MODELS) == set(modeling.__all__)


# ---- two generations of checkpoints -------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A checkpoint of every class, its inputs and its outputs."""
    folder = tmp_path_factory.mktemp("hub")
    ids = words(2, 6)
    ids[:, -1] = 1
    for index, class_name in enumerate(MODELS):
        positions = ("sinusoidal", "learned", "relative_bias", "rotary", "alibi")[index % 5]
        tie = ("all", "none", "target_output", "source_target")[index % 4]
        model_class = getattr(modeling, class_name)
        config = tiny(positions=positions, tie_embeddings=tie, logits_bias=True, num_labels=3)
        build(model_class, config, dtype=torch.float32, seed=index).save_pretrained(folder / f"{class_name}-1")
        model = model_class.from_pretrained(folder / f"{class_name}-1")
        inputs = {"input_ids": ids}
        if class_name in ("TransductModel", "TransductForConditionalGeneration"):
            inputs["decoder_input_ids"] = words(2, 4, seed=1)
        with torch.no_grad():
            outputs = [value for value in model(**inputs).to_tuple() if isinstance(value, torch.Tensor)]
        generates = class_name in ("TransductForConditionalGeneration", "TransductForCausalLM")
        generated = model.generate(ids, max_new_tokens=6, num_beams=3).tolist() if generates else None
        torch.save({"inputs": inputs, "outputs": outputs, "generated": generated}, folder / f"{class_name}.pt")
    return folder


def in_a_fresh_process(root: Path, generation: int, modules_cache: Path) -> None:
    keep = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_", "PYTHON"))}
    environment = keep | {"HF_MODULES_CACHE": str(modules_cache), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(root), str(generation), json.dumps(MODELS)],
        capture_output=True, text=True, env=environment, cwd=root, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout.split()[-1] == "done"


@pytest.mark.slow
def test_checkpoints_load_without_the_package_and_again_from_there(root, tmp_path):
    for generation in (1, 2):
        in_a_fresh_process(root, generation, tmp_path / f"modules-{generation}")
    for class_name in MODELS:
        first, last = root / f"{class_name}-1", root / f"{class_name}-3"
        files = {file.name for file in shipped_files()}
        for name in files:
            assert (first / name).read_bytes() == (last / name).read_bytes() == (PACKAGE / name).read_bytes()
        assert {file.name for file in last.iterdir()} == {file.name for file in first.iterdir()}
        assert (first / "model.safetensors").read_bytes() == (last / "model.safetensors").read_bytes()
        assert transduct.TransductConfig.from_pretrained(last).auto_map == AUTO_MAP


def test_the_package_loads_what_was_saved_without_it(root, tmp_path):
    if not (root / "TransductForConditionalGeneration-2").exists():
        in_a_fresh_process(root, 1, tmp_path)
    model = transduct.TransductForConditionalGeneration.from_pretrained(root / "TransductForConditionalGeneration-2")
    saved = torch.load(root / "TransductForConditionalGeneration.pt")
    with torch.no_grad():
        assert torch.equal(model(**saved["inputs"]).logits, saved["outputs"][0])

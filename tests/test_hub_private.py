"""Nothing of a token, a password or a folder of this computer is left in what is published."""

import getpass
from pathlib import Path

import pytest

from transduct.hub.private import CHUNK, found_in, holds_token, public_text, without_secrets

TOKEN = "hf_" + "Ab1" * 10


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/home/someone/data/train.en", "train.en"),
        ("~/data/train.en", "train.en"),
        ("~someone/x", "x"),
        ("C:\\Users\\someone\\train.en", "train.en"),
        ("/data.txt", "data.txt"),
        ("zcat /home/someone/a.gz | head", "zcat a.gz | head"),
        ("--file=/home/someone/a.gz,b", "--file=a.gz,b"),
        ("'/home/someone/a' and \"/home/someone/b\"", "'a' and \"b\""),
        ("data/train.en", "data/train.en"),
        ("../data/train.en", "../data/train.en"),
        ("part-*.jsonl", "part-*.jsonl"),
        ("https://host.org/some/page", "https://host.org/some/page"),
        ("https://name:word@host.org/some/page", "https://host.org/some/page"),
        ("google-t5/t5-small", "google-t5/t5-small"),
        ("either/or, 1/2 and a / b", "either/or, 1/2 and a / b"),
        (f"with {TOKEN} in it", "with ... in it"),
        ("github_pat_11ABCDEFG0123456789_abcdefghijk", "..."),
        ("sk-abcdefghijklmnop1234567 and sk-ant-api03-abcdefgh_ijkl", "... and ..."),
        ("glpat-abcdefghijk-lmno_pqr", "..."),
        ("sk-cs-europarl-v7-train-2000", "sk-cs-europarl-v7-train-2000"),
        ("https://host.org/x?token=abcdef&X-Amz-Signature=abc", "https://host.org/x"),
        ("see https://host.org/x#access_token=abc for it", "see https://host.org/x for it"),
        ("postgres://u:p@ss@host/db", "postgres://host/db"),
        ("https://u:p?q@host/x", "https://host/x"),
        ("file:///home/someone/secret/x.csv", "x.csv"),
        ("cat file:///home/someone/x.csv file://localhost/home/someone/y.csv", "cat x.csv y.csv"),
        ("file:///C:/Users/someone/x.csv", "x.csv"),
        ("cat file:///C:/Users/someone/x.csv", "cat x.csv"),
        ("translate English to German: ", "translate English to German: "),
    ],
)
def test_texts(text, left):
    assert public_text(text) == left


def test_the_folder_of_whoever_runs_this():
    here = str(Path.home() / "data" / "train.en")
    assert public_text(here) == "train.en"
    assert public_text(f"cat {here}") == "cat train.en"
    assert getpass.getuser() not in public_text(f"/home/{getpass.getuser()}/data.txt")


def test_values_of_a_recipe():
    recipe = {
        "model": {"from_pretrained": "/home/someone/t5"},
        "tokenizer": {"mask_token": "<mask>", "bos_token": "<s>"},
        "data": {"train": [{"source": "/home/someone/a.en", "arguments": {"api_key": "secret", "password": "secret"}}]},
        "training": {"hub_token": TOKEN, "push_to_hub_token": TOKEN, "learning_rate": 0.1, "seed": None},
        "evaluation": {"inputs": ["a", f"b {TOKEN}"]},
    }
    assert without_secrets(recipe) == {
        "model": {"from_pretrained": "t5"},
        "tokenizer": {"mask_token": "<mask>", "bos_token": "<s>"},
        "data": {"train": [{"source": "a.en", "arguments": {"api_key": "...", "password": "..."}}]},
        "training": {"hub_token": "...", "push_to_hub_token": "...", "learning_rate": 0.1, "seed": None},
        "evaluation": {"inputs": ["a", "b ..."]},
    }


@pytest.mark.parametrize(
    "key",
    ["token", "passwd", "private_key", "authorization", "aws_secret_access_key", "github_token", "Access-Key", "passphrase"],
)
def test_keys_of_secrets(key):
    assert without_secrets({key: "abc"}) == {key: "..."}


@pytest.mark.parametrize(
    "key", ["pad_token", "decoder_start_token_id", "tokens_per_batch", "tokenizer", "key_size", "target_tokens"]
)
def test_keys_of_no_secrets(key):
    assert without_secrets({key: "abc"}) == {key: "abc"}


@pytest.mark.parametrize("before", [0, CHUNK - 10, CHUNK, 2 * CHUNK - 30])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_token_is_found_wherever_it_stands_in_a_file(before, encoding, tmp_path):
    path = tmp_path / "x.dat"
    path.write_bytes(b" " * before + f" {TOKEN} ".encode(encoding) + b"\xff" * 100)
    assert found_in(path) == (True, False)
    path.write_bytes(b" " * before + f" {Path.home()}/x ".encode(encoding))
    assert found_in(path) == (False, True)
    path.write_bytes(b" " * before + b"nothing")
    assert found_in(path) == (False, False)


def test_tokens_are_found():
    assert holds_token(f"x {TOKEN}")
    assert holds_token("something-elsewhere", "elsewhere-or") is False
    assert holds_token("x elsewhere-or-not", "elsewhere-or-not")
    assert not holds_token("a word", "word")
    assert not holds_token("hf_hub_download is a function", None)

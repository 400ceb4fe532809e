"""Share a model, and see that it comes back where this package is not installed.

    python examples/share_on_the_hub.py runs/dates my-name/dates                        # a rehearsal, without the network
    python examples/share_on_the_hub.py runs/dates my-name/dates --push --license apache-2.0

The rehearsal shows the files that would go and the model card that was written from what is known of the model. Then a second
process, in which transduct cannot be imported, loads the folder by the code that lies in it, and must write the same as this one.
With --push the folder is uploaded in one commit, as `hf auth login` or HF_TOKEN allows, and it is the repository on the Hub that
is loaded. `transduct push` is the same as a command.
"""

import argparse
import subprocess
import sys

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import transduct  # noqa: F401  (the Auto classes know its models from here on)
from transduct.hub import Options, Said, prepare, upload

ELSEWHERE = """
import sys

sys.modules["transduct"] = None  # importing it fails, as where it is not installed
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

name, text = sys.argv[1:]
model = AutoModelForSeq2SeqLM.from_pretrained(name, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=True)
ids = model.generate(**tokenizer([text], return_tensors="pt"), num_beams=2)
print(tokenizer.decode(ids[0], skip_special_tokens=True))
"""
"""What somebody does who has transformers alone."""


def written_here(name: str, text: str) -> str:
    """What the model makes of a text, by this package."""
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)
    ids = model.generate(**tokenizer([text], return_tensors="pt"), num_beams=2)
    return tokenizer.decode(ids[0], skip_special_tokens=True)


def written_elsewhere(name: str, text: str) -> str:
    """What the model makes of a text in a process without this package."""
    done = subprocess.run([sys.executable, "-c", ELSEWHERE, name, text], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name} does not load without transduct:\n{done.stderr[-2000:]}")
    return done.stdout.removesuffix("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="a model's folder, or the output folder of a run")
    parser.add_argument("repository", metavar="NAME/MODEL", help="on the Hub, of you or an organisation")
    parser.add_argument("--push", action="store_true", help="really upload")
    parser.add_argument("--license", help="for the card, such as apache-2.0")
    parser.add_argument("--text", default="5 May 1955", help="a source to try the model with (%(default)s)")
    options = parser.parse_args()

    share = prepare(options.folder, options.repository, Options(said=Said(license=options.license)))
    for file in share.files:
        print(f"{file.path:<30} {file.size:>12,} bytes")
    for note in share.notes:
        print(f"note: {note}")
    name = str(share.folder)
    if options.push:
        print(f"shared: {upload(share).url}")
        name = options.repository
    else:
        print(f"\n{share.card}")
    here, elsewhere = written_here(name, options.text), written_elsewhere(name, options.text)
    print(f"{options.text} -> {here}")
    if here != elsewhere:
        raise SystemExit(f"without transduct it writes {elsewhere!r}")
    print("the same without transduct")


if __name__ == "__main__":
    main()

"""`push_to_hub=True` in a training: what transformers' trainer uploads, with the model's code and a card, and without the token.

- transformers writes its arguments into `training_args.bin`, the token among them, and uploads that. Here the token is left out.
- What it uploads while training is weights and config alone. Here the code goes along, so that each of them loads anywhere.
- A run of `transduct train` ends with `transduct push` of its finished model.
- Its card is a form to fill in. Here it is that of `transduct push`, which tells what is known, and a card that a person wrote
  stays, in the output folder as on the Hub.

`transduct.hub` reads what trainings leave, and therefore imports modules of this package; here it is imported where it is needed.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import HfApi
from huggingface_hub.errors import EntryNotFoundError, RevisionNotFoundError
from transformers import Seq2SeqTrainer, TrainingArguments

from transduct.files import write_whole
from transduct.pretrained import ship_code
from transduct.training.adapters import is_adapted

if TYPE_CHECKING:
    from transduct.hub import Facts, Said

CARD = "README.md"
OF_PLACE = ("output_dir", "logging_dir", "run_name", "report_to", "disable_tqdm", "do_train", "do_eval", "do_predict")
"""Arguments that say nothing of what was learnt, beside all that are about the Hub."""


class Secret(str):
    """A text that is used like any other, but neither shown by `repr` nor written by pickle, which makes None of it."""

    def __repr__(self) -> str:
        return "'...'"

    def __reduce__(self) -> tuple[type, tuple]:
        return type(None), ()

    def __copy__(self) -> "Secret":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Secret":
        return self


def hide_token(args: TrainingArguments) -> None:
    """From now on, the token of the Hub is not written where the arguments are."""
    if args.hub_token is not None:
        vars(args)["hub_token"] = Secret(args.hub_token)


class SharingTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer`, which see for its arguments, with what is told above."""

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """The inherited method; from then on the token is in no file that is uploaded."""
        hide_token(self.args)
        super().init_hf_repo(token, private)

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """A card of what is known of the model, unless a person wrote the one that is there.

        Args:
            language, license, tasks: as the Hub writes them. The others are of the inherited form alone, which is written where
                one of them is given, for several tasks, and for models of other packages.
        """
        only_there = dict(tags=tags, finetuned_from=finetuned_from, dataset_tags=dataset_tags, dataset=dataset)
        several = isinstance(tasks, list) or dataset_args is not None or any(only_there.values())
        if several or not is_own(self.accelerator.unwrap_model(self.model)):
            super().create_model_card(
                language, license, tags, model_name, finetuned_from, tasks, dataset_tags, dataset, dataset_args
            )
        elif self.is_world_process_zero():
            from transduct.hub import Said

            languages = [language] if isinstance(language, str) else language or ()
            update_card(self, Said(license, languages, tasks if isinstance(tasks, str) else None))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        add_code(self)
        super()._push_from_checkpoint(checkpoint_folder)


def share_finished(trainer: Any, output: Path) -> str:
    """Put the finished model of a run on the Hub, as `transduct push` does, where the recipe says; returns its address."""
    from transduct.hub.sharing import push

    trainer._finish_current_push()
    args = trainer.args
    shared = push(output, trainer.hub_model_id, args.hub_token, private=args.hub_private_repo, revision=args.hub_revision)
    return shared.url


def is_own(model: Any) -> bool:
    """Whether a model is of this package, without adapters of peft, which has cards and files of its own."""
    return model.config.model_type == "transduct" and not is_adapted(model)


def add_code(trainer: Any) -> None:
    """The model's code, where the trainer uploads from."""
    if trainer.is_world_process_zero() and is_own(trainer.accelerator.unwrap_model(trainer.model)):
        ship_code(Path(trainer.args.output_dir))


def update_card(trainer: Any, said: "Said") -> None:
    """The card in the output folder: of what is known by now, unless a person wrote the one that is there, or on the Hub."""
    from transduct.hub.cards import is_ours, write_card

    path = Path(trainer.args.output_dir) / CARD
    there = _card_on_the_hub(trainer)
    if there is not None and not is_ours(there):
        write_whole(path, there)
    elif not path.is_file() or is_ours(path.read_text(encoding="utf-8")):
        repository = trainer.hub_model_id or Path(trainer.args.output_dir).absolute().name
        write_whole(path, write_card(facts_of_trainer(trainer), repository, said))


def _card_on_the_hub(trainer: Any) -> str | None:
    if trainer.hub_model_id is None:
        return None
    api = HfApi(token=trainer.args.hub_token)
    try:
        found = api.hf_hub_download(trainer.hub_model_id, CARD, revision=trainer.args.hub_revision)
    except (EntryNotFoundError, RevisionNotFoundError):
        return None
    return Path(found).read_text(encoding="utf-8")


def facts_of_trainer(trainer: Any) -> "Facts":
    """What a trainer knows of its model."""
    from transduct.hub.facts import Facts, described

    model = trainer.accelerator.unwrap_model(trainer.model)
    generation = model.generation_config if model.can_generate() else None
    return Facts(
        config=model.config,
        model_class=type(model).__name__,
        description=described(model.config, type(model).__name__),
        has_tokenizer=trainer.processing_class is not None,
        has_length=generation is not None and (generation.max_length, generation.max_new_tokens) != (None, None),
        arguments=given_arguments(trainer.args),
        history=trainer.state.log_history,
    )


def given_arguments(args: TrainingArguments) -> Mapping[str, Any]:
    """Those that differ from their defaults and have to do with what is learnt."""
    from transduct.hub.private import without_secrets

    found = {}
    for field in fields(args):
        value = getattr(args, field.name)
        value = value.value if isinstance(value, Enum) else value
        default = field.default.value if isinstance(field.default, Enum) else field.default
        plain = isinstance(value, (str, int, float)) and default is not MISSING and value != default
        if plain and field.init and field.name not in OF_PLACE and not field.name.startswith(("hub_", "push_to_hub")):
            found[field.name] = value
    return without_secrets(found)

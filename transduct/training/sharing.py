"""`push_to_hub=True` in a training: what transformers' trainer uploads, with the model's code and a card, and without the token.

- transformers writes its arguments into `training_args.bin`, the token among them, and uploads that. Here the token is left out.
- What it uploads while training is weights and config alone. Here the code goes along, so that each of them loads anywhere.
- A run of `transduct train` ends with `transduct push` of its finished model.
- Its card is a form to fill in. Here it is that of `transduct push`, which tells what is known, and a card that a person wrote
  stays, in the output folder as on the Hub. Where both have one, that of the output folder is kept beside the other.
- A repository that should be private, but was made before and is not, is refused, as `transduct push` refuses it.

`transduct.hub` reads what trainings leave, and therefore imports modules of this package; here it is imported where it is needed.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import Enum
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import HfApi
from huggingface_hub.errors import RevisionNotFoundError
from transformers import Seq2SeqTrainer, TrainingArguments
from transformers.utils import logging

from transduct.files import write_whole
from transduct.pretrained import ship_code
from transduct.training.adapters import is_adapted

if TYPE_CHECKING:
    from transduct.hub import Facts, Said

logger = logging.get_logger(__name__)

CARD = "README.md"
FORMS = (
    "This model card has been generated automatically according to the information the Trainer had access to",
    "# Model Card for Model ID",
)
"""What the forms of transformers and of peft say until a person takes it out, as the first asks to."""
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

    upload_with: tuple[str | None, str | None] = (None, None)
    """Token and branch that `push_to_hub` was given, while it runs; those of the arguments take the place of None."""

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """The inherited method; from then on the token is in no file that is uploaded.

        Raises:
            ValueError: if the repository should be private, and everybody can see it.
        """
        hide_token(self.args)
        super().init_hf_repo(token, private)
        if self.args.hub_private_repo if private is None else private:
            check_privacy(self, token)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """The inherited method. The card that counts is that of the branch which is written, as the token sees it."""
        if private and self.hub_model_id is not None:
            check_privacy(self, token)
        self.upload_with = token, revision
        try:
            return super().push_to_hub(commit_message, blocking, token, revision, private, **kwargs)
        finally:
            self.upload_with = None, None

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
        if not self.is_world_process_zero():
            return
        given = (language, license, tags, finetuned_from, tasks, dataset_tags, dataset, dataset_args)
        if keep_card(self):
            if any(given):
                logger.warning(f"{CARD} is a person's and stays as it is: what was given for the card is not in it.")
            return
        only_there = (tags, finetuned_from, dataset_tags, dataset, dataset_args, isinstance(tasks, list))
        if any(only_there) or not is_own(self.accelerator.unwrap_model(self.model)):
            super().create_model_card(
                language, license, tags, model_name, finetuned_from, tasks, dataset_tags, dataset, dataset_args
            )
            return
        from transduct.hub import Said

        languages = [language] if isinstance(language, str) else language or ()
        update_card(self, Said(license, languages, tasks if isinstance(tasks, str) else None))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        add_code(self)
        if self.is_world_process_zero() and (Path(self.args.output_dir) / CARD).is_file():
            try:
                keep_card(self)
            except (ConnectionError, ValueError) as error:  # a training goes on
                logger.warning(f"This checkpoint is not uploaded, since the card on the Hub cannot be read: {error}")
                return
        super()._push_from_checkpoint(checkpoint_folder)


def share_finished(trainer: Any, output: Path) -> str:
    """Put the finished model of a run on the Hub, as `transduct push` does, where the recipe says; returns its address."""
    from transduct.hub.sharing import push

    trainer._finish_current_push()
    args = trainer.args
    shared = push(output, trainer.hub_model_id, args.hub_token, private=args.hub_private_repo, revision=args.hub_revision)
    for note in shared.notes:
        logger.warning(f"On the Hub: {note}.")
    return shared.url


def is_own(model: Any) -> bool:
    """Whether a model is of this package, without adapters of peft, which has cards and files of its own."""
    return model.config.model_type == "transduct" and not is_adapted(model)


def add_code(trainer: Any) -> None:
    """The model's code, where the trainer uploads from."""
    if trainer.is_world_process_zero() and is_own(trainer.accelerator.unwrap_model(trainer.model)):
        ship_code(Path(trainer.args.output_dir))


def check_privacy(trainer: Any, token: str | None) -> None:
    """Refuse a repository that everybody can see."""
    from transduct.hub.sharing import check_private, told

    if trainer.is_world_process_zero():
        with told(trainer.hub_model_id):
            api = HfApi(token=trainer.args.hub_token if token is None else token)
            check_private(trainer.hub_model_id, api.model_info(trainer.hub_model_id))


def update_card(trainer: Any, said: "Said") -> None:
    """The card in the output folder: of what is known by now, unless a person wrote the one that is there, or on the Hub.

    What was said in the one before it is kept, unless it is said anew.
    """
    from transduct.hub.cards import said_in, write_card

    if not keep_card(trainer):
        path = Path(trainer.args.output_dir) / CARD
        said = said.completed(said_in(path.read_text(encoding="utf-8"))) if path.is_file() else said
        repository = trainer.hub_model_id or Path(trainer.args.output_dir).absolute().name
        write_whole(path, write_card(facts_of_trainer(trainer), repository, said, upload_token(trainer)))


def upload_token(trainer: Any) -> str | None:
    """What the upload that is going on was given, or the training."""
    token = trainer.upload_with[0]
    return trainer.args.hub_token if token is None else token


def keep_card(trainer: Any) -> bool:
    """Whether a person wrote the card, here or on the Hub.

    A person's on the Hub comes here, so that an upload leaves it as it is, and one that is here then keeps its text under a name
    that is not uploaded. Of others that of the Hub comes here if there is none.
    """
    path = Path(trainer.args.output_dir) / CARD
    here, there = path.read_text(encoding="utf-8") if path.is_file() else None, _card_on_the_hub(trainer)
    if there is None or not is_by_hand(there):
        if there is not None and here is None:
            write_whole(path, there)
        return is_by_hand(here)
    if here != there:
        if is_by_hand(here):
            _put_aside(path)
        write_whole(path, there)
    return True


def _put_aside(path: Path) -> None:
    names = (path.with_name(f"_README.{number}.md") for number in count(1))
    aside = next(name for name in names if not name.exists())
    path.rename(aside)
    logger.warning(f"{CARD} on the Hub is a person's and stays; yours of {path.parent} is now {aside.name}, and not uploaded.")


def is_by_hand(card: str | None) -> bool:
    """Whether there is a card, and a person wrote or changed it."""
    from transduct.hub.cards import is_ours

    return card is not None and not is_ours(card) and not any(form in " ".join(card.split()) for form in FORMS)


def _card_on_the_hub(trainer: Any) -> str | None:
    """As it is at this moment.

    Raises:
        ConnectionError, ValueError: if the Hub cannot say.
    """
    from transduct.hub.sharing import card_there, told

    if trainer.hub_model_id is None:
        return None
    revision = trainer.upload_with[1]
    api = HfApi(token=upload_token(trainer))
    with told(trainer.hub_model_id):
        try:
            head = api.model_info(trainer.hub_model_id, revision=trainer.args.hub_revision if revision is None else revision)
        except RevisionNotFoundError:
            return None
        return card_there(api, trainer.hub_model_id, head)


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

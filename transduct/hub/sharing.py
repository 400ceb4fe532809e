"""Sharing a model folder on the Hub: first what would be uploaded, without the network; then one commit.

- One commit, so that nobody ever finds half of a new model: weights of before that are no longer part of it are deleted by the
  same one. `HfApi.create_commit` does that; `upload_folder` may split what it uploads into several.
- An upload that breaks off goes on when it is started again: what the Hub has of the weights is not sent twice. If somebody else
  has changed the repository in the meantime, nothing is committed.
- The token is taken from the argument, or as `huggingface_hub` finds it (`HF_TOKEN`, `hf auth login`). It is in no message.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from traceback import walk_tb
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_session, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from transduct import __version__
from transduct.hub.cards import Said, evaluated_in, is_ours, languages_of, said_in, task_of, write_card
from transduct.hub.facts import facts_of
from transduct.hub.folders import CARD, INDEX, File, contents, model_folder
from transduct.hub.private import public_text

WEIGHTS = re.compile(rf"model\.safetensors|model-\d+-of-\d+\.safetensors|{re.escape(INDEX)}")
OF_MODEL = ("generation_config.json", "adapter_config.json", "adapter_model.safetensors")
OF_SOURCES = (
    "added_tokens.json", "chat_template.jinja", "merges.txt", "preprocessor_config.json", "processor_config.json",
    "sentencepiece.bpe.model", "source.spm", "special_tokens_map.json", "spiece.model", "target.spm", "tokenizer.json",
    "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt",
)  # fmt: skip
"""Files that an earlier model may have left in the repository, and that would be read with the new ones, or in their place: of
weights, of other parts of a model, and of its tokenizer and feature extractor."""
REQUEST_ERROR: Any = next(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")
"""What the client raises when a connection fails, from whichever library this version of huggingface_hub takes it."""
NO_ANSWER = (AttributeError, IndexError, KeyError, TypeError, json.JSONDecodeError)
"""What the client comes to where an answer is not what the Hub's would be, as of a network that wants a log-in first."""
PATIENCE = 300.0
"""Seconds without a byte from the Hub after which a connection has failed. The client alone would wait for ever."""
AGAIN = "Push again later: what has been uploaded is not sent twice"


@dataclass(frozen=True)
class Options:
    """How a folder is shared.

    Args:
        private: True or False: who may see a repository that is made now; None: as the Hub has it for the account.
        revision: the branch to write; it is made if it is not there. None: main.
        overwrite_card: replace a card that a person has written or changed.
        evaluations: files of `transduct evaluate --json`, by the names of their test sets, for the card.
        message: of the commit.
    """

    private: bool | None = None
    revision: str | None = None
    overwrite_card: bool = False
    said: Said = field(default_factory=Said)
    evaluations: Mapping[str, str] = field(default_factory=dict)
    message: str | None = None


@dataclass(frozen=True)
class Share:
    """What would be uploaded."""

    folder: Path
    repository: str
    files: Sequence[File]
    """All but the card."""
    left_out: Mapping[str, str]
    card: str
    """The card to upload, if the repository has none that a person wrote."""
    card_is_ours: bool
    said: Said
    """For the card: by the options, and by the one in the folder."""
    notes: Sequence[str]
    options: Options

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files) + len(self.card.encode())


@dataclass(frozen=True)
class Shared:
    """What came of it."""

    url: str
    commit: str
    card: str
    """That of the repository from now on."""
    deleted: Sequence[str] = ()
    """Files of an earlier model."""
    notes: Sequence[str] = ()


def push(folder: str | Path, repository: str, token: str | None = None, **options: Any) -> Shared:
    """Share a model folder, or the model of a run's output folder, on the Hub.

    Args:
        repository: "name/model", of a user or an organisation; it is made if it is not there.
        token: with the right to write; None: as `huggingface_hub` finds it.
        options: of `Options`.

    Raises:
        ValueError: for a folder that holds no whole model of ours, and whatever the Hub refuses; nothing was committed then.
        ConnectionError: where the Hub cannot be reached or fails; the same call goes on later. If its answer to the commit was
            lost, that may have been made.
    """
    return upload(prepare(folder, repository, Options(**options), token), token)


def prepare(folder: str | Path, repository: str, options: Options, token: str | None = None) -> Share:
    """See what would be uploaded. Nothing is sent.

    Raises:
        ValueError: for a folder that holds no whole model, or files with a token; and for a name that cannot be one.
    """
    _check_names(repository, options.revision, token)
    path = model_folder(folder)
    inside = contents(path, token or get_token())
    written = path / CARD
    old = _text_of(written) if written.is_file() else None
    by_hand = old is not None and not is_ours(old)
    said = options.said if old is None else options.said.completed(said_in(old))
    notes = list(inside.notes)
    if by_hand and not options.overwrite_card:
        assert old is not None
        if options.said or options.evaluations:
            rule = (
                "what you say for the card would not be in it. Write it there yourself, or let --overwrite-card replace the card"
            )
            raise ValueError(f"{str(written)!r} is a person's: {rule}")
        card = old
        notes.append(f"{CARD} is the one in the folder, which a person wrote")
    else:
        card = write_card(facts_of(path, options.evaluations), repository, said, token or get_token())
        if said.license is None:
            notes.append("the card states no licence: name one with --license")
    ours = not by_hand or options.overwrite_card
    return Share(path, repository, inside.files, inside.left_out, card, ours, said, notes, options)


def _text_of(card: Path) -> str:
    try:
        return card.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(card)!r} is not UTF-8, as the Hub wants it ({error}): save it so") from error


def _check_names(repository: str, revision: str | None, token: str | None) -> None:
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ValueError(f"repository={repository!r} cannot be a name on the Hub: {error}") from error
    if "/" not in repository:
        raise ValueError(f"repository={repository!r} must begin with a user or an organisation, such as my-name/{repository}")
    if revision is not None and not re.fullmatch(r"[\w][\w./-]*", revision):
        raise ValueError(f"revision={revision!r} must be the name of a branch: letters, digits, and . / - _")
    if token is not None and not re.fullmatch(r"[!-~]+", token):
        raise ValueError("token must be one word without spaces and line breaks; it is not shown here")


# ---- the network --------------------------------------------------------------------------------------------------------------
def upload(share: Share, token: str | None = None) -> Shared:
    """Make the repository and the branch, if they are not there, and commit what `prepare` has seen.

    Raises:
        ValueError, ConnectionError: as `push`.
    """
    api = HfApi(token=token, library_name="transduct", library_version=__version__)
    options = share.options
    with told(share.repository):
        api.create_repo(share.repository, private=options.private, exist_ok=True)
        if options.private:
            check_private(share.repository, api.model_info(share.repository))
        head = _head(api, share.repository, options.revision)
        notes = (
            ["the repository is private and stays so: the Hub's settings change it"]
            if options.private is False and head.private
            else []
        )
        there = card_there(api, share.repository, head)
        card = _agreed_card(share, there, notes, token or get_token())
        stale = _stale(share, _names(head), notes)
        operations: list[Any] = [
            *(CommitOperationDelete(path) for path in stale),
            *(CommitOperationAdd(file.path, _source(file)) for file in share.files),
            *([] if card == there else [CommitOperationAdd(CARD, card.encode())]),
        ]
        done = api.create_commit(
            share.repository,
            operations,
            commit_message=options.message or f"Share the model with transduct {__version__}",
            revision=options.revision,
            parent_commit=head.sha,
        )
    branch = "" if options.revision is None else f"/tree/{options.revision}"
    return Shared(public_text(f"{api.endpoint}/{share.repository}{branch}"), done.oid, card, stale, notes)


def _source(file: File) -> str | bytes:
    return file.source if isinstance(file.source, bytes) else str(file.source)


def _head(api: HfApi, repository: str, revision: str | None) -> Any:
    """What the branch is at now; it is made from main if it is not there."""
    try:
        return api.model_info(repository, revision=revision)
    except RevisionNotFoundError:
        assert revision is not None
        api.create_branch(repository, branch=revision, exist_ok=True)
        return api.model_info(repository, revision=revision)


def check_private(repository: str, head: Any) -> None:
    """Refuse a repository that everybody can see, where it should be private: the Hub leaves one that exists as it is."""
    if not head.private:
        raise ValueError(
            f"{repository} exists and everybody can see it, though it should be private: choose another name, or make it "
            "private on the Hub first"
        )


def card_there(api: HfApi, repository: str, head: Any) -> str | None:
    """The card that a repository has at `head`, which `model_info` gave; None if it has none."""
    if CARD not in _names(head):
        return None
    return Path(api.hf_hub_download(repository, CARD, revision=head.sha)).read_text(encoding="utf-8")


def _names(head: Any) -> list[str]:
    return [sibling.rfilename for sibling in head.siblings or ()]


def _stale(share: Share, there: Sequence[str], notes: list[str]) -> list[str]:
    """What to delete of an earlier model. Its tokenizer goes only where the folder has one, for it may have been shared alone."""
    wanted = {file.path for file in share.files}
    old = [path for path in there if path not in wanted]
    stale = [path for path in old if WEIGHTS.fullmatch(path) or path in OF_MODEL]
    of_sources = [path for path in old if path in OF_SOURCES]
    if wanted.isdisjoint(OF_SOURCES):
        notes += [f"{path} stays as it is there, since the folder has no tokenizer" for path in of_sources]
        return stale
    return [*stale, *of_sources]


def _written_anew(share: Share, there: str, notes: list[str], token: str | None) -> str:
    """A card of facts that keeps what was said in the one before it."""
    facts, said = facts_of(share.folder, share.options.evaluations), share.said.completed(said_in(there))
    pairs = {
        "language": (languages_of(facts, said), languages_of(facts, share.said)),
        "task": (task_of(facts, said), task_of(facts, share.said)),
    }
    for name, (kept, found) in pairs.items():
        if found and kept != found:
            notes.append(f"the card keeps the {name} of the one before, {kept}, and not {found}: --{name} changes it")
    for name in evaluated_in(there):
        if name not in {result.data for result in facts.results}:
            notes.append(f"the card no longer tells results on {name}: give them again with --evaluation")
    return write_card(facts, share.repository, said, token)


def _agreed_card(share: Share, there: str | None, notes: list[str], token: str | None) -> str:
    """The card that the repository shall have: `there`, if a person wrote that. `notes` gets what there is to say of it."""
    options = share.options
    if there is None or there == share.card:
        return share.card
    if not is_ours(there) and not options.overwrite_card:
        if not share.card_is_ours:
            own = f"yours is another: `hf upload {share.repository} {share.folder / CARD} {CARD}` puts it there"
            notes.append(f"{CARD} stays as it is there, since a person wrote it; {own}")
        else:
            lost = ", and what you said for the card is not in it" if options.said or options.evaluations else ""
            notes.append(f"{CARD} stays as it is there, since a person wrote it{lost}: --overwrite-card replaces it")
        return there
    if not share.card_is_ours:
        return share.card
    return _written_anew(share, there, notes, token)


@contextmanager
def told(repository: str) -> Iterator[None]:
    """Inside, what goes wrong with the Hub is told in a sentence, with what to do, and so is that it never answers."""
    try:
        with _patience():
            yield
    except OfflineModeIsEnabled as error:
        raise ConnectionError("HF_HUB_OFFLINE is set, so that nothing can be shared: unset it") from error
    except LocalEntryNotFoundError as error:  # a download that failed, with nothing of it in the cache
        raise _unreachable(error.__cause__ or error) from error
    except HfHubHTTPError as error:
        raise _refusal(error, repository) from error
    except REQUEST_ERROR as error:
        raise _unreachable(error) from error
    except RuntimeError as error:  # of an upload, around its cause
        if error.__cause__ is None or not _is_of_client(error):
            raise
        raise _failed_upload(error.__cause__, repository) from error
    except NO_ANSWER as error:
        if not _is_of_client(error):
            raise
        raise _no_hub(error) from error
    except OSError as error:
        if error.errno is not None or not _is_of_client(error):
            raise  # of a disk
        if isinstance(error, PermissionError):
            raise ValueError(f"the Hub's storage refuses the token for {repository}: take one with the right to write") from error
        raise _unreachable(error) from error


@contextmanager
def _patience() -> Iterator[None]:
    """Inside, the client waits so long for the Hub, and no longer, where it would for ever."""

    def limit(request: Any) -> None:
        given = request.extensions["timeout"]
        request.extensions["timeout"] = {step: PATIENCE if seconds is None else seconds for step, seconds in given.items()}

    hooks = get_session().event_hooks["request"]
    hooks.append(limit)
    try:
        yield
    finally:
        hooks.remove(limit)


def _failed_upload(cause: BaseException, repository: str) -> BaseException:
    if isinstance(cause, HfHubHTTPError):
        return _refusal(cause, repository)
    if isinstance(cause, NO_ANSWER):
        return _no_hub(cause)
    if isinstance(cause, OSError) and cause.errno is not None:  # of the disk that is read
        return cause
    return _unreachable(cause)


def _is_of_client(error: BaseException) -> bool:
    """Whether it was raised inside the Hub's client, and not by what is around it."""
    modules = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    return any(name.split(".")[0] == "huggingface_hub" for name in modules)


def _no_hub(error: BaseException) -> ConnectionError:
    return ConnectionError(
        f"{public_text(constants.ENDPOINT)} does not answer as the Hub does ({type(error).__name__}): is HF_ENDPOINT right, and "
        f"does this network let programs reach it without a log-in? {AGAIN}"
    )


def _refusal(error: HfHubHTTPError, repository: str) -> Exception:
    status = error.response.status_code
    said = (error.server_message or "").strip().splitlines()
    reason = f" ({said[0]})" if said else ""
    if status == 401:
        return ValueError(f"the Hub knows no valid token{reason}: run `hf auth login`, set HF_TOKEN, or pass --token")
    if status == 403:
        return ValueError(f"the token may not write to {repository}{reason}: take one with the right to write there")
    if status == 404:
        return ValueError(f"the Hub finds no {repository} that this token may see{reason}")
    if status in (409, 412):
        return ValueError(f"{repository} was changed by somebody else in the meantime{reason}: look at it, and push again")
    if status >= 500 or status in (408, 429):
        return ConnectionError(f"the Hub fails with status {status}{reason}. {AGAIN}")
    return ValueError(f"the Hub refuses with status {status}{reason}")


def _unreachable(error: BaseException) -> ConnectionError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return ConnectionError(f"the connection to {public_text(constants.ENDPOINT)} failed: {public_text(reason)}. {AGAIN}")

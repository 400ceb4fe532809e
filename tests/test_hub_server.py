"""The stand-in for the Hub answers the unmodified client as the Hub does, and fails as it is told to."""

import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import CommitOperationDelete, HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from hub_clients import client_environment, client_in_this_process
from hub_server import Account, Fault, Hub, serving

TOKEN, READER, OTHER = "hf_" + "w" * 30, "hf_" + "r" * 30, "hf_" + "o" * 30
ACCOUNTS = {TOKEN: Account("ann", ("team",)), READER: Account("ann", writes=False), OTHER: Account("bob")}
LARGE = bytes(range(256)) * 64  # 16 KB: large for the stand-in

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")  # of the client's own uploads


@pytest.fixture
def hub() -> Hub:
    return Hub(ACCOUNTS)


@pytest.fixture
def url(hub, tmp_path, monkeypatch):
    with serving(hub) as address, client_in_this_process(address, tmp_path / "home", monkeypatch):
        yield address
    assert hub.unknown == []


@pytest.fixture
def api(url) -> HfApi:
    return HfApi(url, TOKEN)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "small.json").write_text("{}")
    (folder / "inner" / "large.bin").write_bytes(LARGE)
    return folder


def upload(api: HfApi, folder, **options) -> str:
    api.create_repo("ann/model", exist_ok=True, private=options.pop("private", None))
    return api.upload_folder(repo_id="ann/model", folder_path=folder, **options).oid


def test_who_a_token_belongs_to(api, url):
    assert api.whoami()["name"] == "ann"
    with pytest.raises(HfHubHTTPError, match="Invalid user token"):
        HfApi(url).whoami("hf_wrong")


@pytest.mark.parametrize("part_size", [None, 5000], ids=["whole", "in parts"])
def test_a_folder_goes_there_and_comes_back(api, hub, folder, tmp_path, part_size):
    hub.part_size = part_size
    oid = upload(api, folder)
    files = hub.repositories["ann/model"].files()
    assert files["inner/large.bin"].content == LARGE
    assert files["inner/large.bin"].lfs
    assert not files["small.json"].lfs
    assert len(hub.seen("PUT", "/lfs/part/")) == (0 if part_size is None else 4)
    back = api.snapshot_download("ann/model", revision=oid, cache_dir=tmp_path / "cache")
    for name in ("small.json", "inner/large.bin"):
        assert Path(back, name).read_bytes() == (folder / name).read_bytes()
    assert api.model_info("ann/model").sha == oid
    assert set(api.list_repo_files("ann/model")) == {".gitattributes", "small.json", "inner/large.bin"}


def test_what_is_there_is_not_uploaded_again(api, hub, folder):
    first = upload(api, folder)
    assert upload(api, folder) == first  # no commit either
    (folder / "small.json").write_text("[]")
    assert upload(api, folder) != first
    assert len(hub.seen("PUT", "/lfs/")) == 1


def test_branches_and_tags(api, hub, folder):
    first = upload(api, folder)
    api.create_tag("ann/model", tag="v1")
    api.create_branch("ann/model", branch="next/one")
    api.create_branch("ann/model", branch="next/one", exist_ok=True)
    with pytest.raises(HfHubHTTPError, match="already exists"):
        api.create_branch("ann/model", branch="next/one")
    (folder / "small.json").write_text("[]")
    second = upload(api, folder, revision="next/one")
    refs = api.list_repo_refs("ann/model")
    assert {ref.name: ref.target_commit for ref in refs.branches} == {"main": first, "next/one": second}
    assert {ref.name: ref.target_commit for ref in refs.tags} == {"v1": first}
    for revision, text in (("main", "{}"), ("v1", "{}"), (first, "{}"), ("next/one", "[]")):
        assert Path(api.hf_hub_download("ann/model", "small.json", revision=revision)).read_text() == text
    with pytest.raises(RevisionNotFoundError):
        api.model_info("ann/model", revision="v2")
    with pytest.raises(RevisionNotFoundError):
        api.hf_hub_download("ann/model", "small.json", revision="v2")


def test_deleting_and_commits_that_came_between(api, folder):
    first = upload(api, folder)
    api.create_commit("ann/model", [CommitOperationDelete("inner/large.bin")], commit_message="less", parent_commit=first)
    assert set(api.list_repo_files("ann/model")) == {".gitattributes", "small.json"}
    with pytest.raises(HfHubHTTPError, match=r"412(.|\n)*A commit has happened since"):
        api.create_commit("ann/model", [CommitOperationDelete("small.json")], commit_message="less", parent_commit=first)


def test_a_repository_is_made_once(api, hub):
    api.create_repo("ann/model")
    api.create_repo("team/model", private=True)
    assert api.create_repo("model", exist_ok=True).repo_id == "ann/model"
    assert hub.repositories["team/model"].private
    with pytest.raises(HfHubHTTPError, match=r"409(.|\n)*already created"):
        api.create_repo("ann/model")
    with pytest.raises(HfHubHTTPError, match="403"):
        api.create_repo("stranger/model")


def test_what_is_in_a_folder(api, folder):
    upload(api, folder)
    assert [entry.path for entry in api.list_repo_tree("ann/model", "inner")] == ["inner/large.bin"]
    with pytest.raises(RemoteEntryNotFoundError):
        list(api.list_repo_tree("ann/model", "outer"))


def test_files_and_repositories_that_are_not_there(api, folder):
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("ann/nothing")
    upload(api, folder)
    with pytest.raises(RemoteEntryNotFoundError):
        api.hf_hub_download("ann/model", "nothing.json")


@pytest.mark.parametrize("reader", [None, OTHER])
def test_private_repositories(api, url, folder, reader, tmp_path):
    upload(api, folder, private=True)
    with pytest.raises(RepositoryNotFoundError):
        HfApi(url, reader or False).hf_hub_download("ann/model", "small.json", cache_dir=tmp_path / "no")
    assert HfApi(url, READER).hf_hub_download("ann/model", "small.json", cache_dir=tmp_path / "yes")
    with pytest.raises(HfHubHTTPError, match="401"):
        HfApi(url, "hf_wrong").hf_hub_download("ann/model", "small.json", cache_dir=tmp_path / "no")


def test_who_may_not_write(api, url, folder):
    upload(api, folder)
    (folder / "small.json").write_text("[]")
    for token in (READER, OTHER):
        with pytest.raises(HfHubHTTPError, match="403"):
            HfApi(url, token).upload_folder(repo_id="ann/model", folder_path=folder)
    with pytest.raises(HfHubHTTPError, match="401"):
        HfApi(url, False).upload_folder(repo_id="ann/model", folder_path=folder)


# ---- faults -------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fault", [Fault("PUT", "/lfs/part/.*/2", drop_after=100), Fault("PUT", "/lfs/part/.*/2", 503)], ids=str)
def test_an_upload_that_goes_wrong_is_tried_again(api, hub, folder, fault):
    hub.part_size = 5000
    hub.faults.append(fault)
    upload(api, folder)
    assert fault.times == 0
    assert hub.repositories["ann/model"].files()["inner/large.bin"].content == LARGE
    assert len(hub.seen("PUT", "/lfs/part/")) == 5


def test_a_download_that_breaks_off_goes_on_where_it_was(api, hub, folder, monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # what has arrived counts in such steps
    upload(api, folder)
    hub.faults.append(Fault("GET", "/cdn/", drop_after=6000))
    path = api.hf_hub_download("ann/model", "inner/large.bin", cache_dir=tmp_path / "cache")
    assert Path(path).read_bytes() == LARGE
    ranges = [request.headers.get("range") for request in hub.seen("GET", "/cdn/")]
    assert ranges == [None, "bytes=6000-"]


@pytest.mark.parametrize("status", [401, 403, 404, 409, 500])
def test_an_error_comes_out(api, hub, folder, status):
    hub.faults.append(Fault("POST", "/commit/", status))
    with pytest.raises(HfHubHTTPError, match=f"{status}"):
        upload(api, folder)
    assert set(hub.repositories["ann/model"].files()) == {".gitattributes"}
    upload(api, folder)
    assert len(hub.seen("PUT", "/lfs/")) == 1  # what was uploaded before the error was kept


def test_a_process_is_led_here_by_its_environment(hub, url, folder, tmp_path):
    code = (
        "import sys, huggingface_hub as hub\n"
        "hub.create_repo('ann/model')\n"
        "hub.upload_folder(repo_id='ann/model', folder_path=sys.argv[1])\n"
        "print(hub.hf_hub_download('ann/model', 'small.json'))\n"
    )
    environment = client_environment(url, tmp_path / "home", TOKEN)
    result = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().startswith(str(tmp_path / "home"))
    assert "inner/large.bin" in hub.repositories["ann/model"].files()

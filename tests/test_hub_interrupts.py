"""Ctrl-C while `transduct push` sends over real HTTP: it ends at once, and the repository is as before or has the whole model."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hub_clients import client_environment, client_in_this_process
from hub_server import Account, Fault, Hub, serving
from tiny_translation import tiny_translation
from transduct.cli.main import run

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")]

TOKEN = "hf_" + "w" * 30


class World:
    """A Hub with an empty repository, and a model to share, in one file of weights or in several."""

    def __init__(self, url: str, hub: Hub, folder: Path):
        self.url, self.hub, self.folder = url, hub, folder
        self.processes: list[subprocess.Popen] = []

    def save(self, shard_size: str) -> None:
        model, tokenizer = tiny_translation()
        model.save_pretrained(self.folder / "model", max_shard_size=shard_size)
        tokenizer.save_pretrained(self.folder / "model")

    def push(self) -> subprocess.Popen:
        command = [sys.executable, "-m", "transduct.cli.main", "push", str(self.folder / "model"), "ann/model"]
        environment = client_environment(self.url, self.folder / "home", TOKEN) | {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.processes.append(subprocess.Popen(command, env=environment, preexec_fn=heard, **pipes))
        return self.processes[-1]

    def interrupted(self, method: str, path: str, requests: int = 1) -> None:
        """Press Ctrl-C once so many of these requests have come, which are never answered; it must be heard."""
        fault = Fault(method, path, silent=True, times=99)
        self.hub.faults.append(fault)
        process = self.push()
        while len(self.hub.seen(method, path)) < requests:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert "Traceback" not in err
        assert "shared" not in out
        self.hub.faults.remove(fault)

    @property
    def there(self) -> set[str]:
        return set(self.hub.repositories["ann/model"].files())

    def whole(self) -> bool:
        wanted = {path.name for path in (self.folder / "model").iterdir()}
        files = self.hub.repositories["ann/model"].files()
        return wanted <= set(files) and all(files[name].content == (self.folder / "model" / name).read_bytes() for name in wanted)


def heard() -> None:
    """Python's own answer to SIGINT in the new process, also where these tests run in the background of a shell."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def world(tmp_path):
    hub = Hub({TOKEN: Account("ann")})
    with serving(hub) as url:
        world = World(url, hub, tmp_path)
        yield world
        for process in world.processes:
            process.kill()
    assert hub.unknown == []


def push_again(world, monkeypatch) -> None:
    """In this process, nobody interrupts it."""
    with client_in_this_process(world.url, world.folder / "home", monkeypatch, TOKEN):
        assert run(["push", str(world.folder / "model"), "ann/model"]) == 0


@pytest.mark.parametrize(("shard_size", "requests"), [("5GB", 1), ("20KB", 3)], ids=["one file", "several at once"])
def test_while_weights_are_uploaded(shard_size, requests, world, monkeypatch):
    world.save(shard_size)
    world.interrupted("PUT", "/lfs/", requests)
    assert world.there == {".gitattributes"}
    push_again(world, monkeypatch)
    assert world.whole()


def test_while_the_commit_is_asked(world, monkeypatch):
    world.save("5GB")
    world.interrupted("POST", "/commit/")
    assert world.there == {".gitattributes"}
    push_again(world, monkeypatch)
    assert world.whole()


def test_where_the_commit_was_made_and_not_told(world, monkeypatch):
    """Pushed again, it is found to be there."""
    world.save("5GB")
    answering = world.hub._respond

    def slowly(request):
        answer = answering(request)
        if "/commit/" in request.path:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(world.hub, "_respond", slowly)
        process = world.push()
        _, err = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in err) == (130, False)
    assert world.whole()
    commits = len(world.hub.repositories["ann/model"].commits)
    push_again(world, monkeypatch)
    assert len(world.hub.repositories["ann/model"].commits) == commits
    assert world.whole()

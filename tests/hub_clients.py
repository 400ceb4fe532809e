"""Clients of the stand-in for the Hub, `hub_server.py`: another process, or this one."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import constants
from huggingface_hub.utils import close_session

from hub_server import Hub


def client_environment(url: str, home: Path, token: str | None = None) -> dict[str, str]:
    """The environment of a process whose client talks to `url`, with caches of its own, and knows no token but this."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))}
    own = {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    return kept | own | ({} if token is None else {"HF_TOKEN": token}) | {"OMP_NUM_THREADS": "1"}


@contextmanager
def client_in_this_process(url: str, home: Path, patch: Any, token: str | None = None) -> Iterator[None]:
    """What `client_environment` does, for a process whose `huggingface_hub` has read its environment already.

    Args:
        patch: pytest's `monkeypatch`.
    """
    values = {
        "ENDPOINT": url, "HUGGINGFACE_CO_URL_TEMPLATE": url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True, "HF_HUB_DISABLE_TELEMETRY": True,
        "HF_HUB_CACHE": str(home / "hub"), "HF_TOKEN_PATH": str(home / "token"),
    }  # fmt: skip
    with patch.context() as inner:
        for name, value in values.items():
            inner.setattr(constants, name, value)
        if token is None:
            inner.delenv("HF_TOKEN", raising=False)
        else:
            inner.setenv("HF_TOKEN", token)
        try:
            yield
        finally:
            close_session()


class World:
    """A Hub, and processes that use it."""

    def __init__(self, url: str, hub: Hub, folder: Path, secrets: Sequence[str] = ()):
        """What no process may print: `secrets`."""
        self.url, self.hub, self.folder, self.secrets = url, hub, folder, secrets

    def run(self, *command: str, token: str | None = None, home: str = "home", **variables: str) -> str:
        """What a process prints."""
        environment = client_environment(self.url, self.folder / home, token) | {"HF_HUB_DISABLE_PROGRESS_BARS": "1", **variables}
        work = self.folder / "work"
        work.mkdir(parents=True, exist_ok=True)
        result = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, cwd=work)
        assert result.returncode == 0, result.stderr[-3000:]
        for secret in self.secrets:
            assert secret not in result.stdout + result.stderr
        return result.stdout.strip()

    def files(self, name: str, revision: str = "main") -> dict[str, bytes]:
        return {path: blob.content for path, blob in self.hub.repositories[name].files(revision).items()}

"""Versions, devices, threads and attention of this computer."""

import os
from importlib.metadata import PackageNotFoundError, version

import pytest
import torch
from torch.nn.attention import SDPBackend

from doctored import texts
from transduct.doctor import computer, examine_computer


@pytest.fixture
def requirements(monkeypatch):
    """What the package says that it needs."""

    def set_to(*lines: str) -> None:
        monkeypatch.setattr(computer, "requires", lambda name: list(lines))

    return set_to


def test_versions_are_those_that_are_installed():
    findings = examine_computer()
    values = {finding.subject: finding.value for finding in findings}
    for name in ("torch", "transformers", "tokenizers", "datasets", "typer"):
        assert values[name] == version(name)
    assert not {"pytest", "ruff", "mypy", "mkdocs-material"} & set(values)  # for those who make the package
    assert values["threads"] == torch.get_num_threads()
    assert findings.problems == []


def test_packages_that_are_missing_or_too_old(requirements):
    requirements("torch>=999", "nosuchpackage>=1", 'othermissing>=2; extra == "lora"', 'pytest>=1; extra == "test"')
    findings = examine_computer()
    found = {finding.subject: finding for finding in findings}
    assert found["torch"].level == found["nosuchpackage"].level == "problem"
    assert "does not fit >=999: pip install 'torch>=999'" in found["torch"].text
    assert found["nosuchpackage"].text == "is missing: pip install 'nosuchpackage>=1'"
    assert (found["othermissing"].level, found["othermissing"].text) == (
        "note",
        "is not installed; pip install 'transduct[lora]' brings it",
    )
    assert "pytest" not in found


def test_without_an_installation_nothing_is_known_of_packages(monkeypatch):
    def unknown(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(computer, "requires", unknown)
    assert "not installed but imported from a folder" in texts(examine_computer(), "note")["transduct"]


def test_more_threads_than_cores_are_noted(monkeypatch):
    monkeypatch.setattr(computer.torch, "get_num_threads", lambda: 1000)
    monkeypatch.setattr(computer, "usable_cores", lambda: 2)
    assert "set OMP_NUM_THREADS=2" in texts(examine_computer(), "note")["threads"]


def test_usable_cores_are_those_of_this_process():
    assert 1 <= computer.usable_cores() <= (os.cpu_count() or 1)


def test_attention_kernels_are_tried():
    assert computer.works(SDPBackend.MATH, "cpu")
    assert not computer.works(SDPBackend.CUDNN_ATTENTION, "cpu")
    values = {finding.subject: finding.value for finding in examine_computer()}
    assert "math" in values["sdpa"]


@pytest.mark.parametrize(("compiler", "level"), [(None, "note"), ("/usr/bin/g++", "ok")])
def test_flex_attention_needs_a_compiler_on_the_processor(monkeypatch, compiler, level):
    monkeypatch.setattr(computer.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(computer.shutil, "which", lambda name: compiler)
    (found,) = [finding for finding in examine_computer() if finding.subject == "flex_attention"]
    assert found.level == level

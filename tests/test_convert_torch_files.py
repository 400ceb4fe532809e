"""Files of torch.save with objects in them: everything is told, and nothing is executed."""

import argparse
import enum
import os
import sys
import types
from collections import OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from transduct.convert.torch_files import StandIn, load_with_stand_ins, named_globals, plain


class Choice(enum.Enum):
    LEGACY = "legacy_ddp"


class Meter:
    def __init__(self, value: float):
        self.value = value


class Evil:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.fixture
def omegaconf():
    """Classes whose objects are pickled as OmegaConf's are: nodes with "_content" or "_val" in their state."""
    module = types.ModuleType("omegaconf_like")
    for name in ("DictConfig", "ListConfig", "AnyNode"):
        setattr(module, name, type(name, (), {"__module__": module.__name__}))
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def node(kind: type, **state):
    made = kind()
    made.__dict__.update(_metadata=None, _parent=None, **state)
    return made


@pytest.fixture(params=[False, True], ids=["zip", "legacy"])
def save(request, tmp_path):
    def write(value) -> Path:
        torch.save(value, tmp_path / "file.pt", _use_new_zipfile_serialization=not request.param)
        return tmp_path / "file.pt"

    return write


def test_tensors_come_as_they_are_beside_objects(save):
    weights = OrderedDict(a=torch.randn(2, 3), b=torch.arange(4), c=torch.nn.Parameter(torch.ones(2)), d=torch.ones(3).half())
    loaded = load_with_stand_ins(
        save({"model": weights, "args": argparse.Namespace(x=1), "meter": Meter(0.5), "n": np.float64(2)})
    )
    assert all(torch.equal(loaded["model"][name], weight) for name, weight in weights.items())
    assert loaded["model"]["d"].dtype == torch.float16
    assert isinstance(loaded["args"], StandIn)
    assert loaded["meter"].state == {"value": 0.5}


def test_namespaces_and_members_of_enumerations_become_values(save):
    args = argparse.Namespace(arch="transformer", betas=(0.9, 0.98), backend=Choice.LEGACY, inner=argparse.Namespace(x=None))
    assert plain(load_with_stand_ins(save(args))) == {
        "arch": "transformer", "betas": [0.9, 0.98], "backend": "legacy_ddp", "inner": {"x": None},
    }  # fmt: skip


def test_dictionaries_with_a_default_keep_what_they_hold(save):
    counts = defaultdict(list, a=[1, 2])
    assert load_with_stand_ins(save({"counts": counts})) == {"counts": {"a": [1, 2]}}


def test_nodes_of_omegaconf_become_values(save, omegaconf):
    values = node(omegaconf.ListConfig, _content=[node(omegaconf.AnyNode, _val=1), node(omegaconf.AnyNode, _val=None)])
    path = save(node(omegaconf.DictConfig, _content={"name": node(omegaconf.AnyNode, _val="bart_large"), "values": values}))
    assert plain(load_with_stand_ins(path)) == {"name": "bart_large", "values": [1, None]}


@pytest.mark.parametrize(
    "evil",
    [Evil(os.system, "touch executed"), Evil(Path.touch, Path("executed")), Evil(eval, "open('executed', 'w')")],
    ids=["os", "path", "eval"],
)
def test_nothing_is_executed(save, evil, tmp_path, monkeypatch):
    path = save({"model": {"a": torch.ones(2)}, "args": evil})
    monkeypatch.chdir(tmp_path)
    try:
        loaded = load_with_stand_ins(path)
    except ValueError:
        pass  # torch refuses some modules whatever stands for them
    else:
        assert isinstance(loaded["args"], StandIn)
        assert torch.equal(loaded["model"]["a"], torch.ones(2))
    assert not (tmp_path / "executed").exists()


def test_no_module_is_imported(save, tmp_path):
    module = types.ModuleType("a_module_of_theirs")
    module.Thing = type("Thing", (), {"__module__": "a_module_of_theirs"})
    sys.modules[module.__name__] = module
    path = save({"thing": module.Thing()})
    del sys.modules[module.__name__]
    assert isinstance(load_with_stand_ins(path)["thing"], StandIn)
    assert module.__name__ not in sys.modules


def test_names_are_found_without_loading(save):
    names = named_globals(save({"a": torch.ones(1), "b": argparse.Namespace(), "c": defaultdict(list)}))
    assert {"argparse.Namespace", "collections.defaultdict", "builtins.list", "torch._utils._rebuild_tensor_v2"} <= names


def test_torch_forgets_the_stand_ins(save):
    path, before = save(argparse.Namespace(x=1)), torch.serialization.get_safe_globals()
    load_with_stand_ins(path)
    assert set(torch.serialization.get_safe_globals()) == set(before)
    assert argparse.Namespace(x=1) == torch.load(path, weights_only=False)


def test_containers_of_other_classes_are_refused(save):
    kind = type("Pairs", (dict,), {"__module__": __name__})
    globals()["Pairs"] = kind
    with pytest.raises(ValueError, match=r"file\.pt"):
        load_with_stand_ins(save({"pairs": kind(a=1)}))


def test_a_tensor_made_of_something_else_is_refused(save):
    with pytest.raises(ValueError, match=r"file\.pt"):
        load_with_stand_ins(save({"a": Evil(torch._utils._rebuild_tensor_v2, 1, 2, 3, 4, 5, 6)}))


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04broken", b"\x80\x02."])
def test_other_files_are_refused(content, tmp_path):
    path = tmp_path / "file.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged"):
        load_with_stand_ins(path)


def test_a_file_that_was_cut_short_is_refused(save):
    path = save({"model": {"a": torch.randn(1000)}})
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ValueError, match=r"file\.pt"):
        load_with_stand_ins(path)

"""Tensors that nothing reads, kept beside a model."""

import copy

import pytest
import torch

from configs import build, tiny
from transduct.convert import unread
from transduct.modeling import TransductModel

KEPT = {"shared.weight": torch.arange(6.0).view(3, 2)}


def test_on_a_model_they_are_no_weights(tmp_path):
    model = build(TransductModel, tiny())
    before = set(model.state_dict())
    assert unread.attached(model) == {}
    unread.attach(model, KEPT)
    assert set(model.state_dict()) == before
    model.save_pretrained(tmp_path)
    assert unread.attached(TransductModel.from_pretrained(tmp_path)) == {}
    copied = copy.deepcopy(model)
    assert torch.equal(unread.attached(copied)["shared.weight"], KEPT["shared.weight"])
    assert unread.attached(copied)["shared.weight"].data_ptr() != KEPT["shared.weight"].data_ptr()


def test_in_a_folder_they_are_a_file_of_their_own(tmp_path):
    unread.write({}, tmp_path)
    assert not list(tmp_path.iterdir())
    assert unread.read(tmp_path) == {}
    unread.write(KEPT, tmp_path)
    assert torch.equal(unread.read(tmp_path)["shared.weight"], KEPT["shared.weight"])
    path = tmp_path / unread.FILE
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match="damaged"):
        unread.read(tmp_path)

"""Tensors and modules in float64, and their comparison with NumPy arrays to ten digits."""

import numpy as np
import torch
from torch import nn

CLOSE = dict(rtol=1e-10, atol=1e-10)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def shake(module: nn.Module) -> nn.Module:
    """float64, without dropout, and no weight at a value that would hide a mistake, such as a zero bias."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.double().eval()


def to_numpy(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.detach().numpy() for name, tensor in module.state_dict().items()}


def agree(ours: torch.Tensor, reference: np.ndarray, **tolerance: float) -> None:
    assert ours.dtype == torch.float64
    np.testing.assert_allclose(ours.detach().numpy(), reference, **(tolerance or CLOSE))

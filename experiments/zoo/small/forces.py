"""Models that differentiate in forward: energies with forces, fields of potentials."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch
from torch import nn

from experiments.zoo.builders import Configuration, Made


class _Potential(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1)
        )

    def forward(self, positions: torch.Tensor) -> Any:
        distances = positions.unsqueeze(0) - positions.unsqueeze(1)
        squared = distances.square().sum(-1, keepdim=True)
        return self.net(torch.exp(-squared)).sum()


class _AutogradForces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.potential = _Potential()

    def forward(self, positions: torch.Tensor) -> Any:
        with torch.enable_grad():
            positions = positions.detach().requires_grad_()
            energy = self.potential(positions)
            (slope,) = torch.autograd.grad(energy, positions, create_graph=self.training)
        return energy, -slope


class _FunctionalForces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.potential = _Potential()

    def forward(self, positions: torch.Tensor) -> Any:
        slope, energy = torch.func.grad_and_value(self.potential)(positions)
        return energy, -slope


class _Hamiltonian(nn.Module):
    """The time derivative of a Hamiltonian network (Greydanus et al., 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        slope = torch.func.grad(lambda one: self.energy(one).sum())(state)
        position, momentum = slope.chunk(2, -1)
        return torch.cat((momentum, -position), -1)


def _made(model: type[nn.Module], *shape: int) -> Made:
    return model(), (torch.randn(*shape),), {}


def _named(name: str, model: type[nn.Module], *shape: int) -> Configuration:
    return Configuration(name, "forces", partial(_made, model, *shape), device="cpu")


CONFIGURATIONS: Final = (
    _named("forces-autograd", _AutogradForces, 6, 3),
    _named("forces-functional", _FunctionalForces, 6, 3),
    _named("hamiltonian", _Hamiltonian, 8, 4),
)

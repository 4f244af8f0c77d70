"""Models that differentiate in forward: energies with forces, fields of potentials."""

from __future__ import annotations

from typing import Any, Final

from experiments.zoo.builders import Configuration, Made


def _potential() -> Any:
    import torch
    from torch import nn

    class Potential(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1)
            )

        def forward(self, positions: torch.Tensor) -> torch.Tensor:
            apart = positions.unsqueeze(0) - positions.unsqueeze(1)
            squared = apart.square().sum(-1, keepdim=True)
            energy: torch.Tensor = self.net(torch.exp(-squared)).sum()
            return energy

    return Potential()


def _autograd_forces() -> Made:
    import torch
    from torch import nn

    class Forces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.potential = _potential()

        def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            with torch.enable_grad():
                positions = positions.detach().requires_grad_()
                energy = self.potential(positions)
                (slope,) = torch.autograd.grad(energy, positions, create_graph=self.training)
            return energy, -slope

    return Forces(), (torch.randn(6, 3),), {}


def _functional_forces() -> Made:
    import torch
    from torch import nn

    class Forces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.potential = _potential()

        def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            slope, energy = torch.func.grad_and_value(self.potential)(positions)
            return energy, -slope

    return Forces(), (torch.randn(6, 3),), {}


def _hamiltonian() -> Made:
    """Return the time derivative of a Hamiltonian network (Greydanus et al., 2019)."""
    import torch
    from torch import nn

    class Hamiltonian(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))

        def forward(self, state: torch.Tensor) -> torch.Tensor:
            def total(one: torch.Tensor) -> torch.Tensor:
                energy: torch.Tensor = self.energy(one).sum()
                return energy

            slope = torch.func.grad(total)(state)
            position, momentum = slope.chunk(2, -1)
            return torch.cat((momentum, -position), -1)

    return Hamiltonian(), (torch.randn(8, 4),), {}


def _named(name: str, factory: Any) -> Configuration:
    return Configuration(name, "forces", factory, device="cpu")


CONFIGURATIONS: Final = (
    _named("forces-autograd", _autograd_forces),
    _named("forces-functional", _functional_forces),
    _named("hamiltonian", _hamiltonian),
)

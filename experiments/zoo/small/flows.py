"""Models that use torch.distributions: flows, variational autoencoders, time series."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch
from torch import distributions, nn

from experiments.zoo.builders import Configuration, Made, tensors, transformers_model


class _Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
        self.decode = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, x: torch.Tensor) -> Any:
        mean, log_scale = self.encode(x).chunk(2, -1)
        posterior = distributions.Normal(mean, log_scale.exp())
        prior = distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
        decoded = self.decode(posterior.rsample())
        return decoded, distributions.kl_divergence(posterior, prior).sum(-1)


def _autoencoder() -> Made:
    return _Autoencoder(), (torch.randn(4, 32),), {}


class _Coupling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> Any:
        kept, changed = x.chunk(2, -1)
        scale, shift = self.net(kept).chunk(2, -1)
        scale = scale.tanh()
        return torch.cat((changed * scale.exp() + shift, kept), -1), scale.sum(-1)


class _Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Coupling() for _ in range(4))

    def forward(self, x: torch.Tensor) -> Any:
        density = x.new_zeros(x.shape[0])
        for layer in self.layers:
            x, scale = layer(x)
            density = density + scale
        normal = distributions.Normal(torch.zeros_like(x), torch.ones_like(x))
        base: Any = distributions.Independent(normal, 1)
        return density + base.log_prob(x)


def _coupling() -> Made:
    """Return RealNVP (Dinh et al., 2017) with the density of its inputs."""
    return _Flow(), (torch.randn(4, 16),), {}


class _Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 12))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        logits, mean, log_scale = self.net(x).chunk(3, -1)
        mixture = distributions.MixtureSameFamily(
            distributions.Categorical(logits=logits),
            distributions.Normal(mean, log_scale.exp()),
        )
        flow: Any = distributions.TransformedDistribution(
            mixture, [distributions.AffineTransform(0.0, 2.0), distributions.TanhTransform()]
        )
        return flow.log_prob(y.tanh())


def _spline_like() -> Made:
    """Return a flow of torch's own transforms on a categorical mixture of normals."""
    return _Mixture(), (torch.randn(4, 8), torch.randn(4)), {}


_SERIES: Final = tensors(
    past_values=(2, 24),
    past_time_features=(2, 24, 2),
    past_observed_mask=(2, 24),
    future_values=(2, 8),
    future_time_features=(2, 8, 2),
)
_SETTINGS: Final[dict[str, Any]] = {
    "prediction_length": 8,
    "context_length": 16,
    "lags_sequence": [1, 2, 8],
    "num_time_features": 2,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}


def _series(stem: str) -> Made:
    model = transformers_model(f"{stem}ForPrediction", f"{stem}Config", _SETTINGS)
    given = _SERIES()
    given["past_observed_mask"] = (given["past_observed_mask"] > -1).float()
    return model, (), given


def _named(name: str, factory: Any, package: str | None = None) -> Configuration:
    return Configuration(name, "distributions", factory, package, device="cpu", trained=True)


CONFIGURATIONS: Final = (
    _named("variational-autoencoder", _autoencoder),
    _named("realnvp", _coupling),
    _named("transformed-mixture", _spline_like),
    _named("time-series-transformer", partial(_series, "TimeSeriesTransformer"), "transformers"),
    _named("informer", partial(_series, "Informer"), "transformers"),
    _named("autoformer", partial(_series, "Autoformer"), "transformers"),
)

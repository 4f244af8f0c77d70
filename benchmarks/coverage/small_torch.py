"""Small models of torch alone: flows, forces, custom autograd, and models without a graph."""

import torch
from torch import distributions, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.coverage.small import named


def made(module, *inputs):
    return module, inputs, {}


def built(module, *shape):
    return made(module(), torch.randn(*shape))


class Calls(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.call = forward

    def forward(self, x):
        return self.call(x)


def stack(middle):
    if not isinstance(middle, nn.Module):
        middle = Calls(middle)
    layers = nn.Sequential(nn.Linear(32, 32), middle, nn.Linear(32, 32), nn.ReLU())
    return made(layers, torch.randn(4, 32))


# -- flows and variational autoencoders -------------------------------------------------------


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
        self.decode = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, x):
        mean, log_scale = self.encode(x).chunk(2, -1)
        posterior = distributions.Normal(mean, log_scale.exp())
        prior = distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
        decoded = self.decode(posterior.rsample())
        return decoded, distributions.kl_divergence(posterior, prior).sum(-1)


class Coupling(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 16))

    def forward(self, x):
        kept, changed = x.chunk(2, -1)
        scale, shift = self.net(kept).chunk(2, -1)
        scale = scale.tanh()
        return torch.cat((changed * scale.exp() + shift, kept), -1), scale.sum(-1)


class RealNVP(nn.Module):
    """The density of its inputs (Dinh et al., 2017)."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Coupling() for _ in range(4))

    def forward(self, x):
        density = x.new_zeros(x.shape[0])
        for layer in self.layers:
            x, scale = layer(x)
            density = density + scale
        normal = distributions.Normal(torch.zeros_like(x), torch.ones_like(x))
        return density + distributions.Independent(normal, 1).log_prob(x)


class Mixture(nn.Module):
    """A flow of torch's own transforms on a categorical mixture of normals."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 12))

    def forward(self, x, y):
        logits, mean, log_scale = self.net(x).chunk(3, -1)
        mixture = distributions.MixtureSameFamily(
            distributions.Categorical(logits=logits),
            distributions.Normal(mean, log_scale.exp()),
        )
        transforms = [distributions.AffineTransform(0.0, 2.0), distributions.TanhTransform()]
        return distributions.TransformedDistribution(mixture, transforms).log_prob(y.tanh())


def mixture():
    return made(Mixture(), torch.randn(4, 8), torch.randn(4))


# -- derivatives in forward -------------------------------------------------------------------


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1)
        )

    def forward(self, positions):
        distances = positions.unsqueeze(0) - positions.unsqueeze(1)
        squared = distances.square().sum(-1, keepdim=True)
        return self.net(torch.exp(-squared)).sum()


class Forces(nn.Module):
    def __init__(self):
        super().__init__()
        self.potential = Potential()


class AutogradForces(Forces):
    def forward(self, positions):
        with torch.enable_grad():
            positions = positions.detach().requires_grad_()
            energy = self.potential(positions)
            (slope,) = torch.autograd.grad(energy, positions, create_graph=self.training)
        return energy, -slope


class FunctionalForces(Forces):
    def forward(self, positions):
        slope, energy = torch.func.grad_and_value(self.potential)(positions)
        return energy, -slope


class Hamiltonian(nn.Module):
    """The time derivative of a Hamiltonian network (Greydanus et al., 2019)."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, state):
        slope = torch.func.grad(lambda one: self.energy(one).sum())(state)
        position, momentum = slope.chunk(2, -1)
        return torch.cat((momentum, -position), -1)


# -- custom autograd and unusual operators ----------------------------------------------------


class Round(torch.autograd.Function):
    """Straight-through rounding (Bengio et al., 2013)."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Reverse(torch.autograd.Function):
    """Reversed gradients (Ganin and Lempitsky, 2015)."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.scale * gradient, None


class Nearest(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, codes):
        chosen = torch.cdist(x, codes).argmin(-1)
        ctx.save_for_backward(chosen, codes)
        ctx.mark_non_differentiable(chosen)
        return codes[chosen], chosen

    @staticmethod
    def backward(ctx, gradient, _):
        chosen, codes = ctx.saved_tensors
        return gradient, torch.zeros_like(codes).index_add_(0, chosen, gradient)


class Quantiser(nn.Module):
    """A vector quantiser (van den Oord et al., 2017) with its own backward pass."""

    def __init__(self):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(8, 32))

    def forward(self, x):
        return Nearest.apply(x, self.codes)[0]


class FlexAttention(nn.Module):
    def __init__(self, masked):
        super().__init__()
        self.project = nn.Linear(32, 96)
        self.mask = (
            create_block_mask(_causal, None, None, 128, 128, device="cpu") if masked else None
        )

    def forward(self, x):
        parts = self.project(x).chunk(3, -1)
        heads = (part.unflatten(-1, (2, 16)).transpose(1, 2) for part in parts)
        if self.mask is not None:
            result = flex_attention(*heads, block_mask=self.mask)
        else:
            result = flex_attention(*heads, score_mod=_distance)
        return result.transpose(1, 2).flatten(2)


def _distance(score, batch, head, query, key):
    return score - (query - key).abs()


def _causal(batch, head, query, key):
    return query >= key


def flex(masked):
    layers = nn.Sequential(FlexAttention(masked), FlexAttention(masked))
    return made(layers, torch.randn(1, 128, 32))


class PackedRecurrence(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrence = nn.GRU(16, 16, batch_first=True)

    def forward(self, x, lengths):
        pack, pad = nn.utils.rnn.pack_padded_sequence, nn.utils.rnn.pad_packed_sequence
        packed = pack(x, lengths, batch_first=True, enforce_sorted=False)
        return pad(self.recurrence(packed)[0], batch_first=True)[0]


def packed_sequence():
    return made(PackedRecurrence(), torch.randn(3, 8, 16), torch.tensor([8, 5, 3]))


class Attention(nn.Module):
    """Attention that writes its keys and values into its own buffers."""

    def __init__(self):
        super().__init__()
        self.project, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.keys = nn.Buffer(torch.zeros(2, 16, 32))
        self.values = nn.Buffer(torch.zeros(2, 16, 32))

    def forward(self, x, position):
        query, key, value = self.project(x).chunk(3, -1)
        self.keys.index_copy_(1, position, key)
        self.values.index_copy_(1, position, value)
        attend = nn.functional.scaled_dot_product_attention
        return x + self.out(attend(query, self.keys, self.values))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(4))

    def forward(self, x, position):
        for layer in self.layers:
            x = layer(x, position)
        return x


def written_in_place():
    return made(Decoder(), torch.randn(2, 1, 32), torch.tensor([3]))


class Block(nn.Module):
    """A block that always computes its norm in float32."""

    def __init__(self):
        super().__init__()
        self.before, self.after = nn.Linear(32, 64), nn.Linear(64, 32)
        self.weight = nn.Parameter(torch.ones(32))

    def forward(self, x):
        hidden = self.after(nn.functional.gelu(self.before(x)))
        exact = hidden.to(torch.float32)
        exact = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + 1e-6)
        return x + self.weight * exact.to(hidden.dtype)


def blocks():
    return made(nn.Sequential(*(Block() for _ in range(4))), torch.randn(4, 32))


# -- models that capture must refuse ----------------------------------------------------------


def branch():
    return stack(lambda x: x if x.sum() > 0 else -x)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(32, 4)
        self.experts = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, x):
        chosen, result = self.gate(x).argmax(-1), torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            selected = chosen == index
            if selected.any():
                result[selected] = expert(x[selected])
        return result


def scripted():
    return stack(torch.jit.script(nn.Sequential(nn.Linear(32, 32), nn.Tanh())))


def packed_weights():
    """Return a model with weights packed in C++ objects of torch."""
    layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    model = torch.ao.quantization.quantize_dynamic(layers, {nn.Linear}, dtype=torch.qint8)
    return made(model, torch.randn(4, 64))


flow = named("distributions", trained=True)
force = named("forces")
under_autocast = named("autocast", trained=True, autocast="call")
own = named("own code", trained=True)
MODELS = (
    named("quantised")("packed-int8-mlp", packed_weights),
    named("cache")("cache-in-buffers", written_in_place),
    flow("variational-autoencoder", built, Autoencoder, 4, 32),
    flow("realnvp", built, RealNVP, 4, 16),
    flow("transformed-mixture", mixture),
    force("forces-autograd", built, AutogradForces, 6, 3),
    force("forces-functional", built, FunctionalForces, 6, 3),
    force("hamiltonian", built, Hamiltonian, 8, 4),
    under_autocast("autocast-block", blocks),
    under_autocast("autocast-block-inside", blocks, autocast="capture and call"),
    own("straight-through", lambda: stack(Round.apply)),
    own("gradient-reversal", lambda: stack(lambda x: Reverse.apply(x, 0.5))),
    own("vector-quantiser", lambda: stack(Quantiser())),
    own("flex-attention-score", flex, False, trained=False),
    own("flex-attention-mask", flex, True, trained=False),
    own("packed-sequence", packed_sequence, constants=("lengths",)),
    own("branch-on-data", branch),
    own("experts-if-any", built, Experts, 8, 32),
    own("scripted-part", scripted),
)

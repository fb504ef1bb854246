"""The two multi-set transformers in PyTorch, as fast as plain PyTorch allows.

A set is a tensor [batch, points, channels, features]. The multi-set transformer has one channel
that holds all d coordinates. The dimension-equivariant one has d channels of one coordinate each
and applies the same weights to every channel.

Six layouts hold the same parameters:

* ``eager``       one module per relation and projection, softmax(Q Kᵀ) V written out
* ``sdpa``        the same modules, ``scaled_dot_product_attention``
* ``fused``       all query, key and value projections that read one set are a single matrix product
* ``fused-sdpa``  both
* ``stacked``, ``stacked-sdpa``  both sets and all relations of a block in one operation
                  (torch_stacked.py)

Run this file to check that they agree, with ``--compile`` also when compiled (minutes).
"""

import re
import sys
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from torch_stacked import StackedBody, stack_state

SETS = 2
LAYOUTS = ("eager", "sdpa", "fused", "fused-sdpa", "stacked", "stacked-sdpa")


@dataclass(frozen=True)
class Config:
    dim: int
    equivariant: bool = False
    blocks: int = 4
    heads: int = 4

    @property
    def latent(self):
        return 16 if self.equivariant else 16 * self.dim

    @property
    def hidden(self):
        return 2 * self.latent


def preset(name, dim):
    """The configuration that ``setwise bench --model NAME --dim DIM`` measures."""
    presets = {"multi-set-transformer": False, "multi-set-transformer-equi": True}
    if name not in presets:
        raise ValueError(f"unknown model {name!r}; known are {', '.join(presets)}")
    return Config(dim, equivariant=presets[name])


def split_heads(x, heads):
    """[batch, points, channels, latent] to [batch, heads, points, channels * latent / heads].

    A head's vector is the concatenation over channels, so that its dot products sum over them.
    """
    return x.unflatten(-1, (heads, -1)).permute(0, 3, 1, 2, 4).flatten(-2)


def join_heads(x, channels):
    """The inverse of ``split_heads``."""
    return x.unflatten(-1, (channels, -1)).permute(0, 2, 3, 1, 4).flatten(-2)


def attend(q, k, v, scale, sdpa):
    """softmax(scale · q kᵀ) v over [batch, heads, points, width]."""
    if sdpa:
        return F.scaled_dot_product_attention(q, k, v, scale=scale)
    return torch.softmax((q * scale) @ k.transpose(-2, -1), dim=-1) @ v


class CompiledRelu(torch.autograd.Function):
    """ReLU whose gradient reads its output, which the next layer keeps anyway.

    For the usual ReLU the compiler saves a mask of booleans, and its code for that is slow on CPUs.
    """

    @staticmethod
    def forward(ctx, x):
        y = x.clamp_min(0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * y.sign()


def relu(x):
    return CompiledRelu.apply(x) if x.is_cpu and torch.compiler.is_compiling() else F.relu(x)


class Finish(nn.Module):
    """The layers after attention in a transformer block: U = LN(A + O), LN(U + FF(U))."""

    def __init__(self, latent, hidden, bias):
        super().__init__()
        self.out = nn.Linear(latent, latent, bias=bias)
        self.norm1 = nn.LayerNorm(latent)
        self.up = nn.Linear(latent, hidden)
        self.down = nn.Linear(hidden, latent)
        self.norm2 = nn.LayerNorm(latent)

    def forward(self, a, attended):
        u = self.norm1(a + self.out(attended))
        return self.norm2(u + self.down(relu(self.up(u))))


class Relation(nn.Module):
    """One transformer block: queries from set a, keys and values from set b."""

    def __init__(self, latent, hidden, heads, bias, sdpa):
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.scale = (latent / heads) ** -0.5
        self.q = nn.Linear(latent, latent, bias=bias)
        self.k = nn.Linear(latent, latent, bias=bias)
        self.v = nn.Linear(latent, latent, bias=bias)
        self.finish = Finish(latent, hidden, bias)

    def forward(self, a, b):
        q, k, v = (split_heads(x, self.heads) for x in (self.q(a), self.k(b), self.v(b)))
        attended = attend(q, k, v, self.scale, self.sdpa)
        return self.finish(a, join_heads(attended, a.shape[2]))


class Merge(nn.Module):
    """LN(A + ReLU(W [T_a1 ; T_a2]))."""

    def __init__(self, latent):
        super().__init__()
        self.linear = nn.Linear(SETS * latent, latent)
        self.norm = nn.LayerNorm(latent)

    def forward(self, a, related):
        return self.norm(a + relu(self.linear(torch.cat(related, dim=-1))))


class SplitBlock(nn.Module):
    def __init__(self, latent, hidden, heads, bias, sdpa):
        super().__init__()
        self.relations = nn.ModuleList(
            Relation(latent, hidden, heads, bias, sdpa) for _ in range(SETS * SETS)
        )
        self.merges = nn.ModuleList(Merge(latent) for _ in range(SETS))

    def forward(self, sets):
        return [
            self.merges[a](
                sets[a], [self.relations[a * SETS + b](sets[a], sets[b]) for b in range(SETS)]
            )
            for a in range(SETS)
        ]


class FusedBlock(nn.Module):
    """Projects each set once, to [q by key set | k by query set | v by query set]."""

    def __init__(self, latent, hidden, heads, bias, sdpa):
        super().__init__()
        self.heads, self.scale, self.sdpa = heads, (latent / heads) ** -0.5, sdpa
        self.project = nn.ModuleList(
            nn.Linear(latent, 3 * SETS * latent, bias=bias) for _ in range(SETS)
        )
        self.finish = nn.ModuleList(Finish(latent, hidden, bias) for _ in range(SETS * SETS))
        self.merges = nn.ModuleList(Merge(latent) for _ in range(SETS))

    def forward(self, sets):
        projected = [self.project[s](x).chunk(3 * SETS, dim=-1) for s, x in enumerate(sets)]
        merged = []
        for a, x in enumerate(sets):
            related = []
            for b in range(SETS):
                parts = projected[a][b], projected[b][SETS + a], projected[b][2 * SETS + a]
                q, k, v = (split_heads(p, self.heads) for p in parts)
                attended = join_heads(attend(q, k, v, self.scale, self.sdpa), x.shape[2])
                related.append(self.finish[a * SETS + b](x, attended))
            merged.append(self.merges[a](x, related))
        return merged


class Pool(nn.Module):
    """Pooling by attention with one seed: [batch, points, latent] to [batch, latent]."""

    def __init__(self, latent, hidden, heads, layout):
        super().__init__()
        self.heads, self.scale = heads, (latent / heads) ** -0.5
        self.fused, self.sdpa = layout.startswith("fused"), layout.endswith("sdpa")
        self.seed = nn.Parameter(torch.empty(1, latent))
        nn.init.xavier_uniform_(self.seed)
        self.q = nn.Linear(latent, latent)
        if self.fused:
            self.kv = nn.Linear(latent, 2 * latent)
        else:
            self.k = nn.Linear(latent, latent)
            self.v = nn.Linear(latent, latent)
        self.finish = Finish(latent, hidden, bias=True)

    def forward(self, x):
        x = x.unsqueeze(2)
        seed = self.seed.view(1, 1, 1, -1)
        k, v = self.kv(x).chunk(2, dim=-1) if self.fused else (self.k(x), self.v(x))
        q, k, v = (split_heads(p, self.heads) for p in (self.q(seed), k, v))
        attended = attend(q.expand(x.shape[0], -1, -1, -1), k, v, self.scale, self.sdpa)
        return self.finish(seed, join_heads(attended, 1)).flatten(1)


class MultiSetTransformer(nn.Module):
    """Two sets [batch, points, dim] to one number [batch]."""

    def __init__(self, config, layout):
        super().__init__()
        if layout not in LAYOUTS:
            raise ValueError(f"unknown layout {layout!r}; known are {', '.join(LAYOUTS)}")
        self.config, self.layout = config, layout
        latent, hidden, heads = config.latent, config.hidden, config.heads
        self.decoder = nn.Sequential(
            nn.Linear(SETS * latent, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )
        self.stacked = layout.startswith("stacked")
        if self.stacked:
            scale, sdpa = (latent / heads) ** -0.5, layout.endswith("sdpa")
            self.body = StackedBody(config, lambda q, k, v: attend(q, k, v, scale, sdpa))
            return
        n_in = 1 if config.equivariant else config.dim
        args = latent, hidden, heads, not config.equivariant
        make = {
            "eager": lambda: SplitBlock(*args, sdpa=False),
            "sdpa": lambda: SplitBlock(*args, sdpa=True),
            "fused": lambda: FusedBlock(*args, sdpa=False),
            "fused-sdpa": lambda: FusedBlock(*args, sdpa=True),
        }[layout]
        self.inputs = nn.ModuleList(nn.Linear(n_in, latent) for _ in range(SETS))
        self.blocks = nn.ModuleList(make() for _ in range(config.blocks))
        self.pools = nn.ModuleList(Pool(latent, hidden, heads, layout) for _ in range(SETS))

    def forward(self, x, y):
        if self.stacked:
            return self.decoder(self.body(x, y)).squeeze(-1)
        axis = 3 if self.config.equivariant else 2
        sets = [project(s.unsqueeze(axis)) for project, s in zip(self.inputs, (x, y))]
        for block in self.blocks:
            sets = block(sets)
        # One channel needs no maximum, and amax's backward costs a pass.
        reduce = (lambda s: s.amax(dim=2)) if self.config.equivariant else (lambda s: s.squeeze(2))
        pooled = [pool(reduce(s)) for pool, s in zip(self.pools, sets)]
        return self.decoder(torch.cat(pooled, dim=-1)).squeeze(-1)


def convert_state(state, blocks, layout):
    """The parameters of the ``eager`` or ``sdpa`` layout, rearranged for another one."""
    if layout.startswith("stacked"):
        return stack_state(convert_state(state, blocks, "fused"))
    if not layout.startswith("fused"):
        return dict(state)
    result = dict(state)

    def take(keys):
        """Removes parameters and returns them concatenated, or None where they have no bias."""
        return torch.cat([result.pop(key) for key in keys]) if keys[0] in result else None

    for kind in ("weight", "bias"):
        joined = {}
        for s in range(SETS):
            joined[f"pools.{s}.kv.{kind}"] = take([f"pools.{s}.{part}.{kind}" for part in "kv"])
            for block in range(blocks):
                at = f"blocks.{block}.relations"
                pairs = [("q", s * SETS + other) for other in range(SETS)]
                pairs += [(part, other * SETS + s) for part in "kv" for other in range(SETS)]
                keys = [f"{at}.{relation}.{part}.{kind}" for part, relation in pairs]
                joined[f"blocks.{block}.project.{s}.{kind}"] = take(keys)
        result.update({key: value for key, value in joined.items() if value is not None})
    # relations.R.finish.* of a split block is finish.R.* of a fused one
    return {re.sub(r"relations\.(\d+)\.finish", r"finish.\1", key): v for key, v in result.items()}


def check(name, dim, compiled=False, batch=5, points=17):
    """Asserts that all layouts agree in output and gradients, and the symmetries of the model."""
    torch.manual_seed(dim)
    config = preset(name, dim)
    reference = MultiSetTransformer(config, "eager")
    with torch.no_grad():  # LayerNorm starts at 1 and 0, which hides a wrong order
        for parameter in reference.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    x, y = torch.randn(batch, points, dim), torch.randn(batch, points, dim)

    def run(model, x, y):
        x = x.clone().requires_grad_()
        output = model(x, y)
        return output.detach(), torch.autograd.grad(output.sum(), x)[0]

    def parameter_gradients(model, call):
        model.zero_grad()
        call(x, y).sum().backward()
        return {key: parameter.grad for key, parameter in model.named_parameters()}

    expected, gradient = run(reference, x, y)
    expected_gradients = parameter_gradients(reference, reference)
    for layout in LAYOUTS:
        model = MultiSetTransformer(config, layout)
        model.load_state_dict(convert_state(reference.state_dict(), config.blocks, layout))
        plain = model
        if compiled:
            model = torch.compile(model, dynamic=False)
        output, grad = run(model, x, y)
        difference = (output - expected).abs().max().item()
        grad_difference = ((grad - gradient).abs().max() / gradient.abs().max()).item()
        variant = f"compile:{layout}" if compiled else layout
        print(f"{name} d={dim} {variant}: output {difference:.1e}, gradient {grad_difference:.1e}")
        assert difference < 1e-5 * max(1, expected.abs().max().item()) and grad_difference < 1e-4
        gradients = parameter_gradients(plain, model)
        for key, value in convert_state(expected_gradients, config.blocks, layout).items():
            assert torch.allclose(gradients[key], value, rtol=1e-3, atol=1e-4 * value.abs().max().item() + 1e-5), key

        order = torch.randperm(points)
        assert (run(model, x[:, order], y)[0] - output).abs().max() < 1e-4, "order of points matters"
        if config.equivariant:
            order = torch.arange(dim).roll(1)
            moved = run(model, x[..., order], y[..., order])[0]
            assert (moved - output).abs().max() < 1e-4, "order of dimensions matters"
            if dim > 1:
                mismatched = run(model, x[..., order], y)[0]
                assert (mismatched - output).abs().max() > 1e-4, "dimensions of X and Y are not matched"


if __name__ == "__main__":
    for model_name in ("multi-set-transformer", "multi-set-transformer-equi"):
        for d in (1, 2, 3, 8):
            check(model_name, d)
        if "--compile" in sys.argv:
            check(model_name, 2, compiled=True)

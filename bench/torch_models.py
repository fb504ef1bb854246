"""The two multi-set transformers in PyTorch, written to be as fast as plain PyTorch allows.

A set is a tensor [batch, points, channels, features]. The multi-set transformer has one channel that
holds all d coordinates; the dimension-equivariant one has d channels of one coordinate each and applies
the same weights to every channel. Everything else is shared.

Three layouts hold the same parameters:

* ``eager``   one module per relation and projection, softmax(Q Kᵀ) V written out
* ``sdpa``    the same modules, ``scaled_dot_product_attention``
* ``fused``   all query, key and value projections that read one set are a single matrix product
* ``stacked`` the weights of all relations are stacked, so that a block is a few batched products
              (both sets must have the same number of points)

``compile:LAYOUT`` is ``torch.compile`` of any of them. Run this file to check that all layouts agree.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

SETS = 2
LAYOUTS = ("eager", "sdpa", "fused", "fused-sdpa", "stacked")


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


class Finish(nn.Module):
    """What follows attention in a transformer block: U = LN(A + O), LN(U + FF(U))."""

    def __init__(self, latent, hidden, bias):
        super().__init__()
        self.out = nn.Linear(latent, latent, bias=bias)
        self.norm1 = nn.LayerNorm(latent)
        self.up = nn.Linear(latent, hidden)
        self.down = nn.Linear(hidden, latent)
        self.norm2 = nn.LayerNorm(latent)

    def forward(self, a, attended):
        u = self.norm1(a + self.out(attended))
        return self.norm2(u + self.down(F.relu(self.up(u))))


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
        return self.norm(a + F.relu(self.linear(torch.cat(related, dim=-1))))


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
    """Projects each set once, to [q for each partner | k for each asker | v for each asker]."""

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


class StackedLinear(nn.Module):
    """`count` linear layers side by side: [count, rows, n_in] to [count, rows, n_out]."""

    def __init__(self, count, n_in, n_out, bias=True):
        super().__init__()
        bound = n_in**-0.5
        self.weight = nn.Parameter(torch.empty(count, n_in, n_out).uniform_(-bound, bound))
        self.bias = None
        if bias:
            self.bias = nn.Parameter(torch.empty(count, 1, n_out).uniform_(-bound, bound))

    def forward(self, x):
        return torch.bmm(x, self.weight) if self.bias is None else torch.baddbmm(self.bias, x, self.weight)


class StackedNorm(nn.Module):
    def __init__(self, count, latent):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(count, 1, latent))
        self.bias = nn.Parameter(torch.zeros(count, 1, latent))

    def forward(self, x):
        return torch.addcmul(self.bias, F.layer_norm(x, x.shape[-1:]), self.weight)


class StackedBlock(nn.Module):
    """All relations at once; a set tensor is [sets, batch * points * channels, latent]."""

    def __init__(self, latent, hidden, heads, bias):
        super().__init__()
        self.heads, self.scale = heads, (latent / heads) ** -0.5
        relations = SETS * SETS
        self.project = StackedLinear(SETS, latent, 3 * SETS * latent, bias)
        self.out = StackedLinear(relations, latent, latent, bias)
        self.norm1 = StackedNorm(relations, latent)
        self.up = StackedLinear(relations, latent, hidden)
        self.down = StackedLinear(relations, hidden, latent)
        self.norm2 = StackedNorm(relations, latent)
        self.merge = StackedLinear(SETS, SETS * latent, latent)
        self.norm3 = StackedNorm(SETS, latent)

    def forward(self, x, shape):
        batch, points, channels = shape
        width = x.shape[-1] // self.heads
        # [owner, batch, points, channels, (q | k | v), partner, heads, width]
        p = self.project(x).view(SETS, batch, points, channels, 3, SETS, self.heads, width)

        def arrange(part, owner, partner):
            order = [0] * 2
            order[owner], order[partner] = 0, 4
            return p.select(4, part).permute(*order, 1, 5, 2, 3, 6).reshape(
                SETS * SETS * batch, self.heads, points, channels * width
            )

        q, k, v = arrange(0, 0, 1), arrange(1, 1, 0), arrange(2, 1, 0)
        attended = attend(q, k, v, self.scale, True)
        attended = join_heads(attended, channels).reshape(SETS * SETS, -1, x.shape[-1])
        a = x.unsqueeze(1).expand(-1, SETS, -1, -1).reshape(SETS * SETS, -1, x.shape[-1])
        u = self.norm1(a + self.out(attended))
        t = self.norm2(u + self.down(F.relu(self.up(u))))
        t = t.view(SETS, SETS, -1, x.shape[-1]).transpose(1, 2).reshape(SETS, x.shape[1], -1)
        return self.norm3(x + F.relu(self.merge(t)))


class Pool(nn.Module):
    """Pooling by attention with one seed: [batch, points, latent] to [batch, latent]."""

    def __init__(self, latent, hidden, heads, layout):
        super().__init__()
        self.heads, self.scale, self.sdpa = heads, (latent / heads) ** -0.5, layout not in ("eager", "fused")
        self.seed = nn.Parameter(torch.empty(1, latent))
        nn.init.xavier_uniform_(self.seed)
        self.q = nn.Linear(latent, latent)
        self.fused = layout in ("fused", "fused-sdpa", "stacked")
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
        n_in = 1 if config.equivariant else config.dim
        args = latent, hidden, heads, not config.equivariant
        make = {
            "eager": lambda: SplitBlock(*args, sdpa=False),
            "sdpa": lambda: SplitBlock(*args, sdpa=True),
            "fused": lambda: FusedBlock(*args, sdpa=False),
            "fused-sdpa": lambda: FusedBlock(*args, sdpa=True),
            "stacked": lambda: StackedBlock(*args),
        }[layout]
        self.inputs = nn.ModuleList(nn.Linear(n_in, latent) for _ in range(SETS))
        self.blocks = nn.ModuleList(make() for _ in range(config.blocks))
        self.pools = nn.ModuleList(Pool(latent, hidden, heads, layout) for _ in range(SETS))
        self.decoder = nn.Sequential(
            nn.Linear(SETS * latent, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, x, y):
        axis = 3 if self.config.equivariant else 2
        sets = [project(s.unsqueeze(axis)) for project, s in zip(self.inputs, (x, y))]
        if self.layout == "stacked":
            shape = sets[0].shape
            z = torch.stack(sets).flatten(1, 3)
            for block in self.blocks:
                z = block(z, shape[:3])
            sets = z.view(SETS, *shape).unbind(0)
        else:
            for block in self.blocks:
                sets = block(sets)
        # One channel needs no maximum, and amax's backward would cost a pass.
        reduce = (lambda s: s.amax(dim=2)) if self.config.equivariant else (lambda s: s.squeeze(2))
        pooled = [pool(reduce(s)) for pool, s in zip(self.pools, sets)]
        return self.decoder(torch.cat(pooled, dim=-1)).squeeze(-1)


def convert_state(state, blocks, layout):
    """The parameters of the ``eager`` or ``sdpa`` layout, rearranged for another one."""
    if layout in ("eager", "sdpa"):
        return dict(state)
    result = {key: value for key, value in state.items() if not key.startswith("blocks.")}
    for s in range(SETS):
        for kind in ("weight", "bias"):
            key, value = f"pools.{s}.k.{kind}", f"pools.{s}.v.{kind}"
            result[f"pools.{s}.kv.{kind}"] = torch.cat([result.pop(key), result.pop(value)])

    def relation(block, a, b, name):
        return state.get(f"blocks.{block}.relations.{a * SETS + b}.{name}")

    pairs = [(a, b) for a in range(SETS) for b in range(SETS)]
    for block in range(blocks):
        into = f"blocks.{block}"

        def put(name, kind, tensors):
            """Stores one tensor per set or relation, stacked or under its number."""
            if any(t is None for t in tensors):
                return
            if layout.startswith("fused"):
                result.update({f"{into}.{name.format(i)}.{kind}": t for i, t in enumerate(tensors)})
            else:
                name = name.replace("finish.{}.", "").replace("merges.{}.linear", "merge")
                name = name.replace("merges.{}.norm", "norm3").replace(".{}", "")
                matrices = [t.T if t.dim() == 2 else t.unsqueeze(0) for t in tensors]
                result[f"{into}.{name}.{kind}"] = torch.stack(matrices)

        for kind in ("weight", "bias"):
            if relation(block, 0, 0, f"q.{kind}") is not None:
                put("project.{}", kind, [
                    torch.cat(
                        [relation(block, s, other, f"q.{kind}") for other in range(SETS)]
                        + [relation(block, other, s, f"k.{kind}") for other in range(SETS)]
                        + [relation(block, other, s, f"v.{kind}") for other in range(SETS)]
                    )
                    for s in range(SETS)
                ])
            for part in ("out", "norm1", "up", "down", "norm2"):
                put(f"finish.{{}}.{part}", kind,
                    [relation(block, a, b, f"finish.{part}.{kind}") for a, b in pairs])
            for part in ("linear", "norm"):
                put(f"merges.{{}}.{part}", kind,
                    [state[f"{into}.merges.{s}.{part}.{kind}"] for s in range(SETS)])
    return result


def check(name, dim, batch=5, points=17):
    """Asserts that all layouts agree in output and gradient, and the symmetries of the model."""
    torch.manual_seed(dim)
    config = preset(name, dim)
    reference = MultiSetTransformer(config, "eager")
    with torch.no_grad():  # LayerNorm starts at 1 and 0, which would hide a mistake in the order
        for parameter in reference.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    x, y = torch.randn(batch, points, dim), torch.randn(batch, points, dim)

    def run(model, x, y):
        x = x.clone().requires_grad_()
        output = model(x, y)
        return output.detach(), torch.autograd.grad(output.sum(), x)[0]

    expected, gradient = run(reference, x, y)
    for layout in LAYOUTS:
        model = MultiSetTransformer(config, layout)
        model.load_state_dict(convert_state(reference.state_dict(), config.blocks, layout))
        output, grad = run(model, x, y)
        difference = (output - expected).abs().max().item()
        grad_difference = ((grad - gradient).abs().max() / gradient.abs().max()).item()
        print(f"{name} d={dim} {layout}: output {difference:.1e}, gradient {grad_difference:.1e}")
        assert difference < 1e-5 * max(1, expected.abs().max().item()) and grad_difference < 1e-4

        order = torch.randperm(points)
        assert (run(model, x[:, order], y)[0] - output).abs().max() < 1e-4, "order of points matters"
        if config.equivariant:
            order = torch.arange(dim).roll(1)
            moved = run(model, x[..., order], y[..., order])[0]
            assert (moved - output).abs().max() < 1e-4, "order of dimensions matters"
            if dim > 1:
                torn = run(model, x[..., order], y)[0]
                assert (torn - output).abs().max() > 1e-4, "dimensions of X and Y are not matched"


if __name__ == "__main__":
    for model_name in ("multi-set-transformer", "multi-set-transformer-equi"):
        for d in (1, 2, 3, 8):
            check(model_name, d)

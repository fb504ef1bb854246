"""The ``stacked`` layouts: all relations of a block, and both sets, in one operation each.

Sets of equal size are stacked along a leading axis of groups, [groups, rows, features], and the
weights of the two sets or four relations of a block along the same axis. A block is then a handful
of batched operations instead of four times as many small ones, which suits a GPU. The parameters
are those of the other layouts; ``torch_models.convert_state`` rearranges them.
"""

import re

import torch
import torch.nn.functional as F
from torch import nn

SETS = 2


def partial_sums(rows, groups, width, height):
    """Number of partial sums (split-K) of a weight gradient's sum over rows.

    The gradient is small and the sum is long, so one sum occupies few of the GPU's multiprocessors.
    Tiles of 128 by 128 are to be about as many as multiprocessors.
    """
    tiles = groups * -(-width // 128) * -(-height // 128)
    max_parts = max(1, min(16, 132 // tiles))
    return max(parts for parts in range(1, max_parts + 1) if rows % parts == 0)


class GroupedProduct(torch.autograd.Function):
    """[groups, rows, width] by [groups, width, height]; the weight gradient has partial sums."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        groups, rows, width = x.shape
        height = weight.shape[2]
        parts = partial_sums(rows, groups, width, height)
        by_part = groups * parts, rows // parts
        product = torch.bmm(x.reshape(*by_part, width).transpose(1, 2), gradient.reshape(*by_part, height))
        to_x = torch.bmm(gradient, weight.transpose(1, 2)) if ctx.needs_input_grad[0] else None
        return to_x, product.view(groups, parts, width, height).sum(1) if parts > 1 else product


class StackedLinear(nn.Module):
    """One linear map per group: [groups, rows, width] to [groups, rows, height]."""

    def __init__(self, groups, width, height, bias=True):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(groups, width, height))
        nn.init.uniform_(self.weight, -(width**-0.5), width**-0.5)
        self.bias = nn.Parameter(torch.zeros(groups, 1, height)) if bias else None

    def forward(self, x):
        y = GroupedProduct.apply(x, self.weight)
        return y if self.bias is None else y + self.bias


class StackedNorm(nn.Module):
    def __init__(self, groups, latent):
        super().__init__()
        self.latent = latent
        self.weight = nn.Parameter(torch.ones(groups, 1, latent))
        self.bias = nn.Parameter(torch.zeros(groups, 1, latent))

    def forward(self, x):
        return torch.addcmul(self.bias, F.layer_norm(x, (self.latent,)), self.weight)


class StackedFinish(nn.Module):
    def __init__(self, groups, latent, hidden, bias):
        super().__init__()
        self.out = StackedLinear(groups, latent, latent, bias)
        self.norm1 = StackedNorm(groups, latent)
        self.up = StackedLinear(groups, latent, hidden)
        self.down = StackedLinear(groups, hidden, latent)
        self.norm2 = StackedNorm(groups, latent)

    def forward(self, add, attended):
        u = self.norm1(add(self.out(attended)))
        return self.norm2(u + self.down(F.relu(self.up(u))))


class StackedMerge(nn.Module):
    def __init__(self, latent):
        super().__init__()
        self.linear = StackedLinear(SETS, SETS * latent, latent)
        self.norm = StackedNorm(SETS, latent)

    def forward(self, x, related):
        return self.norm(x + F.relu(self.linear(related)))


class StackedBlock(nn.Module):
    """One block on [sets, batch · points · channels, latent]."""

    def __init__(self, latent, hidden, heads, bias, attend):
        super().__init__()
        self.heads, self.attend = heads, attend
        # As in the fused layout: [q by key set | k by query set | v by query set].
        self.project = StackedLinear(SETS, latent, 3 * SETS * latent, bias)
        self.finish = StackedFinish(SETS * SETS, latent, hidden, bias)
        self.merges = StackedMerge(latent)

    def forward(self, x, shape):
        batch, points, channels = shape
        latent = x.shape[-1]
        projected = self.project(x).view(SETS, batch, points, channels, 3, SETS, self.heads, -1)

        def part(index, order):
            """One of q, k, v, as [query set · key set · batch, heads, points, channels · width]."""
            each = projected.select(4, index).permute(*order, 1, 5, 2, 3, 6)
            return each.reshape(SETS * SETS * batch, self.heads, points, -1)

        # The axes of a part are (set, batch, points, channels, other set, heads, width).
        # Queries come from the query set, keys and values from the key set.
        q, k, v = part(0, (0, 4)), part(1, (4, 0)), part(2, (4, 0))
        attended = self.attend(q, k, v)
        attended = attended.unflatten(0, (SETS * SETS, batch)).unflatten(-1, (channels, -1))
        attended = attended.permute(0, 1, 3, 4, 2, 5).reshape(SETS * SETS, -1, latent)

        def add_set(o):
            return (o.unflatten(0, (SETS, SETS)) + x.unsqueeze(1)).flatten(0, 1)

        related = self.finish(add_set, attended).unflatten(0, (SETS, SETS))
        return self.merges(x, related.transpose(1, 2).flatten(2))


class StackedPool(nn.Module):
    """[sets, batch, points, latent] to [batch, sets · latent]."""

    def __init__(self, latent, hidden, heads, attend):
        super().__init__()
        self.heads, self.attend = heads, attend
        self.seed = nn.Parameter(torch.empty(SETS, 1, latent))
        nn.init.xavier_uniform_(self.seed)
        self.q = StackedLinear(SETS, latent, latent)
        self.kv = StackedLinear(SETS, latent, 2 * latent)
        self.finish = StackedFinish(SETS, latent, hidden, bias=True)

    def forward(self, x):
        sets, batch, points, latent = x.shape
        kv = self.kv(x.flatten(1, 2)).view(sets * batch, points, 2, self.heads, -1).transpose(1, 3)
        q = self.q(self.seed).view(sets, 1, self.heads, 1, -1).expand(-1, batch, -1, -1, -1)
        attended = self.attend(q.reshape(sets * batch, self.heads, 1, -1), kv.select(2, 0), kv.select(2, 1))
        pooled = self.finish(lambda o: o + self.seed, attended.reshape(sets, batch, latent))
        return pooled.transpose(0, 1).flatten(1)


class StackedBody(nn.Module):
    """From two sets [batch, points, dim] to the input of the decoder, [batch, sets · latent]."""

    def __init__(self, config, attend):
        super().__init__()
        latent, hidden, heads = config.latent, config.hidden, config.heads
        self.equivariant = config.equivariant
        self.inputs = StackedLinear(SETS, 1 if config.equivariant else config.dim, latent)
        bias = not config.equivariant
        self.blocks = nn.ModuleList(
            StackedBlock(latent, hidden, heads, bias, attend) for _ in range(config.blocks)
        )
        self.pools = StackedPool(latent, hidden, heads, attend)

    def forward(self, x, y):
        batch, points, dim = x.shape
        channels = dim if self.equivariant else 1
        both = torch.stack([x, y]).view(SETS, batch * points * channels, -1)
        both = self.inputs(both)
        for block in self.blocks:
            both = block(both, (batch, points, channels))
        both = both.view(SETS, batch, points, channels, -1)
        return self.pools(both.amax(dim=3) if self.equivariant else both.squeeze(3))


def stack_state(state):
    """The parameters of the ``fused`` layout, rearranged for the stacked ones."""
    result, groups = {}, {}
    for key, value in state.items():
        match = re.search(r"(inputs|project|finish|merges|pools)\.(\d+)\.", key)
        if match is None:
            result[key] = value
            continue
        if value.dim() == 2 and not key.endswith("seed"):
            value = value.T
        stacked = f"body.{key[: match.end(1)]}.{key[match.end() :]}"
        groups.setdefault(stacked, []).append((int(match[2]), value.reshape(-1, value.shape[-1])))
    for key, members in groups.items():
        result[key] = torch.stack([value for _, value in sorted(members, key=lambda member: member[0])])
    return result

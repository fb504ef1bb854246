"""The floor of a training step: its arithmetic and its memory traffic, counted from the shapes.

The model is an ideal that keeps nothing on the chip between layers and wastes nothing else:

* Bias, ReLU, residual and layer norm are the epilogue of the product before them. Attention is one
  operation whose scores stay on the chip. Only results of such operations ("activations") are
  stored.
* Forward, an activation is written once and read once. Backward, it is read once more, and its
  gradient is written once and read once. These are five passes, also where two operations read one
  activation.
* Weights are small beside activations; they count for Adam, see `parameter_bytes`.
* Elementwise arithmetic is free.

At small widths an activation fits the card's L2 cache and does not travel to memory, so the memory
side is no strict bound there.
"""

from dataclasses import dataclass

SETS = 2
FLOAT = 4


@dataclass(frozen=True)
class Work:
    """One training step."""

    linear_flop: float
    attention_flop: float
    recomputed_flop: float  # scores recomputed in the backward pass, not part of the floor
    activation_bytes: float
    parameter_bytes: float

    @property
    def flop(self):
        return self.linear_flop + self.attention_flop

    @property
    def bytes(self):
        return self.activation_bytes + self.parameter_bytes

    def floor_ms(self, flop_per_second, bytes_per_second):
        """The floor, and which of the two times it is."""
        arithmetic, memory = self.flop / flop_per_second * 1e3, self.bytes / bytes_per_second * 1e3
        return max((arithmetic, "arithmetic"), (memory, "memory"))


def step(dim, equivariant, latent, hidden, blocks, parameters, batch, points):
    """Counts a step of a multi-set transformer with PMA pooling, two sets of `points` elements."""
    channels = dim if equivariant else 1
    rows = batch * points * channels  # of one set
    relations = SETS * SETS

    # Multiplications of the linear layers, forward.
    inputs = SETS * rows * (dim // channels) * latent
    relation = rows * (4 * latent * latent + 2 * latent * hidden)  # q, k, v, out; up, down
    merge = rows * SETS * latent * latent
    pool_rows = batch * points  # after the maximum over channels
    pool = pool_rows * 2 * latent * latent + batch * (latent * latent + 2 * latent * hidden)  # k, v; finish
    decoder = batch * (SETS * latent * hidden + hidden)
    body = blocks * (relations * relation + SETS * merge) + SETS * pool + decoder
    # Two operations each: forward, input gradient and weight gradient. The data has no gradient.
    linear_flop = 2 * (3 * body + 2 * inputs)

    # One product of attention: all pairs of points; heads and channels together have the width of a
    # row of all channels.
    scores = blocks * relations * batch * points * points * channels * latent + SETS * batch * points * latent
    # Forward q kᵀ and p v; backward the gradients of q, k, v and p. A kernel that stores no scores
    # recomputes them.
    attention_flop, recomputed_flop = 2 * 6 * scores, 2 * scores

    # Numbers in the activations: q, k, v, attended, u, hidden and result of a relation; a merged set;
    # the sets after the input layer; activations of the pools and the decoder.
    activations = blocks * rows * (relations * (6 * latent + hidden) + SETS * latent)
    activations += SETS * rows * latent
    activations += SETS * (pool_rows * 2 * latent + batch * (3 * latent + hidden)) + batch * hidden
    activation_bytes = 5 * FLOAT * activations
    # The gradient is written and read; the parameter and Adam's two moments are read and written.
    parameter_bytes = 8 * FLOAT * parameters
    return Work(linear_flop, attention_flop, recomputed_flop, activation_bytes, parameter_bytes)

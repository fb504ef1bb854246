"""Learn the size of the intersection of two sets, from nothing but examples.

A symbol is a one-hot vector of eight; a set is two to six draws, so a symbol may come twice. The answer is the number of different
symbols in both sets. Learns in under a minute and demands 95 % right answers on fresh examples. Run it whole
(`python examples/python/intersection.py [MODEL.safetensors]`) or cell by cell in an editor that knows `# %%`.
"""

# %% The task: draws one example, two sets and the answer
import sys

import numpy as np

import setwise

SYMBOLS = 8
one_hot = np.eye(SYMBOLS, dtype=np.float32)


def draw(rng):
    a, b = (rng.integers(SYMBOLS, size=rng.integers(2, 7)) for _ in range(2))
    return [one_hot[a], one_hot[b]], len(set(a) & set(b))


# %% A model, and its training
model = setwise.Model.create("multi-set-transformer", dim=SYMBOLS, latent=16, hidden=32, blocks=2, seed=2)
print(model)
history = setwise.fit(model, draw, steps=800, loss="mse", learning_rate=3e-3, seed=1)
print(history)

# %% Fresh examples, all asked in one call
rng = np.random.default_rng(99)
sets, targets = zip(*(draw(rng) for _ in range(2000)))
first, second = zip(*sets)
answers = model(first, second)
accuracy = np.mean(np.round(answers) == targets)
print(f"{100 * accuracy:.1f} % of {len(targets)} fresh examples right")

# %% One example, as a user would ask
a, b = [0, 1, 2, 2], [2, 3, 1, 7, 7]
print(f"{a} and {b} have {model(one_hot[a], one_hot[b]):.2f} symbols in common")

# %% Keep it; `setwise predict MODEL A B` and `Model.load` read it
if len(sys.argv) > 1:
    model.save(sys.argv[1])
    print(f"wrote {sys.argv[1]}")

assert accuracy >= 0.95, "below the 95 % this example stands for"

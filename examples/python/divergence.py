"""How far apart are two samples? KL divergence with its interval, for one pair and for many at once.

Run it whole (`python examples/python/divergence.py [FIGURE.png]`) or cell by cell in an editor that knows `# %%`. The figure needs matplotlib;
without it the same is drawn with characters.
"""

# %% Two samples, whose divergence is known
import sys

import numpy as np

import setwise

rng = np.random.default_rng(3)
ROWS, DIM = 400, 3


def draw(shift):
    """Rows of a Gaussian with unit variances, whose first mean is `shift`."""
    return rng.normal(size=(ROWS, DIM)) + [shift, 0.0, 0.0]


p, q = draw(0.0), draw(1.0)
estimate = setwise.kl(p, q)
print(estimate)
print(f"the true value is {0.5:.4f}; the number alone is {float(estimate):.4f}, the interval {estimate.interval}")

# %% Another method: the closed form, for samples that are Gaussian
print(setwise.kl(p, q, method="gaussian"))

# %% Many pairs in one call: the divergence grows with the square of the shift
shifts = np.linspace(0.0, 1.6, 9)
truth = 0.5 * shifts**2
estimates = setwise.kl([draw(0.0) for _ in shifts], [draw(shift) for shift in shifts])
within = sum(e.interval[0] <= t <= e.interval[1] for e, t in zip(estimates, truth))
print(f"\n{within} of {len(shifts)} intervals hold the true value\n")

# %% A plot of it
WIDTH = 60
scale = WIDTH / max(*truth, *(e.interval[1] for e in estimates))
print("shift  estimates (o) with intervals (-), true values (|)")
for shift, t, e in zip(shifts, truth, estimates):
    line = [" "] * (WIDTH + 1)
    low, middle, high = (max(0, round(x * scale)) for x in (e.interval[0], e.value, e.interval[1]))
    line[low : high + 1] = "-" * (high + 1 - low)
    line[round(t * scale)] = "|"
    line[middle] = "o"
    print(f"{shift:5.2f}  {''.join(line).rstrip()}")

try:
    import matplotlib
except ImportError:
    print("\nmatplotlib is not installed, so there is no figure")
else:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    low, high = np.array([e.interval for e in estimates]).T
    values = np.array([float(e) for e in estimates])
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    axes.plot(shifts, truth, color="black", linewidth=1, label="true")
    axes.errorbar(shifts, values, [values - low, high - values], fmt="o", capsize=3, label="setwise.kl, 90 % interval")
    axes.set(xlabel="shift of one mean", ylabel="KL(P‖Q) in nats")
    axes.legend()
    path = sys.argv[1] if len(sys.argv) > 1 else "divergence.png"
    figure.savefig(path, dpi=150)
    print(f"\nwrote {path}")

# %% What this example stands for
assert np.mean([abs(float(e) - t) for e, t in zip(estimates, truth)]) < 0.25

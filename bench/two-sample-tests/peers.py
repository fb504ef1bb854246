"""Power of other two-sample tests: MMDAgg, MMD-FUSE, energy distance, C2ST, each implemented here.

    python peers.py --settings classical --repetitions 200 [--device cuda] [-o peers.json]

The settings are those of `setwise reproduce two-sample`. Needs NumPy and PyTorch.

| test     | source                          | here |
|----------|---------------------------------|------|
| MMDAgg   | Schrab et al. 2023              | the kernels of MMD-FUSE, uniform weights, 500 + 499 permutations |
| MMD-FUSE | Biggs, Schrab, Gretton 2023     | 10 Gaussian and 10 Laplace kernels, 999 permutations |
| energy   | Székely, Rizzo 2004             | columns standardised |
| C2ST     | Lopez-Paz, Oquab 2017; Kim 2021 | one hidden layer of 32, mean difference of logits, 499 permutations |

C2ST learns from half of the rows. The authors' code of MMDAgg has a geometric grid of bandwidths and 2,000 + 2,000 permutations. That of MMD-FUSE has
2,000 permutations, Laplace kernels exp(-sqrt(2) d / h) and a sharper exponential mean.
"""

import argparse
import json
import math
import time

import numpy as np
import torch

KERNELS = 10


# Settings. Each draws P with n rows and Q with m rows.


def normals(rng, n, d):
    return rng.standard_normal((n, d))


def changed(change):
    """Normal rows, and normal rows that are changed."""

    def draw(rng, n, m, d):
        q = normals(rng, m, d)
        change(q, rng)
        return normals(rng, n, d), q

    return draw


def add(columns, by):
    def change(q, _):
        q[:, columns] += by

    return change


def scale(columns, by):
    def change(q, _):
        q[:, columns] *= by

    return change


def correlate(rho):
    def change(q, _):
        q[:, 1] = rho * q[:, 0] + math.sqrt(1 - rho * rho) * q[:, 1]

    return change


def student(degrees):
    def change(q, rng):
        scales = (degrees - 2) / (2.0 * rng.standard_gamma(degrees / 2, len(q)))
        q *= np.sqrt(scales)[:, None]

    return change


def cluster(share, deviation, centre):
    def change(q, rng):
        chosen = rng.random(len(q)) < share
        q[chosen] *= deviation
        q[chosen, 0] += centre

    return change


def rotated_boxes(angle):
    def boxes(rng, n, d, angle):
        rows = normals(rng, n, d)
        x, y = (rng.random((n, 2)).T - 0.5) * math.sqrt(12)
        rows[:, 0] = x * math.cos(angle) + y * math.sin(angle)
        rows[:, 1] = y * math.cos(angle) - x * math.sin(angle)
        return rows

    return lambda rng, n, m, d: (boxes(rng, n, d, 0.0), boxes(rng, m, d, angle))


def mixture_of_four(rng, n, m, d):
    def blobs(rows, first):
        which = rng.integers(0, 4, rows)
        centres = np.stack([40.0 * (which % 2) - 20.0, 40.0 * (which // 2) - 20.0], 1)
        deviations = np.where(which == 0, first, 1.0)
        return centres + deviations[:, None] * normals(rng, rows, 2)

    return blobs(n, 1.0), blobs(m, 1.3)


def perturbed_uniform(amplitude):
    def bump(u):
        with np.errstate(all="ignore"):
            up = np.where(np.abs(4 * u + 3) < 1, np.exp(-1 / (1 - (4 * u + 3) ** 2)), 0.0)
            down = np.where(np.abs(4 * u + 1) < 1, np.exp(-1 / (1 - (4 * u + 1) ** 2)), 0.0)
        return up - down

    def draw(rng, n, m, d):
        signs = rng.choice([-1.0, 1.0], 2**d)
        rows = np.empty((0, d))
        while len(rows) < m:
            x = rng.random((4 * m, d))
            density = np.ones(len(x))
            for cell, sign in enumerate(signs):
                product = np.prod([bump(2 * x[:, r] - (1 + (cell >> r & 1))) for r in range(d)], 0)
                density += amplitude * math.e**d * sign * product
            rows = np.concatenate([rows, x[rng.random(len(x)) * (1 + amplitude) < density]])
        return rng.random((n, d)), rows[:m]

    return draw


ALL = slice(None)
SETTINGS = {
    "classical": [
        ("shift of all columns", 2, 200, changed(add(ALL, 0.2))),
        ("shift of all columns", 20, 200, changed(add(ALL, 0.11))),
        ("shift of one column", 50, 300, changed(add(0, 0.35))),
        ("scale of all columns", 2, 300, changed(scale(ALL, 1.15))),
        ("scale of all columns", 20, 200, changed(scale(ALL, 1.06))),
        ("scale of one column", 20, 500, changed(scale(0, 1.25))),
        ("correlation", 2, 300, changed(correlate(0.25))),
        ("correlation", 20, 500, changed(correlate(0.3))),
        ("tails, t with 8 degrees", 2, 1000, changed(student(8.0))),
        ("tails, t with 8 degrees", 20, 200, changed(student(8.0))),
        ("rotation", 2, 500, rotated_boxes(math.pi / 8)),
        ("rotation", 10, 1000, rotated_boxes(math.pi / 6)),
        ("new cluster of 3 %", 2, 500, changed(cluster(0.03, 0.2, 2.0))),
        ("new cluster of 3 %", 10, 500, changed(cluster(0.03, 0.3, 2.0))),
    ],
    "published": [
        (name, d, n, draw)
        for n in (500, 1000, 1500, 2000, 2500, 3000)
        for name, d, draw in (
            ("mixture of four", 2, mixture_of_four),
            ("perturbed uniform", 1, perturbed_uniform(0.2)),
            ("perturbed uniform", 2, perturbed_uniform(0.4)),
        )
    ],
    "null": [
        ("normal", 2, 200, changed(add(0, 0.0))),
        ("normal", 10, 100, changed(add(0, 0.0))),
    ],
}


# Tests. `labels` is [rows, 1 + permutations], one for rows of P; the first column is the observed one.


def permuted_labels(n, m, count, device):
    labels = torch.zeros(count + 1, n + m, device=device)
    labels[:, :n] = 1.0
    order = torch.rand(count, n + m, device=device).argsort(1)
    labels[1:] = labels[1:].gather(1, order)
    return labels.T.contiguous()


def mmd(kernel, labels, n, m):
    """Unbiased squared MMD of all labels; the diagonal of `kernel` is zero."""
    rows = kernel @ labels
    first = (labels * rows).sum(0)
    between = rows.sum(0) - first
    second = kernel.sum() - 2 * between - first
    return first / (n * (n - 1)) + second / (m * (m - 1)) - 2 * between / (n * m)


def collection(z):
    """Gaussian and Laplace kernels from half the 5 % to twice the 95 % quantile of distances."""
    for distances, kernel in (
        (torch.cdist(z, z), lambda s, h: torch.exp(-((s / h) ** 2) / 2)),
        (torch.cdist(z, z, p=1.0), lambda s, h: torch.exp(-s / h)),
    ):
        above = distances.triu(1).flatten()
        above = above[above > 0][:: max(1, len(above) // 1_000_000)]
        low, high = torch.quantile(above, torch.tensor([0.05, 0.95], device=z.device)).tolist()
        low, high = 0.5 * low, 2.0 * high
        for k in range(KERNELS):
            matrix = kernel(distances, low + (high - low) * k / (KERNELS - 1))
            yield matrix.fill_diagonal_(0.0)


def aggregated(values, level):
    """MMDAgg: is any statistic above its quantile, with levels corrected on other permutations?"""
    half = values.shape[1] // 2
    observed, first, second = values[:, :1], values[:, : half + 1], values[:, half + 1 :]
    ordered = first.sort(1).values
    count = ordered.shape[1]

    def thresholds(u):
        place = min(count - 1, math.ceil((1 - u / len(values)) * count) - 1)
        return ordered[:, place : place + 1]

    low, high = 0.0, float(len(values))
    for _ in range(50):
        u = (low + high) / 2
        if (second > thresholds(u)).any(0).float().mean().item() <= level:
            low = u
        else:
            high = u
    return bool((observed > thresholds(low)).any())


def kernel_tests(z, n, m, labels, level):
    values, scaled = [], []
    for kernel in collection(z):
        value = mmd(kernel, labels, n, m)
        norm = (kernel.square().sum() / (len(z) * (len(z) - 1))).sqrt()
        values.append(value)
        scaled.append(value / norm)
    rate = math.sqrt(n * (n - 1))
    fused = torch.logsumexp(rate * torch.stack(scaled), 0)
    return aggregated(torch.stack(values), level), p_value(fused) <= level


def p_value(values):
    return (values >= values[0]).float().mean().item()


def energy(z, n, m, labels):
    standardised = (z - z.mean(0)) / z.std(0)
    distances = torch.cdist(standardised, standardised, compute_mode="donot_use_mm_for_euclid_dist")
    return p_value(mmd(-distances.fill_diagonal_(0.0), labels, n, m))


def c2st(z, n, m, generator):
    """Half of the rows of each sample to learn from; permutations of the labels of the others."""
    device = z.device
    p, q = (torch.randperm(k, generator=generator, device=device) for k in (n, m))
    learn = torch.cat([p[: n // 2], n + q[: m // 2]])
    rest = torch.cat([p[n // 2 :], n + q[m // 2 :]])
    x = (z - z.mean(0)) / z.std(0)
    y = torch.zeros(n + m, device=device)
    y[:n] = 1.0
    d, h = z.shape[1], 32
    weights = [torch.randn(d, h, generator=generator, device=device) / math.sqrt(d), torch.zeros(h, device=device),
               torch.randn(h, 1, generator=generator, device=device) / math.sqrt(h), torch.zeros(1, device=device)]
    for w in weights:
        w.requires_grad_()
    optimiser = torch.optim.AdamW(weights, lr=0.01, weight_decay=0.05)

    def logits(rows):
        return (torch.relu(rows @ weights[0] + weights[1]) @ weights[2] + weights[3])[:, 0]

    for _ in range(100):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits(x[learn]), y[learn])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        scores = logits(x[rest])
        first = n - n // 2
        labels = permuted_labels(first, m - m // 2, 499, device)
        return p_value(scores @ labels / first)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--settings", choices=SETTINGS, default="classical")
    parser.add_argument("--name", default="", help="part of the names of the settings")
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--permutations", type=int, default=999)
    parser.add_argument("--max-rows", type=int, default=10_000)
    parser.add_argument("--without-c2st", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--out")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    results = []
    for s, (name, d, n, draw) in enumerate(SETTINGS[args.settings]):
        if n > args.max_rows or args.name not in name:
            continue
        start, rejected = time.time(), {}
        for r in range(args.repetitions):
            rng = np.random.default_rng([args.seed, s, r])
            p, q = draw(rng, n, n, d)
            z = torch.tensor(np.concatenate([p, q]), dtype=torch.float32, device=args.device)
            generator = torch.Generator(args.device).manual_seed(r)
            torch.manual_seed(r)
            labels = permuted_labels(n, n, args.permutations, args.device)
            found = dict(zip(("MMDAgg", "MMD-FUSE"), kernel_tests(z, n, n, labels, 0.05)))
            found["energy"] = energy(z, n, n, labels) <= 0.05
            if not args.without_c2st:
                found["C2ST"] = c2st(z, n, n, generator) <= 0.05
            for test, reject in found.items():
                rejected[test] = rejected.get(test, 0) + int(reject)
        power = {test: count / args.repetitions for test, count in rejected.items()}
        results.append({"distributions": name, "columns": d, "rows": n, "rejected": power})
        print(f"{name:26} {d:3} {n:5} ", "  ".join(f"{t} {v:.3f}" for t, v in power.items()),
              f" {time.time() - start:.0f} s", flush=True)
    if args.out:
        with open(args.out, "w") as file:
            json.dump({"repetitions": args.repetitions, "cells": results}, file, indent=1)


if __name__ == "__main__":
    main()

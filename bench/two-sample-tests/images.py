"""How often two-sample tests see that the classes of real images have other shares.

    python images.py DATA_FOLDER --setwise PATH_TO_BINARY [--repetitions 100]

A row is an image: its first 20 principal components, fitted to other images of the data set. P has all classes with
equal shares. DATA_FOLDER holds `mnist`, `fashion-mnist` and `notmnist` in the format of MNIST. Needs NumPy.
"""

import argparse
import csv
import gzip
import pathlib
import subprocess
import tempfile

import numpy as np

ROWS = 500
COMPONENTS = 20


def idx(folder, split):
    """Images and labels of a data set in the format of MNIST."""

    def read(data):
        def part(kind, offset):
            (path,) = (data / folder).glob(f"{split}-{kind}-*.gz")
            return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=offset)

        labels = part("labels", 8)
        return part("images", 16).reshape(len(labels), -1), labels

    return read


SETS = {
    "MNIST": idx("mnist", "train"),
    "Fashion-MNIST": idx("fashion-mnist", "t10k"),
    "notMNIST": idx("notmnist", "t10k"),
}


def one_class(share):
    def shares(rng):
        others = (1 - share) / 9
        out = np.full(10, others)
        out[rng.integers(10)] = share
        return out

    return shares


def tilted(rng):
    """From 5 % to 15 %, in a random order of the classes."""
    return rng.permutation(np.linspace(0.05, 0.15, 10))


CHANGES = {
    "none": one_class(0.1),
    "one class 10 % to 16 %": one_class(0.16),
    "one class 10 % to 4 %": one_class(0.04),
    "one class missing": one_class(0.0),
    "shares from 5 % to 15 %": tilted,
}
METHODS = ("adaptive", "energy", "mmd")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--setwise", default="setwise")
    parser.add_argument("--repetitions", type=int, default=100)
    args = parser.parse_args()
    for set_name, read in SETS.items():
        images, labels = read(args.data)
        rng = np.random.default_rng(1)
        order = rng.permutation(len(images))
        images, labels = images[order].astype(np.float32) / 255, labels[order]
        fitted = images[:3000]
        mean = fitted.mean(0)
        _, _, axes = np.linalg.svd(fitted - mean, full_matrices=False)
        rows = (images[3000:] - mean) @ axes[:COMPONENTS].T
        by_class = [np.flatnonzero(labels[3000:] == c) for c in range(10)]

        def draw(shares):
            """P and Q without an image in common."""
            p, q = [], []
            for members, a, b in zip(by_class, rng.multinomial(ROWS, np.full(10, 0.1)), rng.multinomial(ROWS, shares)):
                chosen = rng.permutation(members)
                p.append(chosen[:a])
                q.append(chosen[a : a + b])
            return np.concatenate(p), np.concatenate(q)

        for change, shares in CHANGES.items():
            with tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                lines = []
                for r in range(args.repetitions):
                    p, q = draw(shares(rng))
                    np.save(folder / f"p{r}.npy", rows[p])
                    np.save(folder / f"q{r}.npy", rows[q])
                    lines.append(f"{folder}/p{r}.npy {folder}/q{r}.npy\n")
                (folder / "pairs.txt").write_text("".join(lines))
                power = []
                for method in METHODS:
                    command = [args.setwise, "test", "--pairs", folder / "pairs.txt", "--method", method,
                               "-o", folder / "out.csv"]
                    subprocess.run(command, check=True, capture_output=True)
                    with open(folder / "out.csv") as file:
                        results = list(csv.DictReader(file))
                    power.append(np.mean([float(result["p_value"]) <= 0.05 for result in results]))
            print(f"{set_name:13} {change:26}", "  ".join(f"{m} {v:.2f}" for m, v in zip(METHODS, power)), flush=True)


if __name__ == "__main__":
    main()

"""`ratio` gives the numbers of the command line, at the rows that are asked for."""

import subprocess

import numpy as np
import pytest

import setwise


def draw(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(600, 2)), rng.normal(size=(500, 2)) + [1.0, 0.0]


@pytest.fixture
def shifted():
    return draw(4)


def test_the_log_ratio_has_weights_and_a_size(shifted):
    p, q = shifted
    ratio = setwise.ratio(p, q)
    assert ratio.p.shape == (600,) and ratio.q.shape == ratio.log_ratio.shape == (500,)
    assert np.array_equal(ratio.log_ratio, ratio.q)
    assert ratio.weights.mean() == pytest.approx(1.0)
    assert ratio.effective_sample_size == pytest.approx(ratio.weights.sum() ** 2 / (ratio.weights**2).sum())
    assert ratio.warnings == () and ratio.n == (600, 500)
    assert repr(ratio).startswith("<log p/q at 500 rows; effective sample size ")


def test_log_ratios_are_near_the_true_ones():
    samples = [draw(seed) for seed in range(4, 9)]
    errors = [np.mean((setwise.ratio(p, q).p - (0.5 - p[:, 0])) ** 2) for p, q in samples]
    assert np.mean(errors) < 0.08


def test_other_rows(shifted):
    p, q = shifted
    at = np.array([[0.0, 0.0], [2.0, 0.0]])
    values = setwise.ratio(p, q, at=at).log_ratio
    assert values[0] > 0.0 > values[1]


def test_the_command_line_gives_the_same_numbers(shifted, tmp_path, program):
    paths = [tmp_path / name for name in ("p.npy", "q.npy")]
    for path, sample in zip(paths, shifted):
        np.save(path, sample)
    subprocess.run([program, "ratio", *paths, "-o", tmp_path / "ratio.csv"], check=True)
    table = np.genfromtxt(tmp_path / "ratio.csv", delimiter=",", skip_header=1, usecols=2)
    ratio = setwise.ratio(*shifted)
    assert np.allclose(table, np.concatenate([ratio.p, ratio.q]), atol=1e-6)


def test_mistakes(shifted):
    p, q = shifted
    with pytest.raises(ValueError, match="at"):
        setwise.ratio(p, q, at=np.zeros((3, 3)))
    with pytest.raises(ValueError, match="batch"):
        setwise.ratio([p, p], [q, q])
    with pytest.raises(ValueError, match="rows"):
        setwise.ratio(p[:3], q)

"""`kl` and `mi` give the numbers of the command line to the last digit."""

import copy
import pickle

import numpy as np
import pytest

import setwise
from conftest import ROOT


def assert_equal(estimate, answer):
    """Compares an estimate with the JSON of the command line."""
    dim = answer["dim"] if isinstance(answer["dim"], list) else [answer["dim"]]
    interval = None if answer["interval"] is None else tuple(answer["interval"])
    assert estimate.value == answer["estimate"]
    assert estimate.interval == interval
    assert (estimate.quantity, estimate.level, estimate.unit) == (answer["quantity"], answer["level"], answer["unit"])
    assert (list(estimate.n), list(estimate.dim)) == (answer["n"], dim)
    assert (estimate.method, estimate.interval_method) == (answer["method"], answer["interval_method"])
    assert len(estimate.warnings) == len(answer["warnings"])
    expected = answer.get("fallback")
    assert (estimate.fallback is None) == (expected is None)
    if expected is not None:
        fallback = estimate.fallback
        assert (fallback.method, fallback.value) == (expected["method"], expected["estimate"])
        interval = expected["interval"]
        assert fallback.interval == (None if interval is None else tuple(interval))


@pytest.fixture
def saved(tmp_path, samples):
    """The samples, and their files."""
    paths = tmp_path / "p.npy", tmp_path / "q.npy"
    for path, sample in zip(paths, samples):
        np.save(path, sample)
    return samples, paths


@pytest.mark.parametrize(
    "options",
    [{}, {"method": "knn", "k": 1}, {"k": 2}, {"method": "gaussian"}, {"method": "logistic"}, {"seed": 9}, {"method": "knn", "k": 7, "seed": 2**63 + 1}],
)
def test_kl_equals_the_command_line_to_the_last_digit(command, saved, options):
    (p, q), paths = saved
    flags = [flag for key, value in options.items() for flag in (f"--{key}", value)]
    assert_equal(setwise.kl(p, q, **options), command("kl", *paths, *flags))


@pytest.mark.parametrize(
    "options", [{}, {"method": "ksg", "k": 5, "variant": 2}, {"method": "gaussian"}, {"method": "mine", "seed": 4}]
)
def test_mi_equals_the_command_line_to_the_last_digit(command, saved, options):
    (p, q), paths = saved
    np.save(paths[0], p[:90])
    flags = [flag for key, value in options.items() for flag in (f"--{key}", value)]
    assert_equal(setwise.mi(p[:90], q, **options), command("mi", *paths, *flags))


def test_text_files_and_arrays_give_the_same_estimate(command):
    paths = [ROOT / "examples/samples" / name for name in ("p.csv", "q.csv")]
    p, q = (np.loadtxt(path, delimiter=",", skiprows=1) for path in paths)
    assert_equal(setwise.kl(p, q), command("kl", *paths))


def test_single_precision_is_read_exactly(command, saved):
    (p, q), paths = saved
    p, q = p.astype(np.float32), q.astype(np.float32)
    np.save(paths[0], p)
    np.save(paths[1], q)
    assert_equal(setwise.kl(p, q), command("kl", *paths))


def test_a_batch_gives_the_estimates_of_single_calls(samples):
    p, q = samples
    batch = setwise.kl([p, q, p[:50]], (q, p, q), seed=2)
    assert batch == [setwise.kl(p, q, seed=2), setwise.kl(q, p, seed=2), setwise.kl(p[:50], q, seed=2)]
    stacked = np.stack([p[:90], q])
    assert setwise.mi(stacked, stacked[::-1]) == [setwise.mi(p[:90], q), setwise.mi(q, p[:90])]
    assert setwise.kl([p.tolist()], [q.tolist()]) == [setwise.kl(p, q)]


def test_an_estimate_converts_to_float_and_prints_its_method(samples):
    estimate = setwise.kl(*samples)
    assert float(estimate) == estimate.value
    text = repr(estimate)
    assert text.startswith(f"<KL(P‖Q) = {estimate.value:.4f} nats, 90 % interval ") and "method pretrained" in text
    assert pickle.loads(pickle.dumps(estimate)) == copy.deepcopy(estimate) == estimate
    with pytest.raises(AttributeError):
        estimate.value = 0.0


def test_samples_outside_the_trained_ranges_have_a_fallback(command, tmp_path):
    rng = np.random.default_rng(5)
    p, q = rng.normal(size=(20, 2)), rng.normal(size=(25, 2)) + 0.5
    np.save(tmp_path / "p.npy", p)
    np.save(tmp_path / "q.npy", q)
    estimate = setwise.kl(p, q)
    assert estimate.method == "pretrained" and estimate.fallback.method != "pretrained"
    assert float(estimate.fallback) == estimate.fallback.value
    assert f"fallback, method {estimate.fallback.method}" in repr(estimate)
    assert_equal(estimate, command("kl", tmp_path / "p.npy", tmp_path / "q.npy"))


def test_warnings_name_the_arguments():
    p = np.repeat(np.arange(20.0), 2)
    estimate = setwise.kl(p, p + 0.5, method="knn")
    assert any(w.startswith("p: 20 of 40 rows repeat") for w in estimate.warnings), estimate.warnings
    assert "warning: p: 20 of 40 rows" in repr(estimate)
    batch = setwise.kl([p[:, None]], [p[:, None] + 0.5], method="knn")
    assert any(w.startswith("p[0]: ") for w in batch[0].warnings)


def test_one_axis_is_one_column(samples):
    p, q = samples
    assert setwise.kl(p[:, 0], q[:, 0]) == setwise.kl(p[:, :1], q[:, :1])
    assert setwise.mi(list(p[:, 0]), p[:, 1:].tolist()) == setwise.mi(p[:, :1], p[:, 1:])


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([[1.0, 2.0]], [[1.0]]), {}, "p has 2 columns, q has 1"),
        ((np.ones((3, 1)), np.ones((3, 1))), {"method": "knn"}, "p: has 3 rows, k = 3 needs at least 4"),
        ((np.ones((9, 1)), np.ones((9, 1))), {"method": "knn"}, "p: all rows are one point"),
        ((np.ones((9, 1)), np.ones((9, 1))), {"method": "ksg"}, "there is no method \"ksg\"; there are pretrained, knn, gaussian, logistic"),
        ((np.ones((9, 1)), np.ones((9, 1))), {"k": 0}, "k is 0"),
        ((np.ones((9, 1)), np.ones((9, 1))), {"k": -1}, "k: is -1"),
        ((np.ones((9, 1)), np.ones((9, 1))), {"seed": -1}, "seed: is -1"),
        (([np.ones((9, 1))], np.ones((9, 1))), {}, "p is a batch of samples and q is a single one"),
        (([np.ones((9, 1))] * 2, [np.ones((9, 1))]), {}, "p has 2 samples, q has 1"),
        (([np.ones((9, 1)), np.ones(9)], [np.ones((9, 1))] * 2), {}, r"p\[1\]: has shape \(9,\)"),
    ],
)
def test_samples_without_an_estimate_are_value_errors(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        setwise.kl(*arguments, **options)


def test_the_device_is_an_argument(samples):
    p, q, *_ = samples
    assert setwise.kl(p, q, device="cpu").value == setwise.kl(p, q).value
    with pytest.raises(RuntimeError, match='there is no device "gpu"; there are cpu, cuda and cuda:N'):
        setwise.kl(p, q, device="gpu")


def test_unpaired_rows_and_unknown_variants_are_value_errors(samples):
    with pytest.raises(ValueError, match="x has 120 rows, y has 90"):
        setwise.mi(*samples)
    with pytest.raises(ValueError, match="variant: is 3"):
        setwise.mi(samples[0], samples[0], variant=3)


def test_wrong_arguments_are_type_errors(samples):
    with pytest.raises(TypeError):
        setwise.kl(samples[0])
    with pytest.raises(TypeError):
        setwise.kl(*samples, "gaussian")
    with pytest.raises(TypeError):
        setwise.kl(*samples, method=3)
    with pytest.raises(TypeError):
        setwise.kl(*samples, neighbours=3)

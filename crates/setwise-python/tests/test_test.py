"""``setwise.test`` and ``setwise.independence``."""

import json

import numpy as np
import pytest

import setwise


def normals(seed, rows=200, columns=2):
    return np.random.default_rng(seed).normal(size=(rows, columns))


def test_shifted_samples_differ_and_equal_ones_do_not():
    found = setwise.test(normals(1), normals(2) + [0.0, 0.8])
    assert found.significant and found.p_value == 0.001 and found.alpha == 0.05
    assert found.n == (200, 200) and found.method == "adaptive"
    low, high = found.interval
    assert 0.5 < low < found.auc < high <= 1.0
    assert any(f.aspect == "column" and f.columns == ("column 2",) for f in found.findings)
    assert "p = 0.001, significant, AUC 0." in repr(found)
    same = setwise.test(normals(1), normals(3))
    assert not same.significant and same.p_value > 0.05
    assert json.dumps(found.to_dict()) and found.to_dict()["quantity"] == "test"


def test_three_samples_are_tested_in_pairs():
    found = setwise.test(normals(11), normals(12), normals(13) + 1.0, names=("a", "b", "c"))
    assert found.significant and found.auc is None
    assert {p.samples: p.significant for p in found.pairs} == {("a", "b"): False, ("a", "c"): True, ("b", "c"): True}
    assert all(p.adjusted >= p.p_value for p in found.pairs)


def test_designs_and_methods():
    subjects = 5.0 * normals(1)
    before, after = subjects + normals(2), subjects + normals(3) + 0.7
    assert not setwise.test(before, after).significant
    assert setwise.test(before, after, paired=True).significant
    site = np.repeat(["a", "b", "c", "d"], 50)
    p = {"x": normals(4)[:, 0] + 9.0 * (site < "c"), "site": site}
    q = {"x": normals(5)[:, 0] + 0.6 + 9.0 * (site < "c"), "site": site}
    assert setwise.test(p, q, blocks="site").significant
    assert setwise.test(before, after, method="energy").method == "energy distance"
    assert "bandwidth 2.0" in setwise.test(before, after, method="mmd", bandwidth=2.0).method


def test_mixed_columns_are_used_and_chosen():
    town = np.random.default_rng(0).choice(["Oslo", "Rome"], 200)
    x = normals(6)[:, 0]
    p = {"x": x, "town": town}
    # The same numbers in another order.
    q = {"x": np.roll(x, 1), "town": np.where(np.arange(200) < 60, "Lima", np.roll(town, 1))}
    assert setwise.test(p, q).significant
    assert not setwise.test(p, q, drop="town").significant
    assert not setwise.test(p, q, columns=["x"]).significant


def test_independence_is_rejected_for_every_dependence():
    x, noise = normals(8, 400, 1)[:, 0], normals(9, 400, 1)[:, 0]
    for y in (0.5 * x + noise, x**2 + noise, np.abs(x) * noise):
        assert setwise.independence(x, y).p_value == 0.001
    found = setwise.independence(x, noise)
    assert not found.significant and found.n == (400,)
    assert found.to_dict()["quantity"] == "independence"


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="names: has 1 names for 2 samples"):
        setwise.test(normals(1), normals(2), names=["a"])
    with pytest.raises(ValueError, match="two samples or more"):
        setwise.test(normals(1))
    with pytest.raises(ValueError, match="method"):
        setwise.test(normals(1), normals(2), method="magic")
    with pytest.raises(ValueError, match="bandwidth"):
        setwise.test(normals(1), normals(2), bandwidth=1.0)
    with pytest.raises(ValueError, match="row i of one belongs to row i"):
        setwise.independence(normals(1), normals(2, 20))
    with pytest.raises(ValueError, match="permutations"):
        setwise.test(normals(1), normals(2), permutations=-1)

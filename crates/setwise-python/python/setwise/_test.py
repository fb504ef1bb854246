"""Permutation tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import ArrayLike

from ._compare import as_list
from ._setwise import test_independence as _test_independence
from ._setwise import test_samples as _test_samples


@dataclass(frozen=True)
class Finding:
    """What a part of a test found.

    Attributes
    ----------
    aspect : what it looks at, such as "column", "dependence" or "shape"
    columns : names of the columns it found; empty if it looks at all of them
    p_value : p-value of this part alone
    """

    aspect: str
    columns: tuple[str, ...]
    p_value: float


@dataclass(frozen=True)
class PairTest:
    """The test of two of several samples.

    Attributes
    ----------
    samples : names of both
    p_value : p-value of these two alone
    adjusted : p-value among all pairs (Holm), at least that of all samples together
    significant : whether the adjusted p-value is at most the level
    auc, interval, findings, warnings : as those of ``Test``
    """

    samples: tuple[str, str]
    p_value: float
    adjusted: float
    significant: bool
    auc: float | None
    interval: tuple[float, float] | None
    findings: tuple[Finding, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Test:
    """The outcome of a permutation test.

    Attributes
    ----------
    p_value : p-value of equal distributions, or of independence
    alpha : level of significance
    significant : whether the p-value is at most the level
    auc : effect size of two independent samples: the probability that a score learnt on other rows is
        higher for a row of P than for one of Q; None for other designs
    interval : its 90 % interval
    findings : what each part of the test found, by p-value; those that name columns first
    pairs : tests of each two of three or more samples
    statistic : the fused evidence, or the energy distance or MMD
    permutations : random permutations that were compared
    as_large : permutations whose statistic is at least the observed one
    n : rows of each sample, or of X and Y
    method : name of the statistic
    warnings : sentences about the data

    Examples
    --------
    >>> import numpy as np, setwise
    >>> rng = np.random.default_rng(0)
    >>> found = setwise.test(rng.normal(size=(300, 2)), rng.normal(size=(300, 2)) + [0.0, 0.6])
    >>> found.significant, found.p_value
    (True, 0.001)
    """

    p_value: float
    alpha: float
    significant: bool
    auc: float | None
    interval: tuple[float, float] | None
    findings: tuple[Finding, ...]
    pairs: tuple[PairTest, ...]
    statistic: float
    permutations: int
    as_large: int
    n: tuple[int, ...]
    method: str
    warnings: tuple[str, ...]
    _json: str = field(repr=False, compare=False)

    # Its name begins as those of test classes do.
    __test__ = False

    def to_dict(self) -> dict[str, Any]:
        """All results: the object that ``--json`` prints."""
        return json.loads(self._json)

    def __repr__(self) -> str:
        parts = [f"p = {self.p_value:.3g}", "significant" if self.significant else "not significant"]
        if self.auc is not None and self.interval is not None:
            parts.append(f"AUC {self.auc:.3f} ({self.interval[0]:.3f} to {self.interval[1]:.3f})")
        if self.significant and self.findings:
            first = self.findings[0]
            parts.append(" ".join([first.aspect, *([" and ".join(first.columns)] if first.columns else [])]))
        return f"<{', '.join(parts)}; rows {', '.join(map(str, self.n))}>"


def _findings(found: list[dict[str, Any]]) -> tuple[Finding, ...]:
    return tuple(Finding(f["aspect"], tuple(f["columns"]), f["p_value"]) for f in found)


def _interval(of: dict[str, Any]) -> tuple[float, float] | None:
    return None if of["interval"] is None else (of["interval"][0], of["interval"][1])


def _test(text: str, names: Sequence[str]) -> Test:
    found = json.loads(text)
    pairs = tuple(
        PairTest(
            (names[pair["samples"][0]], names[pair["samples"][1]]),
            pair["p_value"],
            pair["adjusted"],
            pair["significant"],
            pair["auc"],
            _interval(pair),
            _findings(pair["findings"]),
            tuple(pair["warnings"]),
        )
        for pair in found.get("pairs", [])
    )
    return Test(
        found["p_value"],
        found["alpha"],
        found["significant"],
        found["auc"],
        _interval(found),
        _findings(found["findings"]),
        pairs,
        found["statistic"],
        found["permutations"],
        found["as_large"],
        tuple(found["n"]),
        found["method"],
        tuple(found["warnings"]),
        text,
    )


def test(
    *samples: Any,
    method: str = "adaptive",
    bandwidth: float | None = None,
    permutations: int = 999,
    alpha: float = 0.05,
    paired: bool = False,
    blocks: str | None = None,
    columns: Sequence[str] = (),
    drop: Sequence[str] = (),
    types: Mapping[str, str] | None = None,
    names: Sequence[str] | None = None,
    max_rows: int = 10_000,
    seed: int = 0,
    device: str = "cpu",
) -> Test:
    """Test whether two or more samples have one distribution, by permutation.

    Parameters
    ----------
    *samples : frame, dict of columns, array or path
        Two samples or more. Columns are matched by name. Of three or more, all together and each two
        are tested.
    method : str
        "adaptive" (many statistics in one), "energy" or "mmd"; the last two for two samples.
    bandwidth : float, optional
        Bandwidth of "mmd", in standard deviations; the median distance by default.
    permutations : int
        Random permutations; the smallest p-value is 1 / (permutations + 1).
    alpha : float
        Level of significance.
    paired : bool
        Rows i of all samples belong together, such as before and after.
    blocks : str, optional
        Column of blocks, such as sites or days: only rows of one block are exchanged.
    columns, drop : sequence of str
        Columns to test, or to leave out: names, numbers from 1, or ranges such as "a..d".
    types : mapping, optional
        Types of columns, such as {"zip": "category"}.
    names : sequence of str, optional
        Names of the samples in results.
    max_rows : int
        Most rows of each sample; "adaptive" takes up to 20 times the smallest sample.
    seed : int
        Seed of the permutations.
    device : str
        Device of "energy" and "mmd": "cpu", "cuda" or "cuda:1".

    Returns
    -------
    Test

    Examples
    --------
    >>> import numpy as np, setwise
    >>> rng = np.random.default_rng(1)
    >>> a, b, c = (rng.normal(size=(200, 3)) * [1, 1, scale] for scale in (1, 1, 2))
    >>> setwise.test(a, b).significant
    False
    >>> [pair.samples for pair in setwise.test(a, b, c, names=("a", "b", "c")).pairs if pair.significant]
    [('a', 'c'), ('b', 'c')]
    """
    if names is None:
        names = ("P", "Q") if len(samples) == 2 else [f"sample {i + 1}" for i in range(len(samples))]
    if len(names) != len(samples):
        raise ValueError(f"names: has {len(names)} names for {len(samples)} samples")
    text = _test_samples(
        list(samples),
        list(names),
        method,
        bandwidth,
        permutations,
        alpha,
        paired,
        blocks,
        as_list(columns),
        as_list(drop),
        dict(types or {}),
        max_rows,
        seed,
        device,
    )
    return _test(text, names)


# Tests that import it must not collect it.
test.__test__ = False  # type: ignore[attr-defined]


def independence(
    x: ArrayLike,
    y: ArrayLike,
    *,
    permutations: int = 999,
    alpha: float = 0.05,
    max_rows: int = 10_000,
    seed: int = 0,
) -> Test:
    """Test whether X and Y are independent, by permutation of the rows of Y.

    Parameters
    ----------
    x, y : array-like
        Samples with paired rows. An array with one axis is a sample with one column.
    permutations : int
        Random permutations; the smallest p-value is 1 / (permutations + 1).
    alpha : float
        Level of significance.
    max_rows : int
        Most rows; of more some are drawn at random.
    seed : int
        Seed of the permutations.

    Returns
    -------
    Test

    Examples
    --------
    >>> import numpy as np, setwise
    >>> rng = np.random.default_rng(2)
    >>> x = rng.normal(size=400)
    >>> setwise.independence(x, x**2 + rng.normal(size=400)).significant
    True
    """
    return _test(_test_independence(x, y, permutations, alpha, max_rows, seed), ())

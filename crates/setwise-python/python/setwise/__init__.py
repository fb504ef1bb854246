"""Functions of several sets: comparison of tables, estimators for samples, and models to train.

``compare`` tells what changed between two tables, ``test`` whether samples differ at all, and
``independence`` whether columns depend on each other. ``kl`` and ``mi`` estimate the KL divergence and the mutual information of samples, ``divergence``
other divergences, ``ratio`` the log density ratio at every row. ``Model`` is a function of one or
more sets, and ``fit`` trains it.

Arrays are NumPy arrays of any number type and stride, pandas and polars frames, PyTorch tensors on
the CPU, and lists. Calls use all cores (``RAYON_NUM_THREADS`` limits them) while other Python
threads run. Do not write to an array while a call reads it.

>>> import numpy as np, setwise
>>> rng = np.random.default_rng(1)
>>> p, q = rng.normal(size=(300, 2)), 2.0 * rng.normal(size=(300, 2))
>>> estimate = setwise.kl(p, q)
>>> 0.3 < float(estimate) < 1.0  # it is 0.636
True
"""

from ._compare import Comparison, compare
from ._fit import fit
from ._results import Estimate, Fallback, History, Ratio
from ._setwise import Model, __version__, divergence, kl, mi, presets, ratio
from ._test import Finding, PairTest, Test, independence, test

__all__ = [
    "Comparison",
    "Estimate",
    "Fallback",
    "Finding",
    "History",
    "Model",
    "PairTest",
    "Ratio",
    "Test",
    "__version__",
    "compare",
    "divergence",
    "fit",
    "independence",
    "kl",
    "mi",
    "presets",
    "ratio",
    "test",
]

"""Stubs of the native module; a test compares them with it."""

import os
from collections.abc import Sequence
from typing import Any, Literal, final, overload

from numpy.typing import ArrayLike, NDArray

from ._results import Estimate, Ratio

__all__ = ["Fit", "Model", "NativeComparison", "__version__", "compare_tables", "divergence", "kl", "mi", "presets", "ratio", "test_independence", "test_samples"]

__version__: str

# A list of arrays is a batch. So is an array with three axes, but types do not show axes.
@overload
def kl(
    p: Sequence[NDArray[Any]],
    q: Sequence[NDArray[Any]],
    *,
    method: Literal["pretrained", "knn", "gaussian", "logistic"] | None = None,
    k: int | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> list[Estimate]: ...
@overload
def kl(
    p: ArrayLike,
    q: ArrayLike,
    *,
    method: Literal["pretrained", "knn", "gaussian", "logistic"] | None = None,
    k: int | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> Estimate: ...
@overload
def mi(
    x: Sequence[NDArray[Any]],
    y: Sequence[NDArray[Any]],
    *,
    method: Literal["ksg", "gaussian", "copula", "mine"] | None = None,
    variant: Literal[1, 2] = 1,
    k: int = 3,
    seed: int = 0,
) -> list[Estimate]: ...
@overload
def mi(
    x: ArrayLike,
    y: ArrayLike,
    *,
    method: Literal["ksg", "gaussian", "copula", "mine"] | None = None,
    variant: Literal[1, 2] = 1,
    k: int = 3,
    seed: int = 0,
) -> Estimate: ...
@overload
def divergence(
    p: Sequence[NDArray[Any]],
    q: Sequence[NDArray[Any]],
    measure: Literal["kl", "reverse-kl", "js", "tv", "hellinger"],
    *,
    seed: int = 0,
) -> list[Estimate]: ...
@overload
def divergence(
    p: ArrayLike,
    q: ArrayLike,
    measure: Literal["kl", "reverse-kl", "js", "tv", "hellinger"],
    *,
    seed: int = 0,
) -> Estimate: ...
def presets() -> dict[str, str]: ...
def ratio(p: ArrayLike, q: ArrayLike, *, at: ArrayLike | None = None) -> Ratio: ...
@final
class Model:
    @staticmethod
    def create(preset: str = "multi-set-transformer", dim: int | None = None, *, seed: int = 0, **config: Any) -> Model: ...
    @staticmethod
    def load(path: str | os.PathLike[str]) -> Model: ...
    def save(self, path: str | os.PathLike[str]) -> None: ...
    @property
    def config(self) -> dict[str, Any]: ...
    @property
    def parameters(self) -> int: ...
    # Returns a number, an array, a tuple of arrays or a list of these.
    def __call__(self, *sets: Any, raw: bool = False) -> Any: ...
    def __reduce__(self) -> tuple[Any, tuple[bytes]]: ...
    @classmethod
    def _from_bytes(cls, bytes: bytes) -> Model: ...

@final
class Fit:
    def __new__(cls, model: Model, training: dict[str, Any], seed: int, data: list[Any] | None = None) -> Fit: ...
    def step(self, batch: list[Any] | None = None) -> tuple[float, float, float]: ...
    def close(self) -> None: ...

@final
class NativeComparison:
    def json(self) -> str: ...
    def html(self, fragment: bool) -> str: ...

def compare_tables(
    reference: Any,
    current: Any,
    names: list[str],
    alpha: float,
    min_effect: float,
    columns: list[str],
    drop: list[str],
    types: dict[str, str],
    seed: int,
) -> NativeComparison: ...
def test_samples(
    samples: list[Any],
    names: list[str],
    method: str,
    bandwidth: float | None,
    permutations: int,
    alpha: float,
    paired: bool,
    blocks: str | None,
    columns: list[str],
    drop: list[str],
    types: dict[str, str],
    max_rows: int,
    seed: int,
    device: str,
) -> str: ...
def test_independence(
    x: ArrayLike, y: ArrayLike, permutations: int, alpha: float, max_rows: int, seed: int
) -> str: ...

"""Classes of results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray


_SYMBOLS = {
    "kl": "KL(P‖Q)",
    "reverse-kl": "KL(Q‖P)",
    "js": "JS(P, Q)",
    "tv": "TV(P, Q)",
    "hellinger": "H(P, Q)",
    "mi": "I(X; Y)",
}


@dataclass(frozen=True)
class Fallback:
    """An estimate by another method, for comparison with one that may be far off.

    ``float(fallback)`` is the value.

    Attributes
    ----------
    method : name of the method
    value : the estimate, in nats
    interval : its interval, or None
    """

    method: str
    value: float
    interval: tuple[float, float] | None

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class Estimate:
    """An estimate with its interval, method and warnings; ``float(estimate)`` is the value.

    Attributes
    ----------
    quantity : "kl", "reverse-kl", "js", "tv", "hellinger" or "mi"
    value : the estimate; it may be negative
    interval : holds the true value with probability ``level``, apart from the estimator's bias;
        None if there are too few rows
    level : nominal coverage of the interval
    unit : "nats", or None for a pure number
    n : rows of P and Q, or number of pairs
    dim : columns of both samples, or of X and of Y
    method : name of the method
    interval_method : name of the interval's method
    warnings : sentences about data that is unfit for the method
    fallback : an estimate by another method if this one may be far off, else None

    Examples
    --------
    >>> import numpy as np, setwise
    >>> x = np.linspace(0.0, 1.0, 500)
    >>> float(setwise.kl(x, x + 0.1, method="gaussian")) > 0.0
    True
    """

    quantity: str
    value: float
    interval: tuple[float, float] | None
    level: float
    unit: str | None
    n: tuple[int, ...]
    dim: tuple[int, ...]
    method: str
    interval_method: str
    warnings: tuple[str, ...]
    fallback: Fallback | None

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        label = _SYMBOLS.get(self.quantity, self.quantity)
        unit = "" if self.unit is None else f" {self.unit}"
        interval = "no interval"
        if self.interval is not None:
            low, high = self.interval
            interval = f"{100 * self.level:.0f} % interval {low:.4f} to {high:.4f}"
        rows, columns = (" and ".join(map(str, numbers)) for numbers in (self.n, self.dim))
        lines = "".join(f"\n warning: {warning}" for warning in self.warnings)
        if self.fallback is not None:
            method, value = self.fallback.method, self.fallback.value
            lines += f"\n fallback, method {method}: {value:.4f}{unit}"
        text = f"{label} = {self.value:.4f}{unit}, {interval}"
        return f"<{text}; rows {rows}, columns {columns}, method {self.method}{lines}>"


@dataclass(frozen=True, eq=False)
class Ratio:
    """The log density ratio log p/q of two samples at rows.

    Attributes
    ----------
    log_ratio : log p/q at the rows of ``at``, which are those of Q by default
    weights : p/q at the same rows; at those of Q their mean is one, and they make averages over Q averages over P
    p : log p/q at the rows of P
    q : log p/q at the rows of Q
    effective_sample_size : rows of P that would be worth the weighted rows of Q
    n : rows of P and Q
    warnings : sentences about data that is unfit for the method
    """

    log_ratio: NDArray[Any]
    weights: NDArray[Any]
    p: NDArray[Any]
    q: NDArray[Any]
    effective_sample_size: float
    n: tuple[int, int]
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        lines = "".join(f"\n warning: {warning}" for warning in self.warnings)
        size = f"effective sample size {self.effective_sample_size:.0f} of {self.n[1]}"
        return f"<log p/q at {len(self.log_ratio)} rows; {size}; rows {self.n[0]} and {self.n[1]}{lines}>"


@dataclass
class History:
    """The history of a training: lists with one entry per step.

    Attributes
    ----------
    loss : the loss before the step
    gradient : the norm of the gradient, before clipping
    learning_rate : the learning rate
    seconds : duration of the training
    """

    loss: list[float] = field(default_factory=list)
    gradient: list[float] = field(default_factory=list)
    learning_rate: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.loss)

    def __repr__(self) -> str:
        if not self.loss:
            return "<History: no steps>"
        first, last = self.loss[0], self.loss[-1]
        return f"<History: {len(self)} steps in {self.seconds:.1f} s, loss {first:.4g} to {last:.4g}>"

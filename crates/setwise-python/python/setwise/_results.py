"""What calls answer with."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Fallback:
    """An estimate by another method, to hold one against that may be far off; ``float(fallback)`` is the number alone.

    Attributes
    ----------
    method : how it was made
    value : the number, in nats
    interval : its interval, or None
    """

    method: str
    value: float
    interval: tuple[float, float] | None

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class Estimate:
    """An estimate with what should be known about it; ``float(estimate)`` is the number alone.

    Attributes
    ----------
    quantity : "kl" or "mi"
    value : the number, reported as it is also where it is negative
    interval : where the true value lies with probability ``level``, but for the estimator's bias; None if there are too few
        rows
    level : nominal coverage of the interval
    unit : "nats"
    n : rows of P and Q, or number of pairs
    dim : columns of both, or of X and of Y
    method : how it was estimated
    interval_method : how the interval was found
    warnings : what makes the data unfit for the method, as sentences
    fallback : an estimate by another method where the warnings say that this one may be far off, else None

    Examples
    --------
    >>> import setwise
    >>> setwise.kl([-1.0, 0.0, 1.0], [0.0, 1.0, 2.0], method="gaussian")
    <KL(P‖Q) = 0.5000 nats, no interval; rows 3 and 3, columns 1, method gaussian
     note: there are too few rows for an interval>
    """

    quantity: str
    value: float
    interval: tuple[float, float] | None
    level: float
    unit: str
    n: tuple[int, ...]
    dim: tuple[int, ...]
    method: str
    interval_method: str
    warnings: tuple[str, ...]
    fallback: Fallback | None

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        what = {"kl": "KL(P‖Q)", "mi": "I(X; Y)"}.get(self.quantity, self.quantity)
        between = "no interval"
        if self.interval is not None:
            between = f"{100 * self.level:.0f} % interval {self.interval[0]:.4f} to {self.interval[1]:.4f}"
        rows, columns = (" and ".join(map(str, numbers)) for numbers in (self.n, self.dim))
        notes = "".join(f"\n note: {warning}" for warning in self.warnings)
        if self.fallback is not None:
            notes += f"\n beside it, method {self.fallback.method}: {self.fallback.value:.4f} {self.unit}"
        text = f"{what} = {self.value:.4f} {self.unit}, {between}"
        return f"<{text}; rows {rows}, columns {columns}, method {self.method}{notes}>"


@dataclass
class History:
    """How a training went: one entry per step.

    Attributes
    ----------
    loss : the loss before the step
    gradient : the length of the gradient, before clipping
    learning_rate : the learning rate
    seconds : how long the whole training took
    """

    loss: list[float] = field(default_factory=list)
    gradient: list[float] = field(default_factory=list)
    learning_rate: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def __len__(self) -> int:
        """Steps done."""
        return len(self.loss)

    def __repr__(self) -> str:
        if not self.loss:
            return "<History: no steps>"
        first, last = self.loss[0], self.loss[-1]
        return f"<History: {len(self)} steps in {self.seconds:.1f} s, loss {first:.4g} to {last:.4g}>"

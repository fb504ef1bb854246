"""Learning from a sampler or from arrays."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ._progress import Progress
from ._results import History
from ._setwise import Fit, Model

_SCHEDULES = {"cosine": {"cosine": {"final-fraction": 0.01}}, "constant": "constant"}

Example = tuple[Sequence[Any], Any]


def _optimizer(weight_decay: float, muon: float | None) -> str | Mapping[str, Mapping[str, float]]:
    if muon is None:
        return {"adamw": {"weight-decay": weight_decay}} if weight_decay else "adam"
    if weight_decay:
        raise ValueError("weight_decay: is given together with muon, which has none")
    return {"muon": {"learning-rate": muon}}


def fit(
    model: Model,
    sampler: Callable[[np.random.Generator], Example] | tuple[Sequence[Any], Any],
    *,
    steps: int,
    batch_size: int = 64,
    loss: str | Mapping[str, Mapping[str, float]] = "l1",
    learning_rate: float = 1e-3,
    schedule: str | Mapping[str, Mapping[str, float]] = "cosine",
    warmup_steps: int = 0,
    clip_norm: float | None = None,
    weight_decay: float = 0.0,
    muon: float | None = None,
    seed: int = 0,
    progress: bool = True,
) -> History:
    """Let a model learn, in place.

    Whatever ends the training, be it the last step, KeyboardInterrupt or an exception of the sampler, the model has what was
    learnt until then; an exception carries the history so far as its attribute ``history``. The same seed, the same result.

    Parameters
    ----------
    model : Model
        What learns. It may be called meanwhile, also by the sampler. Another fit of the same model starts with fresh moments.
    sampler : callable, or tuple (sets, targets)
        ``sampler(rng)`` draws one example, ``(sets, target)``: a list with an array for each set of the model, and a number (a
        vector where the model's ``output_width`` is above one; for a model that answers per element a list of arrays, one for each
        set). ``rng`` is a ``numpy.random.Generator``.
        A data set is ``(sets, targets)``: for each set of the model a list of arrays or an array [examples, rows, columns], and as
        many targets. It is gone through in random order, every example once before any comes again.
    steps : int
        Batches to learn from.
    batch_size : int
        Examples in each.
    loss : "l1", "mse", "bce", {"huber": {"delta": d}} or {"pinball": {"level": q}}
        Mean over all numbers of the answers.
    learning_rate : float
        The largest, of Adam.
    schedule : "cosine", "constant" or {"cosine": {"final-fraction": share}}
        After ``warmup_steps`` steps the learning rate falls in half a cosine wave to 1 % (or another share) of it, or stays.
    clip_norm : float, optional
        Gradients longer than this are shortened to it.
    weight_decay : float
        Share of a parameter taken off per step and learning rate.
    muon : float, optional
        Learning rate of the weight matrices of blocks and poolings, which then move by Muon, all else by Adam; 0.01 is a good start. It
        learns what Adam is slow at, and has no weight decay.
    seed : int
        Seed of ``rng``, of the order of a data set, and of dropout.
    progress : bool
        Whether to show a line with steps, loss and the time that is left, on standard error.

    Returns
    -------
    History

    Examples
    --------
    >>> import numpy as np, setwise
    >>> def difference_of_means(rng):
    ...     x, y = rng.normal(size=(rng.integers(5, 9), 1)), rng.normal(size=(rng.integers(5, 9), 1))
    ...     return [x, y], x.mean() - y.mean()
    >>> model = setwise.Model.create("single-set-rff", dim=1, latent=8, hidden=16, blocks=1, pooling="mean")
    >>> history = setwise.fit(
    ...     model, difference_of_means, steps=200, batch_size=16, learning_rate=1e-2, progress=False)
    >>> bool(np.mean(history.loss[-20:]) < 0.5 * np.mean(history.loss[:20]))
    True
    >>> bool(model([0.5, 0.7, 0.6], [-0.6, -0.5, -0.7]) > 0.5)
    True
    """
    if not isinstance(model, Model):
        raise TypeError(f"model: is of type {type(model).__name__}, a setwise.Model is wanted")
    training = {
        "steps": steps,
        "batch_size": batch_size,
        "loss": loss,
        "optimizer": _optimizer(weight_decay, muon),
        "learning_rate": learning_rate,
        "schedule": _SCHEDULES.get(schedule, schedule) if isinstance(schedule, str) else schedule,
        "warmup_steps": warmup_steps,
        "clip_norm": clip_norm,
    }
    draw = sampler if callable(sampler) else None
    history = History()
    columns = history.loss, history.gradient, history.learning_rate
    fitting = line = None
    start = time.monotonic()
    try:
        fitting = Fit(model, training, seed, _examples(sampler) if draw is None else None)
        rng = np.random.default_rng(seed)
        line = Progress(steps, progress)
        for done in range(1, steps + 1):
            outcome = fitting.step(None if draw is None else [_kept(draw(rng)) for _ in range(batch_size)])
            for values, value in zip(columns, outcome):
                values.append(value)
            line.step(done, outcome[0])
    except BaseException as error:
        # An interrupt may come between two of them.
        for values in columns:
            del values[min(map(len, columns)) :]
        history.seconds = time.monotonic() - start
        with contextlib.suppress(AttributeError, TypeError):
            setattr(error, "history", history)
        raise
    finally:
        if fitting is not None:
            fitting.close()
        if line is not None:
            line.close()
    history.seconds = time.monotonic() - start
    return history


def _kept(example: Any) -> Any:
    """An example as it is now: the sampler may write its next one into the same arrays."""
    if not isinstance(example, tuple) or len(example) != 2:
        return example
    return tuple([_copied(item) for item in part] if isinstance(part, (list, tuple)) else _copied(part) for part in example)


def _copied(item: Any) -> Any:
    if isinstance(item, list):
        return copy.deepcopy(item)
    # Arrays and pandas' frames have the one, tensors and polars' frames the other.
    own = getattr(item, "copy", None) or getattr(item, "clone", None)
    return own() if callable(own) else item


def _examples(data: Any) -> list[Example]:
    """A data set as a list of examples."""
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise TypeError(
            f"sampler: is of type {type(data).__name__}; a callable sampler(rng) -> (sets, target) "
            "or a tuple (sets, targets) is wanted"
        )
    sets, targets = data
    if not isinstance(sets, (tuple, list)):
        raise TypeError(f"sets: is of type {type(sets).__name__}; a list with an entry for each set of the model is wanted")
    if not isinstance(targets, (tuple, list)):
        # Masked targets stay masked, to be refused.
        targets = np.asanyarray(targets)
        if targets.ndim == 0:
            raise ValueError("targets: is a single number, one target per example is wanted")
    for k, entries in enumerate(sets):
        if not hasattr(entries, "__len__"):
            raise TypeError(f"sets[{k}]: is of type {type(entries).__name__}; the sets of all examples are wanted, as a list or an array")
    counts = [len(entries) for entries in (*sets, targets)]
    if len(set(counts)) > 1:
        spoken = ", ".join(f"sets[{k}] has {n}" for k, n in enumerate(counts[:-1]))
        raise ValueError(f"{spoken} examples, there are {counts[-1]} targets: all must have as many")
    return [(list(entries[:-1]), entries[-1]) for entries in zip(*sets, targets)]

"""Training with a sampler or with arrays."""

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
        raise ValueError("weight_decay: cannot be combined with muon; give one of them")
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
    """Train a model in place.

    The last step, a KeyboardInterrupt or an exception of the sampler ends the training. The model
    keeps the parameters of the last completed step. An exception has the history so far as its
    attribute ``history``. The same seed gives the same result.

    Parameters
    ----------
    model : Model
        The model to train. It may be called during the training, also by the sampler. Every fit
        starts with zero moments of the optimiser.
    sampler : callable, or tuple (sets, targets)
        ``sampler(rng)`` draws one example ``(sets, target)`` with a ``numpy.random.Generator``.
        ``sets`` is a list with an array for each set of the model. ``target`` is a number, or a
        vector if the model's ``output_width`` is above one. For a model with outputs per element
        it is a list with an array for each set.
        A data set is ``(sets, targets)``. ``sets`` has an entry for each set of the model: a list
        of arrays or an array [examples, rows, columns]. There are as many targets as examples.
        Every epoch has all examples in a random order.
    steps : int
        Number of batches.
    batch_size : int
        Examples per batch.
    loss : "l1", "mse", "bce", {"huber": {"delta": d}} or {"pinball": {"level": q}}
        Mean over all outputs.
    learning_rate : float
        Maximum learning rate of Adam.
    schedule : "cosine", "constant" or {"cosine": {"final-fraction": share}}
        Schedule after ``warmup_steps`` steps. "cosine" decays to 1 % of the learning rate, or to
        the given share.
    clip_norm : float, optional
        Maximum norm of the gradient; larger gradients are scaled down to it.
    weight_decay : float
        Weight decay of AdamW, per step and learning rate.
    muon : float, optional
        Learning rate of Muon for the weight matrices of blocks and poolings; try 0.01. Adam trains
        the other parameters. There is no weight decay.
    seed : int
        Seed of ``rng``, of the order of a data set, and of dropout.
    progress : bool
        Whether to show steps, loss and remaining time on standard error.

    Returns
    -------
    History

    Examples
    --------
    >>> import numpy as np, setwise
    >>> def difference_of_means(rng):
    ...     x, y = (rng.normal(size=(rng.integers(5, 9), 1)) for _ in range(2))
    ...     return [x, y], x.mean() - y.mean()
    >>> model = setwise.Model.create(
    ...     "single-set-rff", dim=1, latent=8, hidden=16, blocks=1, pooling="mean")
    >>> history = setwise.fit(
    ...     model, difference_of_means, steps=200, batch_size=16, learning_rate=1e-2,
    ...     progress=False)
    >>> bool(np.mean(history.loss[-20:]) < 0.5 * np.mean(history.loss[:20]))
    True
    >>> bool(model([0.5, 0.7, 0.6], [-0.6, -0.5, -0.7]) > 0.5)
    True
    """
    if not isinstance(model, Model):
        raise TypeError(f"model: is of type {type(model).__name__}; must be a setwise.Model")
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
            outcome = fitting.step(None if draw is None else [_copied_example(draw(rng)) for _ in range(batch_size)])
            for values, value in zip(columns, outcome):
                values.append(value)
            line.step(done, outcome[0])
    except BaseException as error:
        # An interrupt may leave the columns with different lengths.
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


def _copied_example(example: Any) -> Any:
    """A copy of an example, because the sampler may reuse its arrays."""
    if not isinstance(example, tuple) or len(example) != 2:
        return example
    return tuple(
        [_copied(item) for item in part] if isinstance(part, (list, tuple)) else _copied(part)
        for part in example
    )


def _copied(item: Any) -> Any:
    if isinstance(item, list):
        return copy.deepcopy(item)
    # Arrays and pandas frames have `copy`, tensors and polars frames have `clone`.
    copy_method = getattr(item, "copy", None) or getattr(item, "clone", None)
    return copy_method() if callable(copy_method) else item


def _examples(data: Any) -> list[Example]:
    """A data set as a list of examples."""
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise TypeError(
            f"sampler: is of type {type(data).__name__}; must be a callable sampler(rng) -> "
            "(sets, target) or a tuple (sets, targets)"
        )
    sets, targets = data
    if not isinstance(sets, (tuple, list)):
        raise TypeError(
            f"sets: is of type {type(sets).__name__}; must be a list with an entry for each set "
            "of the model"
        )
    if not isinstance(targets, (tuple, list)):
        # `asanyarray` keeps masked targets masked, so that they are refused.
        targets = np.asanyarray(targets)
        if targets.ndim == 0:
            raise ValueError("targets: is a single number; give one target per example")
    for k, entries in enumerate(sets):
        if not hasattr(entries, "__len__"):
            raise TypeError(
                f"sets[{k}]: is of type {type(entries).__name__}; must be a list or an array with "
                "the sets of all examples"
            )
    counts = [len(entries) for entries in (*sets, targets)]
    if len(set(counts)) > 1:
        of_sets = ", ".join(f"sets[{k}] has {n}" for k, n in enumerate(counts[:-1]))
        raise ValueError(
            f"{of_sets} examples, there are {counts[-1]} targets; the numbers must be equal"
        )
    return [(list(entries[:-1]), entries[-1]) for entries in zip(*sets, targets)]

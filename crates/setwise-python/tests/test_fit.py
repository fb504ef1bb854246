"""Training: with samplers and with arrays, to the end or interrupted."""

import signal
import threading

import numpy as np
import pytest

import setwise


def difference(rng):
    """Two sets of single numbers, and the difference of their means."""
    x, y = (rng.normal(size=(rng.integers(3, 8), 1)) for _ in range(2))
    return [x, y], x.mean() - y.mean()


def fresh(**config):
    return setwise.Model.create(
        "single-set-rff", dim=1, **{"latent": 8, "hidden": 16, "blocks": 1, "pooling": "mean", "seed": 1, **config}
    )


X, Y = np.array([[1.0], [2.0]]), np.array([[0.5], [-1.0], [0.0]])


def test_a_sampler_trains_a_model():
    model = fresh()
    history = setwise.fit(model, difference, steps=300, batch_size=32, learning_rate=5e-3, progress=False)
    assert len(history) == len(history.loss) == len(history.gradient) == len(history.learning_rate) == 300
    assert np.mean(history.loss[-30:]) < 0.3 * np.mean(history.loss[:10])
    assert history.learning_rate[0] == 5e-3 and history.learning_rate[-1] < 1e-4
    assert "300 steps" in repr(history) and history.seconds > 0.0
    rng = np.random.default_rng(99)
    errors = [abs(model(*sets) - target) for sets, target in (difference(rng) for _ in range(100))]
    assert np.mean(errors) < 0.25


def test_sets_of_equal_and_of_different_sizes_train_a_model():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 5, 1)), [rng.normal(size=(n, 1)) for n in rng.integers(3, 8, size=200)]
    targets = x.mean(axis=(1, 2)) - np.array([s.mean() for s in y])
    history = setwise.fit(fresh(), ([x, y], targets), steps=200, batch_size=32, learning_rate=5e-3, progress=False)
    assert np.mean(history.loss[-20:]) < 0.5 * np.mean(history.loss[:10])
    # A data set smaller than a batch becomes the batch.
    few = setwise.fit(fresh(), ([x[:3], y[:3]], targets[:3]), steps=5, schedule="constant", progress=False)
    assert few.loss[4] < few.loss[0]


def test_the_same_seed_gives_the_same_training():
    def train(seed):
        model = fresh(dropout=0.1)
        return setwise.fit(model, difference, steps=5, batch_size=8, seed=seed, progress=False).loss, model(X, Y)

    assert train(1) == train(1)
    assert train(1) != train(2)


def test_the_form_of_the_arrays_does_not_change_the_steps():
    def first_losses(convert):
        def draw(rng):
            sets, target = difference(rng)
            return [convert(s) for s in sets], target

        return setwise.fit(fresh(), draw, steps=3, batch_size=4, progress=False).loss

    expected = first_losses(np.asarray)
    for convert in (np.asfortranarray, lambda s: s[:, 0], np.ndarray.tolist, lambda s: np.repeat(s, 2, axis=0)[::2]):
        assert first_losses(convert) == expected


def test_targets_may_be_vectors_or_per_element():
    model = fresh(output_width=2)
    draw = lambda rng: ([X, Y], [1.0, np.float32(2.0)])  # noqa: E731
    history = setwise.fit(model, draw, steps=150, batch_size=1, learning_rate=1e-2, progress=False)
    assert history.loss[-1] < 0.2 * history.loss[0]
    np.testing.assert_allclose(model(X, Y), [1.0, 2.0], atol=0.3)
    each = fresh(output="equivariant")
    draw = lambda rng: ([X, Y], [X[:, 0] * 2, -Y])  # noqa: E731
    history = setwise.fit(each, draw, steps=100, batch_size=1, loss="mse", learning_rate=1e-2, progress=False)
    assert history.loss[-1] < 0.2 * history.loss[0]


def test_one_set_needs_no_list():
    model = setwise.Model.create("single-set-rff", dim=1, sets=1, latent=8, hidden=8, blocks=1)
    setwise.fit(model, lambda rng: (X, 1.0), steps=2, batch_size=2, progress=False)


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "mse"},
        {"loss": "bce"},
        {"loss": {"huber": {"delta": 0.5}}},
        {"loss": {"pinball": {"level": np.float64(0.9)}}},
        {"schedule": "constant"},
        {"schedule": {"cosine": {"final-fraction": 0.5}}},
        {"warmup_steps": 2, "clip_norm": 0.1, "weight_decay": 0.01, "batch_size": np.int64(3), "steps": np.int32(4)},
        {"muon": 0.01},
    ],
)
def test_settings_of_the_training_are_accepted(options):
    draw = lambda rng: ([X, Y], 0.5)  # noqa: E731
    history = setwise.fit(fresh(), draw, **{"steps": 4, "batch_size": 2, "progress": False, **options})
    assert len(history) == 4 and np.isfinite(history.loss).all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"steps": 0}, ValueError, "steps: is 0"),
        ({"steps": -1}, ValueError, "steps: .*-1"),
        ({"steps": 2.5}, ValueError, "steps: .*2.5"),
        ({"batch_size": 0}, ValueError, "batch_size: is 0"),
        ({"learning_rate": 0.0}, ValueError, "learning_rate: is 0"),
        ({"learning_rate": float("nan")}, ValueError, "learning_rate: is NaN; numbers must be finite"),
        ({"loss": "l3"}, ValueError, "loss: .*l3.*mse"),
        ({"loss": abs}, TypeError, "loss: is of type builtin_function_or_method"),
        ({"loss": {"pinball": {"level": 1.5}}}, ValueError, "level: is 1.5"),
        ({"schedule": "linear"}, ValueError, "linear"),
        ({"clip_norm": -1.0}, ValueError, "clip_norm: is -1"),
        ({"muon": 0.0}, ValueError, "muon.learning_rate: is 0"),
        ({"muon": 0.01, "weight_decay": 0.1}, ValueError, "weight_decay: .*muon"),
        ({"seed": -1}, ValueError, "seed"),
        ({"steps": "many"}, ValueError, "steps: .*many"),
    ],
)
def test_invalid_settings_are_refused_by_name(options, error, message):
    with pytest.raises(error, match=message):
        setwise.fit(fresh(), difference, **{"steps": 2, "progress": False, **options})


@pytest.mark.parametrize(
    ("example", "error", "message"),
    [
        (None, TypeError, "example 0: is of type NoneType; must be a tuple"),
        (([X, Y], 1.0, 2.0), TypeError, "must be a tuple \\(sets, target\\)"),
        ((X, 1.0), TypeError, "sets: is of type ndarray; must be a list or tuple with an array for each of 2 sets"),
        (([X], 1.0), ValueError, "sets: has 1 items, the model takes 2 sets"),
        (([X, np.ones((3, 2))], 1.0), ValueError, "set 1 has rows of width 2, the model takes 1"),
        (([X, Y[:0]], 1.0), ValueError, r"example 0: sets\[1\]: is empty"),
        (([X, [Y, Y]], 1.0), ValueError, r"sets\[1\]: is a batch of sets"),
        (([X, Y], None), TypeError, "target: holds Python objects"),
        (([X, Y], [1.0, 2.0]), ValueError, "the target has 2 numbers, the model answers with 1"),
        (([X, Y], np.nan), ValueError, "example 0: target is nan"),
        (([X, Y], 1e300), ValueError, "example 0: target is 1e300, too large"),
        (([X, np.array([[1.0], [np.nan]])], 1.0), ValueError, r"example 0: sets\[1\]\[1, 0\] \(row 2, column 1\) is nan"),
    ],
)
def test_invalid_examples_are_refused_and_the_model_stays_usable(example, error, message):
    model = fresh()
    before = model(X, Y)
    with pytest.raises(error, match=message):
        setwise.fit(model, lambda rng: example, steps=2, batch_size=2, progress=False)
    assert model(X, Y) == before
    setwise.fit(model, difference, steps=1, batch_size=2, progress=False)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (3, TypeError, "sampler: is of type int"),
        ((X, [1.0]), TypeError, "sets: is of type ndarray"),
        (([[X, X], [Y]], [1.0, 2.0]), ValueError, r"sets\[0\] has 2, sets\[1\] has 1 examples, there are 2 targets"),
        (([[X], [Y]], 3.0), ValueError, "targets: is a single number"),
        (([[], []], []), ValueError, "the data set has no examples"),
        (([[X, X], [Y, Y * np.nan]], [1.0, 2.0]), ValueError, r"example 1: sets\[1\]\[0, 0\]"),
    ],
)
def test_invalid_data_sets_are_refused(data, error, message):
    with pytest.raises(error, match=message):
        setwise.fit(fresh(), data, steps=2, progress=False)


def counted(calls, then):
    """A sampler that calls `then` after some calls."""

    def draw(rng):
        if draw.calls == calls:
            then()
        draw.calls += 1
        return difference(rng)

    draw.calls = 0
    return draw


def reference(steps, of):
    """The prediction of the model after the first steps of a longer training."""

    def stop():
        raise StopIteration

    model = fresh()
    with pytest.raises(StopIteration):
        setwise.fit(model, counted(steps * 4, stop), steps=of, batch_size=4, progress=False)
    return model(X, Y)


def test_an_exception_of_the_sampler_propagates_and_the_model_keeps_its_steps():
    class SamplerError(Exception):
        pass

    def fail():
        raise SamplerError("no more data")

    model = fresh()
    untouched = model(X, Y)
    with pytest.raises(SamplerError, match="no more data") as caught:
        setwise.fit(model, counted(5 * 4 + 2, fail), steps=20, batch_size=4, progress=False)
    assert len(caught.value.history) == 5
    assert model(X, Y) == reference(5, of=20) != untouched
    assert len(setwise.fit(model, difference, steps=2, batch_size=4, progress=False)) == 2


def test_an_interrupt_propagates_and_the_model_keeps_its_steps():
    model = fresh()
    interrupt = lambda: signal.raise_signal(signal.SIGINT)  # noqa: E731
    # Background jobs of a shell ignore interrupts, and Python inherits that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            setwise.fit(model, counted(3 * 4, interrupt), steps=20, batch_size=4, progress=False)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(caught.value.history) == 3
    assert model(X, Y) == reference(3, of=20)


def test_a_loss_that_is_not_finite_ends_the_training():
    model = fresh()
    with pytest.raises(FloatingPointError, match="the (loss|gradient) of step .* is (inf|NaN); the model is as it was"):
        setwise.fit(model, lambda rng: ([X, Y], 3e38), steps=5, batch_size=4, loss="mse", progress=False)
    assert np.isfinite(model(X, Y))


def test_the_sampler_may_call_the_model_and_a_second_fit_is_refused():
    model = fresh()
    answers = []

    def draw(rng):
        answers.append(model(X, Y))
        if len(answers) == 4:
            with pytest.raises(RuntimeError, match="one fit at a time"):
                setwise.fit(model, difference, steps=1, progress=False)
        return difference(rng)

    setwise.fit(model, draw, steps=4, batch_size=2, progress=False)
    assert answers[0] == answers[1] != answers[2], "a step changes the model"
    assert model(X, Y) != answers[-1]


def test_models_train_in_parallel_threads():
    expected = fresh()
    setwise.fit(expected, difference, steps=10, batch_size=4, progress=False)
    models = [fresh() for _ in range(4)]
    threads = [
        threading.Thread(target=setwise.fit, args=(m, difference), kwargs={"steps": 10, "batch_size": 4, "progress": False})
        for m in models
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [m(X, Y) for m in models] == [expected(X, Y)] * 4


def test_progress_is_shown_on_standard_error(capsys):
    setwise.fit(fresh(), difference, steps=20, batch_size=2)
    out, shown = capsys.readouterr()
    assert out == "" and len(shown.splitlines()) == 10
    assert shown.splitlines()[-1].startswith("20/20") and "loss" in shown and "steps/s" in shown
    setwise.fit(fresh(), difference, steps=20, batch_size=2, progress=False)
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_one_line_is_rewritten(capsys, monkeypatch):
    import sys

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    setwise.fit(fresh(), difference, steps=3, batch_size=2)
    shown = capsys.readouterr().err
    assert shown.startswith("\r") and shown.endswith("\n") and shown.count("\n") == 1 and "3/3 ████" in shown


def test_standard_error_may_be_missing(monkeypatch):
    import sys

    monkeypatch.setattr(sys, "stderr", None)
    assert len(setwise.fit(fresh(), difference, steps=2, batch_size=2)) == 2


def test_only_models_can_be_trained():
    with pytest.raises(TypeError, match="model: is of type int; must be a setwise.Model"):
        setwise.fit(3, difference, steps=1)


def test_a_fit_that_fails_at_its_start_releases_the_model(monkeypatch):
    import io
    import sys

    model = fresh()
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    with pytest.raises(ValueError):
        setwise.fit(model, difference, steps=1, batch_size=2)
    with pytest.raises(ValueError, match="truth value"):
        setwise.fit(model, difference, steps=1, batch_size=2, progress=np.array([1, 2]))
    assert len(setwise.fit(model, difference, steps=1, batch_size=2, progress=False)) == 1


def test_interrupts_at_any_moment_release_the_model_and_keep_a_consistent_history():
    model = fresh()

    def ring(_number, _frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    caught = 0
    try:
        for i in range(150):
            try:
                signal.setitimer(signal.ITIMER_REAL, 2e-4 + 2e-5 * i)
                setwise.fit(model, difference, steps=200, batch_size=2, progress=False)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt as interrupt:
                caught += 1
                history = getattr(interrupt, "history", setwise.History())
                assert len(history.loss) == len(history.gradient) == len(history.learning_rate)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert caught > 50
    assert len(setwise.fit(model, difference, steps=1, batch_size=2, progress=False)) == 1


def test_a_sampler_may_reuse_its_arrays():
    x, y = np.zeros((4, 1)), np.zeros((3, 1))

    def reusing(rng):
        x[:], y[:] = rng.normal(size=x.shape), rng.normal(size=y.shape)
        return [x, y], x.mean() - y.mean()

    def copying(rng):
        sets, target = reusing(rng)
        return [s.copy() for s in sets], target

    losses = [setwise.fit(fresh(), draw, steps=5, batch_size=4, progress=False).loss for draw in (reusing, copying)]
    assert losses[0] == losses[1]


def test_masked_targets_are_refused():
    sets = [np.ones((4, 3, 1))] * 2
    targets = np.ma.masked_array(np.ones(4), mask=[False, False, True, False])
    with pytest.raises(ValueError, match="example 2: target is nan"):
        setwise.fit(fresh(), (sets, targets), steps=1, progress=False)


def test_the_error_of_an_invalid_set_names_the_set():
    with pytest.raises(TypeError, match=r"sets\[1\]: is of type int"):
        setwise.fit(fresh(), ([np.ones((4, 3, 1)), 3], np.ones(4)), steps=1)

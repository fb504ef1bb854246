"""Models: created, saved, loaded, called."""

import copy
import pickle

import numpy as np
import pytest

import setwise
from conftest import ROOT

WEIGHTS = ROOT / "weights/common-symbols.safetensors"


@pytest.fixture
def sets():
    rng = np.random.default_rng(2)
    return rng.normal(size=(6, 2)), rng.normal(size=(9, 2))


def test_predictions_equal_the_command_line_to_the_last_digit(command):
    paths = [ROOT / "examples/sets" / name for name in ("a.csv", "b.csv")]
    a, b = (np.loadtxt(path, delimiter=",", skiprows=1) for path in paths)
    answer = command("predict", WEIGHTS, *paths)
    assert [float(setwise.Model.load(WEIGHTS)(a, b))] == answer["results"][0]


def test_a_batch_is_predicted_as_by_the_command_line(command, tmp_path, small, sets):
    small.save(tmp_path / "m.safetensors")
    x, y = np.stack([sets[0]] * 3), np.stack([sets[1], -sets[1], 2 * sets[1]])
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y.astype("f4"))
    answer = command("predict", tmp_path / "m.safetensors", tmp_path / "x.npy", tmp_path / "y.npy")
    answers = small(x, y.astype("f4"))
    assert answers.dtype == np.float32
    assert answers[:, None].tolist() == answer["results"]


def test_models_of_the_command_line_prepare_sets_as_it_does(command, tmp_path):
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(3, 40, 2)), 1.5 * rng.normal(size=(3, 30, 2)) + 0.5
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    for folder in ("d2", "d2-elements"):
        path = ROOT / "weights/kl" / folder / "model.safetensors"
        model = setwise.Model.load(path)
        answers = model(x, y)
        assert answers[:, None].tolist() == command("predict", path, tmp_path / "x.npy", tmp_path / "y.npy")["results"]
        # So do single examples, batches of different sizes, and pickled models.
        assert isinstance(model(x[1], y[1]), np.float32)
        assert model([x[0], x[1][:25]], [y[0], y[1]])[0] == pytest.approx(answers[0], rel=1e-5)
        assert pickle.loads(pickle.dumps(model))(x[1], y[1]) == pytest.approx(answers[1], rel=1e-5)
        with pytest.raises(ValueError, match="sets\\[0\\] has 2 columns, sets\\[1\\] has 3"):
            model(x[0], np.ones((5, 3)))
        with pytest.raises(ValueError, match="sets\\[0\\]"):
            model(np.empty((0, 2)), y[0])
    # The sets of the second model's network have appended raw columns: 4 instead of 2.
    with pytest.raises(ValueError, match="trained for 2"):
        model(np.ones((5, 3)), np.ones((5, 3)))
    with pytest.raises(ValueError, match="4"):
        model(x, y, raw=True)
    whitened = setwise.Model.load(ROOT / "weights/kl/d2/model.safetensors")
    assert whitened(100 * x + 7, 100 * y + 7) == pytest.approx(whitened(x, y), rel=1e-3)
    assert whitened(x, y, raw=True) != pytest.approx(whitened(x, y), rel=1e-3)


def test_a_model_of_fit_takes_sets_as_they_are(tmp_path):
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(40, 2)), 1.5 * rng.normal(size=(30, 2)) + 0.5
    model = setwise.Model.load(ROOT / "weights/kl/d2/model.safetensors")
    setwise.fit(model, lambda _: ([x, y], 0.5), steps=1, batch_size=2, progress=False)
    assert model(x, y) == model(x, y, raw=True)
    model.save(tmp_path / "m.safetensors")
    assert setwise.Model.load(tmp_path / "m.safetensors")(x, y) == model(x, y)


def test_a_batch_gives_the_predictions_of_single_calls(small, sets):
    x, y = sets
    batch = small([x, x[:2], y], [y, y, x.astype("f4")])
    assert batch.shape == (3,)
    assert list(batch) == [small(x, y), small(x[:2], y), small(y, x)]
    stacked = small(np.stack([x, -x]).astype("f4"), np.stack([y, y]).astype("f4"))
    assert list(stacked) == [small(x, y), small(-x, y)]


def test_the_order_of_elements_does_not_change_the_prediction(small, sets):
    x, y = sets
    assert small(x[::-1], y) == pytest.approx(small(x, y), rel=1e-5)
    assert small(y, x) != small(x, y)


def test_one_output_is_a_number_and_several_are_a_vector(sets):
    x, y = sets
    one = setwise.Model.create("sum-merge", dim=2, latent=8, hidden=8, blocks=1)
    three = setwise.Model.create("sum-merge", dim=2, latent=8, hidden=8, blocks=1, output_width=3)
    assert isinstance(one(x, y), np.float32)
    assert three(x, y).shape == (3,)
    assert three([x, y], [y, x]).shape == (2, 3)


def test_outputs_per_element_are_permuted_with_the_elements(sets):
    x, y = sets
    each = setwise.Model.create("sum-merge", dim=2, latent=8, hidden=8, blocks=1, output="equivariant")
    of_x, of_y = each(x, y)
    assert of_x.shape == (6,) and of_y.shape == (9,)
    np.testing.assert_allclose(each(x[::-1], y)[0], of_x[::-1], rtol=1e-5)
    batch = each([x, x[:3]], [y, y])
    assert [tuple(a.shape for a in example) for example in batch] == [((6,), (9,)), ((3,), (9,))]
    assert np.array_equal(batch[0][1], of_y)
    options = {"output": "equivariant", "output_width": 2}
    two = setwise.Model.create("sum-merge", dim=2, latent=8, hidden=8, blocks=1, **options)
    assert [a.shape for a in two(x, y)] == [(6, 2), (9, 2)]


def test_models_take_any_width_and_number_of_sets(sets):
    equivariant = setwise.Model.create("multi-set-transformer-equi", latent=8, hidden=8, blocks=1)
    for d in (1, 2, 5):
        assert np.isfinite(equivariant(np.ones((3, d)), np.zeros((4, d))))
    three = setwise.Model.create("multi-set-transformer", input_widths=np.array([2, 3, 4]), sets=3, latent=8, hidden=8)
    assert three.config["input_widths"] == [2, 3, 4]
    assert np.isfinite(three(np.ones((3, 2)), np.ones((4, 3)), np.ones((5, 4))))
    alone = setwise.Model.create("single-set-transformer", 1, sets=1, latent=8, hidden=8, blocks=1)
    assert alone([1.0, 2.0, 3.0]) == alone(np.array([[1.0], [2.0], [3.0]]))


def test_the_same_seed_gives_the_same_model(sets):
    make = lambda seed: setwise.Model.create("pine", dim=2, seed=seed)(*sets)  # noqa: E731
    assert make(1) == make(1) != make(2)


def test_saved_pickled_and_copied_models_are_equal(tmp_path, small, sets):
    path = tmp_path / "model.safetensors"
    small.save(path)
    for other in (
        setwise.Model.load(path),
        setwise.Model.load(str(path)),
        pickle.loads(pickle.dumps(small)),
        copy.deepcopy(small),
    ):
        assert other(*sets) == small(*sets)
        assert other.config == small.config and other.parameters == small.parameters


def test_the_repr_of_a_model_has_its_sizes(small):
    text = repr(small)
    assert "2 sets of 2 columns" in text and "latent 8" in text and f"{small.parameters} parameters" in text
    assert small.config["blocks"] == 1 and small.config["output"] == "invariant"
    assert set(setwise.presets()) >= {"multi-set-transformer", "cross-only"}


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (["transformer"], {"dim": 2}, ValueError, "no preset is called \"transformer\"; there are multi-set-transformer"),
        ([], {}, TypeError, "create\\(\\) needs dim"),
        ([], {"dim": 0}, ValueError, "latent: is 0"),
        ([], {"dim": -1}, ValueError, "dim: is -1"),
        ([], {"dim": 2, "latnet": 3}, TypeError, "\"latnet\", which is not a field of a config; the fields are .*latent"),
        ([], {"dim": 2, "latent": "wide"}, ValueError, "latent: "),
        ([], {"dim": 2, "latent": -3}, ValueError, "latent: "),
        ([], {"dim": 2, "heads": 5}, ValueError, "heads: is 5, which does not divide the latent width 32"),
        ([], {"dim": 2, "merge": "average"}, ValueError, "merge: .*average.*concat-relu"),
        ([], {"dim": 2, "output_width": 0}, ValueError, "output_width: is 0"),
        ([], {"dim": 2, "input_widths": [2]}, ValueError, "input_widths: has 1 entries for 2 sets"),
        ([], {"dim": 2, "dropout": object()}, TypeError, "dropout: is of type object"),
    ],
)
def test_invalid_configs_are_refused_by_field(arguments, options, error, message):
    with pytest.raises(error, match=message):
        setwise.Model.create(*arguments, **options)


def test_files_that_cannot_be_read_are_named(tmp_path, small):
    with pytest.raises(FileNotFoundError, match="none.safetensors"):
        setwise.Model.load(tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ValueError, match="bad.safetensors: not an intact safetensors file"):
        setwise.Model.load(tmp_path / "bad.safetensors")
    with pytest.raises(OSError, match="nowhere"):
        small.save(tmp_path / "nowhere" / "m.safetensors")
    with pytest.raises(TypeError):
        setwise.Model.load(3)
    with pytest.raises(TypeError):
        setwise.Model()


def test_invalid_sets_are_refused(small, sets):
    x, y = sets
    with pytest.raises(TypeError, match="takes 2 sets, 1 given"):
        small(x)
    with pytest.raises(ValueError, match="set 1 has rows of width 1, the model takes 2"):
        small(x, y[:, :1])
    with pytest.raises(ValueError, match="one is a batch, the other a single set"):
        small(x, [y])
    with pytest.raises(ValueError, match=r"sets\[0\] has 2 examples, sets\[1\] has 1"):
        small([x, x], [y])
    with pytest.raises(ValueError, match=r"sets\[1\]\[1\] has 1 columns, sets\[1\]\[0\] has 2"):
        small([x, x], [y, y[:, :1]])
    with pytest.raises(ValueError, match=r"sets\[1\]\[1\]: is empty"):
        small([x, x], [y, y[:0]])

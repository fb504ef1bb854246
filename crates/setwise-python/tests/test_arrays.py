"""Arrays that are read, and objects that are refused."""

import numpy as np
import pytest

import setwise


@pytest.fixture
def integers(samples):
    """Samples of integers, which every number type represents exactly."""
    return [np.unique(np.round(20 * np.abs(s)), axis=0) for s in samples]


@pytest.mark.parametrize("dtype", "i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8 g >f8 >f4 >i4".split())
def test_every_number_type_is_read(integers, dtype):
    p, q = integers
    expected = setwise.kl(p, q)
    assert setwise.kl(p.astype(dtype), q.astype(dtype)) == expected


def test_booleans_are_numbers():
    x = np.random.default_rng(0).integers(0, 2, size=(60, 1)).astype(bool)
    assert setwise.mi(x, ~x).value == setwise.mi(x.astype(float), (~x).astype(float)).value


def test_strides_and_orders_do_not_change_the_estimate(samples, small):
    p, q = samples
    expected = setwise.kl(p, q)
    padded = np.zeros((240, 9))
    padded[::2, ::3] = p
    views = [
        np.asfortranarray(p),
        padded[::2, ::3],
        p[::-1][::-1],
        np.ascontiguousarray(p.T).T,
        np.ascontiguousarray(p[:, ::-1])[:, ::-1],
        p.view(np.matrix),
        np.broadcast_to(p, p.shape),
    ]
    unaligned = np.zeros(p.nbytes + 1, dtype=np.uint8)[1:].view(np.float64).reshape(p.shape)
    unaligned[:] = p
    readonly = p.copy()
    readonly.flags.writeable = False
    for view in [*views, unaligned, readonly]:
        assert setwise.kl(view, q) == expected
    x, y = p[:, :2], q[:, 1:]
    assert small(x, y) == small(x.copy(), np.asfortranarray(y)) == small(x.astype("f4"), y.astype("f4"))


def test_arrays_are_not_changed(samples, small):
    p, q = samples
    before = p.copy(), q.copy()
    setwise.kl(p, q)
    small(p[:, :2].astype("f4"), q[:, :2])
    assert np.array_equal(p, before[0]) and np.array_equal(q, before[1])


def test_lists_of_lists_are_arrays(samples):
    p, q = samples
    assert setwise.kl(p.tolist(), tuple(map(tuple, q))) == setwise.kl(p, list(q)) == setwise.kl(p, q)


class Exported:
    """Like a tensor: exports its numbers through DLPack only."""

    def __init__(self, array):
        self._array, self.shape = array, array.shape

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class Frame:
    """Like a frame: `__array__` returns objects, `to_numpy` returns numbers of a given dtype."""

    def __init__(self, array):
        self._array, self.shape = array, array.shape

    def __array__(self, dtype=None, copy=None):
        return self._array.astype(object)

    def to_numpy(self, dtype=None):
        return self._array.astype(dtype or object)


@pytest.mark.parametrize("wrap", [Exported, Frame])
def test_tensors_and_frames_are_read(samples, wrap):
    p, q = samples
    assert setwise.kl(wrap(p), wrap(q)) == setwise.kl(p, q)
    assert setwise.kl([wrap(p), wrap(q)], [wrap(q), wrap(p)]) == setwise.kl([p, q], [q, p])


def test_pandas_frames_are_read(samples):
    pd = pytest.importorskip("pandas")
    p, q = samples
    frame = pd.DataFrame(p, columns=list("abc"))
    assert setwise.kl(frame, pd.DataFrame(q)) == setwise.kl(p, q)
    assert setwise.kl(frame.convert_dtypes(), q) == setwise.kl(p, q)
    assert setwise.mi(frame["a"], frame[["b", "c"]]) == setwise.mi(p[:, 0], p[:, 1:])
    assert setwise.kl([frame, frame], [q, q]) == setwise.kl([p, p], [q, q])
    frame["when"] = "today"
    with pytest.raises(TypeError, match="p: holds Python objects"):
        setwise.kl(frame, q)
    frame = pd.DataFrame(p).convert_dtypes()
    frame.iloc[4, 1] = pd.NA
    with pytest.raises((TypeError, ValueError), match="p"):
        setwise.kl(frame, q)


def test_polars_frames_are_read(samples):
    pl = pytest.importorskip("polars")
    p, q = samples
    frame = pl.DataFrame({"a": p[:, 0], "b": p[:, 1], "c": p[:, 2]})
    assert setwise.kl(frame, q) == setwise.kl(p, q)
    assert setwise.kl([frame], [q]) == setwise.kl([p], [q])
    assert setwise.mi(frame["a"], p[:, 1]) == setwise.mi(p[:, 0], p[:, 1])
    with pytest.raises((TypeError, ValueError), match="p"):
        setwise.kl(frame.with_columns(pl.Series("d", ["x"] * 120)), q)


def test_torch_tensors_are_read(samples, small):
    torch = pytest.importorskip("torch")
    p, q = samples
    assert setwise.kl(torch.from_numpy(p), torch.from_numpy(q)) == setwise.kl(p, q)
    assert setwise.kl(torch.from_numpy(p)[::2], q) == setwise.kl(p[::2], q)
    x = torch.from_numpy(p[:, :2].astype("f4"))
    assert small(x, x) == small(x.numpy(), x.numpy())
    with pytest.raises(TypeError, match="p: cannot be read as an array"):
        setwise.kl(torch.from_numpy(p).requires_grad_(), q)


BAD = np.nan, np.inf, -np.inf


@pytest.mark.parametrize("value", BAD)
def test_numbers_that_are_not_finite_are_named_with_row_and_column(samples, small, value):
    p, q = samples
    q[7, 2] = value
    with pytest.raises(ValueError, match=r"q\[7, 2\] \(row 8, column 3\) is (nan|-?inf); every value must be a finite"):
        setwise.kl(p, q)
    with pytest.raises(ValueError, match=r"q\[1\]\[7, 2\] \(row 8, column 3\)"):
        setwise.kl([p, p], [p, q])
    with pytest.raises(ValueError, match=r"y\[1, 7, 2\] \(row 8, column 3\)"):
        setwise.mi([p[:90]] * 2, np.stack([p[:90], q]))
    with pytest.raises(ValueError, match=r"x\[1\] \(row 2\) is"):
        setwise.mi([1.0, value, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"sets\[1\]\[7, 1\] \(row 8, column 2\)"):
        small(p[:, :2], q[:, 1:].astype("f4"))


def test_times_and_text_in_frames_are_refused(samples):
    pd = pytest.importorskip("pandas")
    p, q = samples
    columns = {"a": p[:, 0]}
    for other in (pd.date_range("2020", periods=len(p)), pd.to_timedelta(range(len(p)), unit="s"), [f"{x}" for x in p[:, 1]]):
        with pytest.raises(TypeError, match="p: holds"):
            setwise.kl(pd.DataFrame({**columns, "b": other}), q)


def test_masked_numbers_are_refused(samples):
    p, q = samples
    masked = np.ma.masked_array(p, mask=np.zeros_like(p, dtype=bool))
    assert setwise.kl(masked, q) == setwise.kl(p, q)
    masked.mask[3, 1] = True
    with pytest.raises(ValueError, match=r"p\[3, 1\] \(row 4, column 2\) is nan"):
        setwise.kl(masked, q)


def test_numbers_too_large_for_a_model_are_named(small):
    x = np.ones((4, 2))
    x[1, 1] = 1e300
    with pytest.raises(ValueError, match=r"sets\[0\]\[1, 1\] \(row 2, column 2\) is 1e300, too large for float32"):
        small(x, np.ones((4, 2)))


@pytest.mark.parametrize(
    ("array", "error", "message"),
    [
        (np.zeros((0, 2)), ValueError, r"p: is empty, its shape is \(0, 2\)"),
        (np.zeros((5, 0)), ValueError, r"p: is empty, its shape is \(5, 0\)"),
        ([], ValueError, "p: is empty"),
        ([[]], ValueError, "p: is empty"),
        (np.array(3.0), ValueError, r"p: has shape \(\)"),
        (3.0, ValueError, r"p: has shape \(\)"),
        (np.float32(3.0), ValueError, r"p: has shape \(\)"),
        (np.zeros((2, 2, 2, 2)), ValueError, r"p: has shape \(2, 2, 2, 2\)"),
        ([[1.0, 2.0], [3.0]], ValueError, "p: its rows do not form an array"),
        (np.array([[1.0, "x"], [2.0, "y"]], dtype=object), TypeError, "p: holds Python objects"),
        (np.array([None, 1.0]), TypeError, "p: holds Python objects"),
        (None, TypeError, "p: holds Python objects"),
        (object(), TypeError, "p: holds Python objects"),
        ({"a": 1}, TypeError, "p: holds Python objects"),
        (np.array(["1", "2"]), TypeError, "p: holds text"),
        ("text", TypeError, "p: holds text"),
        (np.ones((4, 2), dtype=complex), TypeError, "p: holds complex numbers"),
        (np.zeros(3, dtype="M8[s]"), TypeError, "p: holds times"),
        (np.zeros(3, dtype=[("a", "f8"), ("b", "f8")]), TypeError, "p: has an unsupported dtype"),
        ([np.zeros(3), np.zeros(4)], ValueError, "p: its rows do not form an array"),
        ([np.zeros((3, 1)), "text"], TypeError, r"p\[1\]: holds text"),
    ],
)
def test_objects_that_are_not_samples_are_refused_by_name(array, error, message):
    with pytest.raises(error, match=message):
        setwise.kl(array, np.ones((9, 1)))


def test_exceptions_of_an_object_are_the_cause_of_the_error():
    class Broken:
        shape = (3, 1)

        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("the disk failed")

    with pytest.raises(TypeError, match="p: cannot be read as an array: the disk failed") as caught:
        setwise.kl(Broken(), np.ones((9, 1)))
    assert isinstance(caught.value.__cause__, RuntimeError)

    class Stopped(Broken):
        def __array__(self, dtype=None, copy=None):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        setwise.kl(Stopped(), np.ones((9, 1)))


def test_a_list_that_holds_itself_is_refused():
    rows = []
    rows.append(rows)
    with pytest.raises((ValueError, TypeError, RecursionError)):
        setwise.kl(rows, np.ones((9, 1)))

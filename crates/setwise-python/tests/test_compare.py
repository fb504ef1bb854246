"""``setwise.compare`` with frames, dicts, arrays and files."""

import json
import sys
import types

import numpy as np
import pytest

import setwise


def columns(seed, *, new=False):
    rng = np.random.default_rng(seed)
    n = 1000
    towns = rng.choice(["Oslo", "Rome", "Lima"], n)
    if new:
        towns[rng.random(n) < 0.1] = "Bonn"
    day = np.datetime64("2026-04-01") + rng.integers(0, 30, n).astype("timedelta64[D]")
    price = rng.normal(20.0, 4.0, n)
    price[rng.random(n) < 0.05] = np.nan
    return {"town": towns, "day": day, "price": price, "member": rng.random(n) < 0.3, "visits": rng.poisson(3.0, n)}


class Frame:
    """A frame without an Arrow stream, such as that of pandas without pyarrow."""

    def __init__(self, data):
        self._data = data
        self.columns = list(data)

    def __getitem__(self, name):
        return self._data[name]


def test_a_new_category_is_flagged_and_nothing_else():
    found = setwise.compare(columns(1), columns(4, new=True), names=("april", "may"))
    assert found.changed and found.flagged == ["town"]
    assert "Bonn" in found.summary and found.rows == (1000, 1000)
    low, high = found.interval
    assert 0.0 < low <= found.effect <= high
    kinds = {column["name"]: column["type"] for column in found.to_dict()["columns"]}
    assert kinds == {"town": "category", "day": "time", "price": "numeric", "member": "boolean", "visits": "count"}
    missing = {column["name"]: column["missing"] for column in found.to_dict()["columns"]}
    assert 0.02 < missing["price"][0] < 0.09 and missing["town"] == [0.0, 0.0]
    assert not setwise.compare(columns(1), columns(3)).changed


def test_frames_arrays_and_files_agree(tmp_path):
    a, b = columns(1), columns(4, new=True)
    expected = setwise.compare(a, b).to_dict()
    assert setwise.compare(Frame(a), Frame(b)).to_dict() == expected
    objects = [{**data, "price": [None if np.isnan(x) else float(x) for x in data["price"]]} for data in (a, b)]
    assert setwise.compare(*objects).to_dict() == expected
    for name, data in (("a.csv", a), ("b.csv", b)):
        rows = zip(*(data[key] for key in data))
        text = "\n".join(",".join("" if str(x) == "nan" else str(x) for x in row) for row in rows)
        (tmp_path / name).write_text(",".join(data) + "\n" + text + "\n")
    read = setwise.compare(tmp_path / "a.csv", str(tmp_path / "b.csv"))
    assert (read.flagged, read.effect) == (["town"], expected["effect"])


def test_libraries_of_frames_agree():
    a, b = columns(1), columns(4, new=True)
    expected = setwise.compare(a, b).to_dict()
    for name in ("pandas", "polars"):
        library = pytest.importorskip(name)
        found = setwise.compare(library.DataFrame(a), library.DataFrame(b))
        assert found.to_dict() == expected
        assert type(found.columns).__module__.startswith(name) and len(found.columns) == 5


def test_columns_are_rows_without_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    rows = setwise.compare(columns(1), columns(4, new=True)).columns
    assert rows[0]["name"] == "town" and rows[0]["flagged"] and rows[0]["low"] <= rows[0]["effect"] <= rows[0]["high"]


def test_types_and_columns_are_chosen():
    a, b = columns(1), columns(4)
    found = setwise.compare(a, b, types={"visits": "category"}, drop=["price"], columns="town..visits")
    kinds = {column["name"]: column["type"] for column in found.to_dict()["columns"]}
    assert kinds == {"town": "category", "day": "time", "member": "boolean", "visits": "category"}
    assert setwise.compare(a, columns(4, new=True), min_effect=0.5).flagged == []


def test_html_is_one_page_or_one_element(tmp_path):
    found = setwise.compare(columns(1), columns(4, new=True), names=("april", "<may>"))
    page = found.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
    assert page.startswith("<!DOCTYPE html>") and "&lt;may&gt;" in page and "<script" not in page
    element = found._repr_html_()
    assert element.startswith('<div class="setwise">') and "<html" not in element
    assert "april" in element and repr(found).startswith("<Changed: town")
    json.dumps(found.to_dict())


@pytest.mark.parametrize(
    ("current", "kind", "expected"),
    [
        (3, TypeError, "current: an object of type int is no table"),
        (np.zeros((2, 2, 2)), TypeError, "current: an object of type ndarray is no table"),
        ({"town": [1, [2]]}, TypeError, 'current: column "town" cannot be read as an array'),
        ({"town": np.zeros(3, complex)}, TypeError, 'column "town" holds values of an unsupported dtype'),
        ("none.csv", FileNotFoundError, "none.csv"),
        ({"x": [1.0, 2.0]}, ValueError, "have no column in common"),
        ({}, ValueError, "current is empty"),
    ],
)
def test_what_is_no_table_is_refused(current, kind, expected):
    with pytest.raises(kind, match=expected.replace("(", "\\(")):
        setwise.compare(columns(1), current)
    with pytest.raises(ValueError, match="number"):
        setwise.compare(columns(1), columns(4), types={"town": "number"})


def test_a_broken_frame_raises_its_own_error():
    class Broken(types.SimpleNamespace):
        def __arrow_c_stream__(self, requested_schema=None):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        setwise.compare(columns(1), Broken())

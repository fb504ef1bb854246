"""Comparison of two tables."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ._setwise import NativeComparison, compare_tables


class Comparison:
    """What changed between two tables.

    In a notebook it shows the verdict and a row for each column.

    Attributes
    ----------
    changed : whether the tables differ, significantly and by more than the least effect
    p_value : p-value of the hypothesis that both tables have one distribution
    effect : Jensen–Shannon divergence of all compared columns, in nats
    interval : its 90 % interval
    summary : what changed, in a sentence
    rows : rows of both tables
    pairs : pairs of columns whose dependence changed although neither column did, as dicts
    repeated_rows : share of rows that repeat others, as a dict, or None
    only : names of columns that only one table has
    notes : sentences about columns that are not compared

    Examples
    --------
    >>> import numpy as np, setwise
    >>> rng = np.random.default_rng(0)
    >>> april = {"price": rng.normal(20, 4, 1000), "plan": rng.choice(["basic", "pro"], 1000)}
    >>> may = {"price": rng.normal(20, 4, 1000), "plan": rng.choice(["basic", "pro", "team"], 1000)}
    >>> found = setwise.compare(april, may)
    >>> found.changed, found.flagged
    (True, ['plan'])
    """

    def __init__(self, native: NativeComparison, frames: str) -> None:
        self._native, self._frames = native, frames
        self._found: dict[str, Any] = json.loads(native.json())
        found = self._found
        self.changed: bool = found["changed"]
        self.p_value: float = found["p_value"]
        self.effect: float = found["effect"]
        self.interval: tuple[float, float] = tuple(found["interval"])
        self.summary: str = found["summary"]
        self.rows: tuple[int, int] = tuple(found["rows"])
        self.pairs: list[dict[str, Any]] = found["pairs"]
        self.repeated_rows: dict[str, Any] | None = found["repeated_rows"]
        self.only: tuple[list[str], list[str]] = tuple(found["only"])
        self.notes: list[str] = found["notes"]

    @property
    def flagged(self) -> list[str]:
        """Names of the columns that changed, the largest effect first."""
        return [column["name"] for column in self._found["columns"] if column["flagged"]]

    @property
    def columns(self) -> Any:
        """A row for each column, the largest effect first.

        A frame of the library that the reference is from: polars, pyarrow or else pandas; without
        pandas a list of dicts.
        """
        rows = [_row(column) for column in self._found["columns"]]
        if self._frames == "polars":
            import polars

            return polars.DataFrame(rows)
        if self._frames == "pyarrow":
            import pyarrow

            return pyarrow.Table.from_pylist(rows)
        try:
            import pandas
        except ImportError:
            return rows
        return pandas.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """All results: the object that ``setwise compare --json`` prints."""
        return json.loads(self._native.json())

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """An HTML page with the verdict and a chart of each column; also written to ``path``, if given."""
        page = self._native.html(False)
        if path is not None:
            Path(path).write_text(page, encoding="utf-8")
        return page

    def _repr_html_(self) -> str:
        return self._native.html(True)

    def __repr__(self) -> str:
        low, high = self.interval
        effect = f"Jensen–Shannon divergence {self.effect:.4f} nats, 90 % interval {low:.4f} to {high:.4f}"
        return f"<{self.summary} {effect}; p {self.p_value:.3g}, rows {self.rows[0]} and {self.rows[1]}>"


def as_list(columns: Sequence[str]) -> list[str]:
    """Columns by name, number or range; a text is one of them."""
    return [columns] if isinstance(columns, str) else list(columns)


def _row(column: dict[str, Any]) -> dict[str, Any]:
    low, high = column["interval"]
    before, after = column["missing"]
    return {
        "name": column["name"],
        "type": column["type"],
        "flagged": column["flagged"],
        "effect": column["effect"],
        "low": low,
        "high": high,
        "noise": column["noise"],
        "p_value": column["p_value"],
        "q_value": column["q_value"],
        "missing_before": before,
        "missing_after": after,
        "change": column["change"],
    }


def compare(
    reference: Any,
    current: Any,
    *,
    alpha: float = 0.05,
    min_effect: float = 0.01,
    columns: Sequence[str] = (),
    drop: Sequence[str] = (),
    types: Mapping[str, str] | None = None,
    names: tuple[str, str] = ("reference", "current"),
    seed: int = 0,
) -> Comparison:
    """Compare two tables: what changed, how much and how sure.

    Parameters
    ----------
    reference, current : frame, dict of columns, array or path
        pandas, polars and pyarrow tables, anything with ``__arrow_c_stream__``, a dict of arrays, an
        array with two axes, or the path of a file. Columns are matched by name.
    alpha : float
        Level of significance: the chance of any flag where nothing changed.
    min_effect : float
        Least effect that is flagged, as a share of rows.
    columns, drop : sequence of str
        Columns to compare, or to leave out: names, numbers from 1, or ranges such as "a..d".
    types : mapping, optional
        Types of columns, such as {"zip": "category"}: "numeric", "count", "boolean", "category",
        "time", "identifier", "constant" or "text".
    names : pair of str
        Names of both tables in results.
    seed : int
        Seed of permutations and intervals.

    Returns
    -------
    Comparison

    Examples
    --------
    >>> import numpy as np, setwise
    >>> rng = np.random.default_rng(1)
    >>> before, after = rng.normal(size=(500, 3)), rng.normal(size=(500, 3)) * [1, 1, 2]
    >>> setwise.compare(before, after).flagged
    ['column 3']
    """
    native = compare_tables(
        reference, current, list(names), alpha, min_effect, as_list(columns), as_list(drop), dict(types or {}), seed
    )
    return Comparison(native, type(reference).__module__.split(".")[0])

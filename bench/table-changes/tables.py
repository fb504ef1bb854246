"""Mixed tables and changes that are planted in them."""

import numpy as np
import pandas as pd

COLUMNS = ["age", "income", "region", "plan", "tenure", "visits", "latency", "score", "spend", "a", "b", "c"]


def table(n: int, rng: np.random.Generator) -> pd.DataFrame:
    """A table of numbers, counts, categories, truth values and missing values, some of them dependent."""
    income = np.exp(rng.normal(10, 0.6, n)).round(2)
    age = rng.normal(45, 14, n).clip(18, 95).round()
    normal = rng.multivariate_normal([0, 0, 0], [[1, 0.6, 0.3], [0.6, 1, 0.2], [0.3, 0.2, 1]], n)
    frame = pd.DataFrame(
        {
            "id": np.arange(n) + 10_000,
            "age": age,
            "income": income,
            "region": rng.choice(["north", "south", "east", "west", "centre"], n, p=[0.3, 0.25, 0.2, 0.15, 0.1]),
            "plan": rng.choice(["basic", "plus", "pro"], n, p=[0.6, 0.3, 0.1]),
            "tenure": rng.exponential(24, n).round(1),
            "visits": rng.poisson(3 + 0.05 * age, n),
            "latency": rng.gamma(2.0, 60.0, n).round(3),
            "score": rng.beta(2, 5, n),
            "spend": (income * 0.02 * np.exp(rng.normal(0, 0.4, n))).round(2),
            "a": normal[:, 0],
            "b": normal[:, 1],
            "c": normal[:, 2],
            "channel": rng.choice([f"ch{i:02d}" for i in range(30)], n, p=np.arange(30, 0, -1) / 465),
            "active": rng.random(n) < 0.7,
            "device": rng.choice(["ios", "android", "web"], n),
        }
    )
    frame.loc[rng.random(n) < 0.05, "tenure"] = np.nan
    frame.loc[rng.random(n) < 0.02, "plan"] = None
    return frame


def rows(frame: pd.DataFrame, share: float, rng: np.random.Generator) -> np.ndarray:
    return rng.random(len(frame)) < share


def change(frame: pd.DataFrame, kind: str, rng: np.random.Generator) -> tuple[pd.DataFrame, set[str]]:
    """The frame with a planted change, and the columns that it touches, alone or in their dependence."""
    f = frame.copy()
    n = len(f)
    some = lambda share: rows(f, share, rng)
    match kind:
        case "shift":
            f["score"] += 0.15 * f["score"].std()
            return f, {"score"}
        case "shift of counts":
            f["visits"] += rng.random(n) < 0.25
            return f, {"age", "visits"}
        case "scale":
            f["a"] *= 1.2
            return f, {"a"}
        case "upper tail":
            i = some(0.03)
            f.loc[i, "income"] *= 10
            return f, {"spend", "income"}
        case "both tails":
            i = some(0.04)
            f.loc[i, "b"] *= 5
            return f, {"a", "b", "c"}
        case "skewness":
            x = rng.gamma(4.0, 1.0, n)
            f["c"] = (x - 4) / 2
            return f, {"a", "b", "c"}
        case "two modes":
            f["a"] = np.where(rng.random(n) < 0.5, -0.7, 0.7) + 0.714 * rng.normal(size=n)
            return f, {"a", "b", "c"}
        case "time-outs":
            f.loc[some(0.03), "latency"] = 30.0
            return f, {"latency"}
        case "sentinel value":
            f.loc[some(0.02), "tenure"] = -1.0
            return f, {"tenure"}
        case "unit change":
            f["spend"] *= 1000
            return f, {"spend", "income"}
        case "unit change of some rows":
            f.loc[some(0.05), "spend"] *= 100
            return f, {"spend", "income"}
        case "rounding":
            f["latency"] = f["latency"].round(0)
            return f, {"latency"}
        case "truncation":
            f["age"] = f["age"].clip(upper=65)
            return f, {"age", "visits"}
        case "sign flip of some rows":
            f.loc[some(0.1), "c"] *= -1
            f["c"] = np.where(some(0.05), np.abs(f["c"]), f["c"])
            return f, {"a", "b", "c"}
        case "new category":
            f.loc[some(0.03), "region"] = "islands"
            return f, {"region"}
        case "lost category":
            f.loc[f["region"] == "centre", "region"] = "east"
            return f, {"region"}
        case "moved category":
            f.loc[(f["plan"] == "basic") & some(0.1), "plan"] = "pro"
            return f, {"plan"}
        case "category among many":
            f.loc[some(0.03), "channel"] = "ch25"
            return f, {"channel"}
        case "spelling of a category":
            f.loc[(f["device"] == "ios") & some(0.1), "device"] = "iOS"
            return f, {"device"}
        case "share of truth":
            f.loc[some(0.1), "active"] = False
            return f, {"active"}
        case "missing values":
            f.loc[some(0.04), "income"] = np.nan
            return f, {"spend", "income"}
        case "missing categories":
            f.loc[some(0.04), "device"] = None
            return f, {"device"}
        case "fewer missing values":
            f["tenure"] = f["tenure"].fillna(f["tenure"].median())
            return f, {"tenure"}
        case "correlation only":
            i = rng.permutation(n)
            half = rng.random(n) < 0.6
            f["b"] = np.where(half, f["b"].to_numpy()[i], f["b"])
            return f, {"a", "b", "c"}
        case "dependence on a category":
            order = np.sort(f["score"].to_numpy())
            noisy = f["device"].map({"ios": 0, "android": 1, "web": 2}).to_numpy() + rng.normal(0, 2.0, n)
            f["score"] = order[np.argsort(np.argsort(noisy))]
            return f, {"score", "device"}
        case "duplicated rows":
            i = np.flatnonzero(some(0.05))
            source = rng.integers(0, n, len(i))
            f.iloc[i] = f.iloc[source].to_numpy()
            return f.infer_objects(), set(f.columns)
    raise ValueError(kind)


KINDS = [
    "shift", "shift of counts", "scale", "upper tail", "both tails", "skewness", "two modes", "time-outs",
    "sentinel value", "unit change", "unit change of some rows", "rounding", "truncation", "sign flip of some rows",
    "new category", "lost category", "moved category", "category among many", "spelling of a category",
    "share of truth", "missing values", "missing categories", "fewer missing values", "correlation only",
    "dependence on a category", "duplicated rows",
]

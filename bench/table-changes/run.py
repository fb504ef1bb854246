"""Detection rates and false flags of planted changes: setwise beside other tools.

    python bench/table-changes/run.py --tool setwise --sizes 1000,10000 --seeds 20 --out setwise.json
    python bench/table-changes/run.py --tool setwise --null 1000 --sizes 2000
    python bench/table-changes/run.py --summary *.json

A table counts as changed where the tool says so, or flags a column. A change is located where a flagged column is one
that the change touches. False flags are flagged columns that it does not touch, counted per table.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from tables import KINDS, change, table

ALPHA = 0.05


def setwise(a: pd.DataFrame, b: pd.DataFrame, command: list[str], folder: Path) -> tuple[bool, set[str]]:
    paths = [folder / "a.csv", folder / "b.csv"]
    a.to_csv(paths[0], index=False)
    b.to_csv(paths[1], index=False)
    run = subprocess.run([*command, *map(str, paths), "--json"], capture_output=True, text=True, check=True)
    found = json.loads(run.stdout)
    flagged = {c["name"] for c in found["columns"] if c["flagged"]}
    for pair in found["pairs"]:
        flagged |= {name.split("=")[0] for name in pair["columns"]}
    return found["changed"], flagged


def scipy_bh(a: pd.DataFrame, b: pd.DataFrame) -> tuple[bool, set[str]]:
    from scipy import stats

    names, p_values = [], []
    for name in a.columns:
        x, y = a[name].dropna(), b[name].dropna()
        if x.dtype.kind in "if":
            p = stats.ks_2samp(x, y).pvalue
        else:
            counts = pd.DataFrame({"x": x.astype(str).value_counts(), "y": y.astype(str).value_counts()}).fillna(0)
            p = stats.chi2_contingency(counts.T.to_numpy()).pvalue if len(counts) > 1 else 1.0
        names.append(name)
        p_values.append(p)
    q_values = stats.false_discovery_control(p_values)
    flagged = {name for name, q in zip(names, q_values) if q <= ALPHA}
    return bool(flagged), flagged


def evidently(a: pd.DataFrame, b: pd.DataFrame) -> tuple[bool, set[str]]:
    from evidently import Report
    from evidently.presets import DataDriftPreset

    snapshot = Report([DataDriftPreset()]).run(b, a)
    flagged = set()
    changed = False
    for metric in snapshot.dict()["metrics"]:
        config = metric.get("config", {})
        if "column" in config and "threshold" in config:
            value, threshold, method = float(metric["value"]), float(config["threshold"]), str(config.get("method", ""))
            drifted = value < threshold if "p_value" in method else value >= threshold
            if drifted:
                flagged.add(config["column"])
        elif isinstance(metric["value"], dict) and "share" in metric["value"]:
            changed = metric["value"]["share"] >= config.get("drift_share", 0.5)
    return changed or bool(flagged), flagged


def alibi(a: pd.DataFrame, b: pd.DataFrame) -> tuple[bool, set[str]]:
    from alibi_detect.cd import TabularDrift

    names = list(a.columns)
    encoded_a, encoded_b, categories = [], [], {}
    for i, name in enumerate(names):
        if a[name].dtype.kind in "if":
            encoded_a.append(a[name].fillna(-999.0).to_numpy(float))
            encoded_b.append(b[name].fillna(-999.0).to_numpy(float))
        else:
            both = pd.concat([a[name], b[name]]).astype(str)
            codes, levels = pd.factorize(both)
            categories[i] = list(range(len(levels)))
            encoded_a.append(codes[: len(a)].astype(float))
            encoded_b.append(codes[len(a) :].astype(float))
    x, y = np.column_stack(encoded_a), np.column_stack(encoded_b)
    detector = TabularDrift(x, p_val=ALPHA, categories_per_feature=categories, correction="fdr")
    data = detector.predict(y, drift_type="batch", return_p_val=True)["data"]
    by_feature = detector.predict(y, drift_type="feature")["data"]["is_drift"]
    changed = bool(data["is_drift"])
    flagged = {name for name, drift in zip(names, by_feature) if drift} if changed else set()
    return changed, flagged


def nannyml(a: pd.DataFrame, b: pd.DataFrame) -> tuple[bool, set[str]]:
    import nannyml as nml

    features = list(a.columns)
    a, b = (f.copy() for f in (a, b))
    for frame in (a, b):
        for name in features:
            if frame[name].dtype.kind not in "if":
                frame[name] = frame[name].astype(str)
    # The alert threshold is learnt from chunks of the reference.
    calculator = nml.DomainClassifierCalculator(feature_column_names=features, chunk_size=max(len(b) // 5, 200))
    calculator.fit(a)
    result = calculator.calculate(b).filter(period="analysis").to_df()
    alerts = result[("domain_classifier_auroc", "alert")]
    return bool(alerts.astype(bool).any()), set()


def judge(tool, args, folder, a, b):
    start = time.perf_counter()
    if tool == "setwise":
        found = setwise(a, b, [args.setwise, "compare", "--alpha", str(args.alpha)], folder)
    else:
        found = {"scipy": scipy_bh, "evidently": evidently, "alibi": alibi, "nannyml": nannyml}[tool](a, b)
    return (*found, time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", default="setwise")
    parser.add_argument("--setwise", default="target/release/setwise")
    parser.add_argument("--alpha", type=float, default=ALPHA, help="level of setwise")
    parser.add_argument("--sizes", default="1000,10000")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--null", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--summary", nargs="*", type=Path)
    args = parser.parse_args()
    if args.summary:
        return summary(args.summary)
    sizes = [int(n) for n in args.sizes.split(",")]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for n in sizes:
            kinds = ["none"] * args.null if args.null else [k for k in args.kinds.split(",") for _ in range(args.seeds)]
            for i, kind in enumerate(kinds):
                rng = np.random.default_rng([n, i, 20261119])
                a, b = table(n, rng), table(n, rng)
                touched = set()
                if kind != "none":
                    b, touched = change(b, kind, rng)
                changed, flagged, seconds = judge(args.tool, args, Path(folder), a.drop(columns="id"), b.drop(columns="id"))
                results.append(
                    {"kind": kind, "rows": n, "changed": changed, "located": bool(flagged & touched),
                     "false": len(flagged - touched), "any": changed or bool(flagged), "seconds": seconds,
                     "flagged": sorted(flagged)}
                )
                if sys.stderr.isatty():
                    print(f"\r{args.tool} {n}: {i + 1}/{len(kinds)}", end="", file=sys.stderr)
            mine = [r for r in results if r["rows"] == n]
            print(args.tool, n, "detected", np.mean([r["any"] for r in mine]).round(4), "located",
                  np.mean([r["located"] for r in mine]).round(4), "false per table",
                  np.mean([r["false"] for r in mine]).round(4), "seconds", np.median([r["seconds"] for r in mine]).round(3), flush=True)
            if args.out:
                name = args.tool if args.alpha == ALPHA else f"{args.tool}, alpha {args.alpha}"
                args.out.write_text(json.dumps({"tool": name, "results": results}))


def located(tool: str, result: dict) -> bool:
    """Whether a change is located. Duplicated rows touch no column, and nannyml judges whole tables."""
    whole = tool == "nannyml" or result["kind"] == "duplicated rows"
    return result["any"] if whole else result["located"]


def summary(paths: list[Path]) -> None:
    """Prints rates of all tools in Markdown: over all kinds by size, then located changes by kind."""
    results = {}
    for path in paths:
        content = json.loads(path.read_text())
        results.setdefault(content["tool"], []).extend(content["results"])
    print("| rows | tool | tables | detected | located | false flags a table |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    sizes = sorted({r["rows"] for found in results.values() for r in found})
    for n in sizes:
        for tool, of_tool in results.items():
            mine = [r for r in of_tool if r["rows"] == n]
            if mine:
                detected, false = (np.mean([r[key] for r in mine]) for key in ("any", "false"))
                found = np.mean([located(tool, r) for r in mine])
                print(f"| {n:,} | {tool} | {len(mine)} | {detected:.1%} | {found:.1%} | {false:.3f} |")
    sizes = [n for n in sizes if n <= 10_000]
    columns = [(n, tool) for n in sizes for tool in results]
    print("\n| change | " + " | ".join(f"{tool}, {n:,}" for n, tool in columns) + " |")
    print("| --- |" + " ---: |" * len(columns))
    for kind in KINDS:
        cells = []
        for n, tool in columns:
            mine = [located(tool, r) for r in results[tool] if (r["rows"], r["kind"]) == (n, kind)]
            cells.append(f"{np.mean(mine):.0%}" if mine else "")
        print(f"| {kind} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()

"""Real data: pathway networks of real and shuffled genes beside logistic regression, and survival beside Cox's ridge.

Cell types are scanpy's `pbmc68k_reduced` (700 cells, 10 types), whose genes feed the Reactome sets that scvega ships;
survival is scikit-survival's GSE7390 (198 patients, 51 events), whose columns are probes: nothing here maps them to
genes, so its network has the default graph. Beside the network: the same graph with the names of its genes shuffled,
which has the shape of biology and none of its sense; and the same graph in binn and kpnn2, where those are installed.
5 folds, three times dealt out; preprocessing and choices between settings see training folds only. Intervals are 95 %,
of Student's t with the variance that overlapping training folds need. Source: Nadeau and Bengio, "Inference for the
generalization error", Machine Learning 52, 2003.
"""

import argparse
import datetime
import importlib.util
import json
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

FOLDS, SEEDS = 5, (0, 1, 2)
PEERS = {"binn": "binn (--no-deps)", "kpnn2": "kpnn2"}
NEEDED = {"sklearn": "scikit-learn", "scanpy": "scanpy", "sksurv": "scikit-survival", "vega": "scvega (--no-deps)"}


class Scores(NamedTuple):
    """What one model reached, one score for each fold of each seed."""

    data: str
    model: str
    score: str
    values: list[float]
    seconds: float


def interval(values: list[float], folds: int = FOLDS) -> tuple[float, float]:
    """Mean and half-width of the 95 % interval of repeated cross-validation."""
    count = len(values)
    spread = float(np.var(values, ddof=1)) * (1 / count + 1 / (folds - 1))
    return float(np.mean(values)), float(stats.t.ppf(0.975, count - 1)) * spread**0.5


def scored(
    data: str,
    model: str,
    score: str,
    make: Callable[[int], Any],
    x: Any,
    y: NDArray[Any],
    strata: NDArray[Any],
    seeds: tuple[int, ...],
    judge: Callable[[Any, Any, Any], float],
) -> Scores:
    """``make(seed)`` fitted and judged on every fold."""
    from sklearn.model_selection import StratifiedKFold

    values, started = [], time.process_time()
    for seed in seeds:
        for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(np.zeros(len(y)), strata):
            rows = x.iloc if hasattr(x, "iloc") else x
            fitted = make(seed).fit(rows[train], y[train])
            values.append(judge(fitted, rows[test], y[test]))
    mean, half = interval(values)
    print(f"{data}, {model}: {mean:.3f} +- {half:.3f}", file=sys.stderr, flush=True)
    return Scores(data, model, score, values, (time.process_time() - started) / len(values))


def cells(seeds: tuple[int, ...], only: str = "") -> list[Scores]:
    """Balanced accuracy of cell types."""
    import scanpy
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import balanced_accuracy_score
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from benchmarks.visible_data_peers import Binn, Kpnn2, PeerClassifier
    from dagnn import visible
    from dagnn.graph import Dag

    annotated = scanpy.datasets.pbmc68k_reduced()
    spec = importlib.util.find_spec("vega")
    assert spec is not None and spec.submodule_search_locations
    gmt = Path(spec.submodule_search_locations[0]) / "data" / "reactomes.gmt"
    whole = visible.read_gmt(gmt, hierarchy="containment")
    part = visible.restrict(whole, annotated, merge_chains=True)
    print(whole.report, part.report, sep="\n")
    frame, types = annotated.to_df(), annotated.obs["bulk_labels"].astype(str).to_numpy()
    genes = [part.dag.name_of(node) for node in part.dag.inputs.tolist()]
    dealt = dict(zip(genes, np.random.default_rng(0).permutation(genes).tolist(), strict=True))
    shuffled = Dag(
        part.dag.edges,
        names=[dealt.get(name, name) for name in part.dag.names or ()],
        inputs=part.dag.inputs,
        outputs=part.dag.outputs,
    )

    def judge(model: Any, x: Any, y: Any) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a class without a cell in this fold
            return float(balanced_accuracy_score(y, model.predict(x)))

    def tuned(model: Any, **settings: list[float]) -> Any:
        return GridSearchCV(model, settings, scoring="balanced_accuracy", cv=3)

    def line(_: int) -> Any:
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=3000))
        return tuned(model, logisticregression__C=[0.01, 0.1, 1.0])

    def network(graph: Dag | None = None, random_state: int = 0) -> Any:
        return tuned(visible.DagClassifier(graph, random_state=random_state), weight_decay=[0.1, 0.3, 1.0])

    def peer(make: Any, seed: int, **settings: list[float]) -> Any:
        return tuned(PeerClassifier(make, random_state=seed), weight_decay=[0.1, 0.3, 1.0], **settings)

    models: list[tuple[str, Callable[[int], Any], Any]] = [
        ("`DagClassifier`, Reactome", lambda seed: network(part.dag, random_state=seed), frame[genes]),
        (
            "`DagClassifier`, the same graph with its genes shuffled",
            lambda seed: network(shuffled, random_state=seed),
            frame[genes],
        ),
        ("`DagClassifier`, default graph", lambda seed: network(random_state=seed), frame[genes]),
        (f"logistic regression, these {len(genes)} genes", line, frame[genes]),
        (f"logistic regression, all {frame.shape[1]} genes", line, frame),
    ]
    if _has("kpnn2"):
        models.append(("kpnn2, Reactome", partial(peer, Kpnn2(part.dag)), frame[genes]))
    if _has("binn"):
        models.append(("binn, Reactome", partial(peer, Binn(part.dag), learning_rate=[1e-3, 1e-2]), frame[genes]))
    return [
        scored("cell types", name, "balanced accuracy", make, x, types, types, seeds, judge)
        for name, make, x in models
        if only in name
    ]


def patients(seeds: tuple[int, ...], only: str = "") -> list[Scores]:
    """Concordance of survival times."""
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sksurv.datasets import load_breast_cancer
    from sksurv.linear_model import CoxPHSurvivalAnalysis

    from benchmarks.visible_data_peers import Kpnn2, PeerSurvival
    from dagnn.visible import DagSurvival, concordance_index
    from dagnn.visible.fitting import layered_dag

    table, y = load_breast_cancer()
    x = table.assign(er=table["er"] == "positive").drop(columns="grade").astype(float).to_numpy()
    grade = table["grade"].map({"poorly differentiated": 3, "intermediate": 2, "well differentiated": 1}).astype(float)
    x = np.column_stack([x, grade.fillna(2)])

    def judge(model: Any, x: Any, y: Any) -> float:
        return concordance_index(model.predict(x), y["e.tdm"], y["t.tdm"])

    def ridge(_: int) -> Any:
        model = make_pipeline(StandardScaler(), CoxPHSurvivalAnalysis(n_iter=1000))
        return GridSearchCV(model, {"coxphsurvivalanalysis__alpha": [10.0, 100.0, 1000.0]}, cv=3)

    def network(seed: int) -> Any:
        return GridSearchCV(DagSurvival(random_state=seed), {"weight_decay": [0.3, 1.0, 3.0]}, cv=3)

    def packed(seed: int) -> Any:
        model = PeerSurvival(Kpnn2(layered_dag), random_state=seed)
        return GridSearchCV(model, {"weight_decay": [0.3, 1.0, 3.0]}, cv=3)

    models: list[tuple[str, Callable[[int], Any]]] = [("`DagSurvival`, default graph", network), ("Cox's ridge", ridge)]
    if _has("kpnn2"):
        models.append(("kpnn2, the same graph", packed))
    return [
        scored("survival", name, "C-index", make, x, y, y["e.tdm"], seeds, judge)
        for name, make in models
        if only in name
    ]


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


COLUMNS = ["data", "model", "score", "mean", "95 % interval"]


def cells_of(row: Scores) -> list[str]:
    """A row as it is shown."""
    mean, half = interval(row.values)
    return [row.data, row.model, row.score, f"{mean:.3f}", f"{mean - half:.3f} .. {mean + half:.3f}"]


def table(rows: list[Scores]) -> str:
    """The scores as a table in Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} | CPU s a fit |", f"|{'---|' * (len(COLUMNS) + 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(cells_of(row))} | {row.seconds:.2f} |" for row in rows)])


def join(path: Path, rows: list[Scores]) -> None:
    """Put rows into a file of ``docs/benchmarks/rows``: in the place of those of the same model, or behind its data."""
    found = json.loads(path.read_text()) if path.exists() else {"kind": "table", "columns": COLUMNS, "rows": []}
    new = {tuple(row[:2]): row for row in map(cells_of, rows)}
    kept = [new.pop((row[0], row[1]), row) for row in found["rows"]] + list(new.values())
    places = {data: place for place, data in reversed([*enumerate(row[0] for row in kept)])}
    headed = {
        "kind": "table",
        "claim": "pathway networks on real data",
        "command": "python -m benchmarks.visible_data",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": "scores do not depend on the machine's speed",
        "columns": COLUMNS,
        "rows": sorted(kept, key=lambda row: places[row[0]]),
    }
    path.write_text(json.dumps(headed, indent=1, ensure_ascii=False) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--only", default="", metavar="WORD", help="models with this in their name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also put the rows into this file, beside others")
    given = parser.parse_args(arguments)
    seeds = SEEDS[:1] if given.quick else SEEDS
    absent = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if absent:
        print(f"this benchmark needs pip install {' '.join(absent)}")
        return 0
    for module, package in PEERS.items():
        if not _has(module):
            print(f"without rows of {module}: pip install {package}")
    warnings.simplefilter("ignore", FutureWarning)  # those of scanpy about itself
    rows = [*cells(seeds, given.only), *patients(seeds, given.only)]
    print(table(rows))
    if given.json is not None:
        join(given.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

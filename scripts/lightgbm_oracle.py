"""Trains LightGBM's lambdarank on one fixture and prints the scores of its held-out rows: what tests/learn_oracle.rs compares with.

Reads one JSON object from standard input: "params" as LightGBM names them, "rounds", and "train" and "held_out", each with
"rows" (lists of numbers), "labels" (grades, one a row) and "groups" (rows of each group). Writes a JSON list of scores.
"""

import json
import sys

import lightgbm
import numpy


def rows(part):
    return numpy.array(part["rows"], dtype=numpy.float32)


def main():
    fixture = json.load(sys.stdin)
    train, held_out = fixture["train"], fixture["held_out"]
    data = lightgbm.Dataset(rows(train), label=train["labels"], group=train["groups"])
    model = lightgbm.train(fixture["params"], data, num_boost_round=fixture["rounds"])
    json.dump(model.predict(rows(held_out), raw_score=True).tolist(), sys.stdout)


if __name__ == "__main__":
    main()

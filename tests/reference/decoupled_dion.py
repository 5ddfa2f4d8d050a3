#!/usr/bin/env python3
"""Writes decoupled_dion.json: Dion with a momentum of each replica (optim/matrices/dion_sum.h), in NumPy and float64.

Needs    NumPy
Usage    python3 tests/reference/decoupled_dion.py > tests/reference/decoupled_dion.json

Also checks that updates are those of one replica with the sum of all gradients, to 1e-12 for 100 steps, and that
averages of momenta change nothing. Gradients and the first bases are formulas, which
tests/optim/dion_sum_test.cpp has, too.
"""
import json

import numpy as np
from dion import FRACTION, MOMENTUM, PARAMETERS, digest, tensor

REPLICAS, STEPS, AVERAGES = 3, 100, 10
LOOKS = (0, 1, 9, 29)


def matrices():
    for index, shape, rows in PARAMETERS:
        begin = 0
        for number, count in enumerate(rows):
            rank = int(np.ceil(FRACTION * min(count, shape[1])))
            yield index, slice(begin, begin + count), shape, tensor(9, number, index, (rank, shape[1])).T
            begin += count


def run(replicas, interval):
    """What each step's updates are, and what each replica's momenta then are, by parameter."""
    state = [{"index": index, "rows": rows, "shape": shape, "q": q,
              "m": [np.zeros((rows.stop - rows.start, shape[1])) for _ in range(replicas)]}
             for index, rows, shape, q in matrices()]
    for step in range(STEPS):
        updates, momenta = {}, [{} for _ in range(replicas)]
        for s in state:
            if interval and step and step % interval == 0:
                s["m"] = [sum(s["m"]) / replicas] * replicas
            for w in range(REPLICAS):
                of = w % replicas
                s["m"][of] = s["m"][of] + tensor(w, step, s["index"], s["shape"])[s["rows"]]
            p, _ = np.linalg.qr(sum(m @ s["q"] for m in s["m"]))
            own = [m.T @ p for m in s["m"]]
            r = sum(own)
            s["m"] = [m - (1 - MOMENTUM) * p @ each.T for m, each in zip(s["m"], own)]
            s["q"] = r / np.linalg.norm(r, axis=0, keepdims=True)
            updates.setdefault(s["index"], []).append(p @ s["q"].T)
            for w in range(replicas):
                momenta[w].setdefault(s["index"], []).append(s["m"][w])
        yield ({i: np.concatenate(u) for i, u in updates.items()},
               [{i: np.concatenate(m) for i, m in of.items()} for of in momenta])


def main():
    steps = []
    for step, (one, apart, averaged) in enumerate(zip(run(1, 0), run(REPLICAS, 0), run(REPLICAS, AVERAGES))):
        for index, _, _ in PARAMETERS:
            for other in (apart, averaged):
                assert np.abs(other[0][index] - one[0][index]).max() < 1e-12, (step, index)
                total = sum(m[index] for m in other[1])
                assert np.abs(total - one[1][0][index]).max() < 1e-10, (step, index)
        if step in LOOKS:
            out = {"step": step}
            for index, _, _ in PARAMETERS:
                out[f"{index}.sum"] = digest(apart[0][index])
                for w in range(REPLICAS):
                    out[f"{index}.momentum.{w}"] = digest(apart[1][w][index])
                    out[f"{index}.averaged.{w}"] = digest(averaged[1][w][index])
            steps.append(out)
    print("[")
    print(",\n".join(" " + json.dumps(out) for out in steps))
    print("]")


main()

#!/usr/bin/env python3
"""Writes dion.json: updates by Dion (optim/matrices/dion.h), in NumPy and float64.

Needs    NumPy
Usage    python3 tests/reference/dion.py > tests/reference/dion.json

Algorithm 1 of arXiv:2504.05295 as it is written there, on [rows, columns] with bases [columns, rank], and NumPy's QR:
it shares nothing with the kernels. Gradients, weights and the first bases are formulas, which
tests/optim/dion_test.cpp has, too. Each tensor is written as its norm, its product with a formula, and two elements.
"""
import json

import numpy as np

FRACTION, MOMENTUM, LR, DECAY, STEPS = 0.25, 0.95, 0.02, 0.1, 30
# parameter index, shape, rows of its matrices: wide, tall and square ones
PARAMETERS = [(1, (27, 13), [13, 7, 7]), (2, (13, 19), [13]), (3, (24, 8), [24])]


def value(what, step, parameter, element):
    i = ((element + 1) * 7919 + step * 104729 + what * 1299709 + parameter * 15485863) % 2001
    return ((i * i % 2003) - 1001) / 1024


def tensor(what, step, index, shape, first=0):
    n = int(np.prod(shape))
    return np.array([value(what, step, index, first + i) for i in range(n)]).reshape(shape)


def digest(x):
    flat = x.reshape(-1)
    weights = np.array([value(0, 77, 5, i) for i in range(flat.size)])
    return [float(np.linalg.norm(flat)), float(flat @ weights), float(flat[0]), float(flat[-1])]


def main():
    state = []
    for index, shape, rows in PARAMETERS:
        begin = 0
        for number, count in enumerate(rows):
            rank = int(np.ceil(FRACTION * min(count, shape[1])))
            basis = tensor(9, number, index, (rank, shape[1])).T
            state.append({"index": index, "rows": slice(begin, begin + count), "shape": shape, "q": basis,
                          "x": tensor(8, 0, index, shape)[begin:begin + count], "m": np.zeros((count, shape[1]))})
            begin += count
    steps = []
    for step in range(STEPS):
        lr = LR * (1 - 0.01 * step)
        for s in state:
            m, n = s["m"].shape
            s["m"] = s["m"] + tensor(0, step, s["index"], s["shape"])[s["rows"]]
            p, _ = np.linalg.qr(s["m"] @ s["q"])
            r = s["m"].T @ p
            s["m"] = s["m"] - (1 - MOMENTUM) * p @ r.T
            s["q"] = r / np.linalg.norm(r, axis=0, keepdims=True)
            s["x"] = s["x"] - lr * DECAY * s["x"] - lr * np.sqrt(m / n) * p @ s["q"].T
        if step in (0, 1, 9, STEPS - 1):
            out = {"step": step}
            for index, _, _ in PARAMETERS:
                own = [s for s in state if s["index"] == index]
                out[f"{index}.param"] = digest(np.concatenate([s["x"] for s in own]))
                out[f"{index}.momentum"] = digest(np.concatenate([s["m"] for s in own]))
                # of columns that may have either sign
                out[f"{index}.basis"] = digest(np.concatenate([np.abs(s["q"].T) for s in own]))
            steps.append(out)
    print("[")
    print(",\n".join(" " + json.dumps(out) for out in steps))
    print("]")


if __name__ == "__main__":
    main()

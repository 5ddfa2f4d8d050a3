#!/usr/bin/env python3
"""Writes power_sgd.json: low-rank sums of three replicas (optim/low_rank_sum.h), in NumPy and float64.

Needs    NumPy
Usage    python3 tests/reference/power_sgd.py > tests/reference/power_sgd.json

Gradients and the first Q are formulas, which tests/optim/low_rank_sum_test.cpp has, too. Gram-Schmidt is NumPy's
QR with the signs of the diagonal of R made positive, so it shares nothing with the kernel. Each tensor is written as
its norm, its product with a formula, and two of its elements.
"""
import json

import numpy as np

REPLICAS, RANK, STEPS = 3, 2, 5
# parameter index, shape, rows of its matrices; a vector is sent whole
PARAMETERS = [(0, (13,), []), (1, (27, 13), [13, 7, 7]), (2, (13, 19), [13])]


def value(replica, step, parameter, element):
    i = ((element + 1) * 7919 + step * 104729 + replica * 1299709 + parameter * 15485863) % 2001
    return ((i * i % 2003) - 1001) / 1024


def gradient(replica, step, index, shape):
    n = int(np.prod(shape))
    return np.array([value(replica, step, index, i) for i in range(n)]).reshape(shape)


def orthonormal(rows):
    q, r = np.linalg.qr(rows.T)
    return (q * np.sign(np.diag(r))).T


def digest(x):
    flat = x.reshape(-1)
    weights = np.array([value(0, 77, 5, i) for i in range(flat.size)])
    return [float(np.linalg.norm(flat)), float(flat @ weights), float(flat[0]), float(flat[-1])]


def main():
    errors = [{index: np.zeros(shape) for index, shape, _ in PARAMETERS} for _ in range(REPLICAS)]
    bases = {}
    for index, shape, rows in PARAMETERS:
        for number in range(len(rows)):
            bases[index, number] = np.array(
                [[value(9, c, index, number * 100 + j) for j in range(shape[1])] for c in range(RANK)])
    steps = []
    for step in range(STEPS):
        out = {}
        for index, shape, rows in PARAMETERS:
            m = [gradient(w, step, index, shape) + errors[w][index] for w in range(REPLICAS)]
            if not rows:
                out[f"{index}.sum"] = digest(sum(m))
                continue
            total = np.zeros(shape)
            begin = 0
            for number, count in enumerate(rows):
                part = [x[begin:begin + count] for x in m]
                q = orthonormal(bases[index, number])
                p = orthonormal(sum(x @ q.T for x in part).T)  # [rank, rows]
                own = [p @ x for x in part]                    # [rank, columns]
                bases[index, number] = sum(own)
                total[begin:begin + count] = p.T @ sum(own)
                for w in range(REPLICAS):
                    errors[w][index][begin:begin + count] = part[w] - p.T @ own[w]
                begin += count
            out[f"{index}.sum"] = digest(total)
            for w in range(REPLICAS):
                out[f"{index}.error.{w}"] = digest(errors[w][index])
        steps.append(out)
    print(json.dumps(steps, indent=1))


main()

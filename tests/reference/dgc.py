#!/usr/bin/env python3
"""Writes dgc.json: sparse sums of three replicas (optim/sparse_sum.h), in NumPy and float32, to the bit.

Needs    NumPy
Usage    python3 tests/reference/dgc.py > tests/reference/dgc.json

Each case changes one option. Gradients are a formula, which tests/optim/sparse_sum_test.cpp has, too. Digests (FNV-1a, 64
bits) are of the bytes of the sum, of each replica's errors and of its velocities, after each step.
"""
import json
import math

import numpy as np

REPLICAS, STEPS, CHUNK = 3, 6, 65536
# parameter index, shape; a vector is sent whole. The matrix has two chunks.
PARAMETERS = [(0, (13,)), (1, (270, 260)), (2, (13, 19))]
f32 = np.float32

BASE = dict(ratio=0.01, sample=0.05, lower=0.8, upper=1.3, adapt=10, warmup=0, coeff=0.0, clip="none", threshold=1.0,
            correction=True, masking=True, momentum=0.9)
CASES = {
    "base": {},
    "ratio": dict(ratio=0.002),
    "sample": dict(sample=1.0),
    "bounds": dict(lower=0.97, upper=1.02),
    "iterations": dict(adapt=1, sample=0.004, lower=0.97, upper=1.02),
    "warmup": dict(warmup=2),
    "coeff": dict(warmup=2, coeff=0.5),
    "norm": dict(clip="norm", threshold=40.0),
    "value": dict(clip="value", threshold=0.75),
    "no_correction": dict(correction=False),
    "no_masking": dict(masking=False),
}
STEPS_PER_EPOCH = 2


def gradient(replica, step, index, shape):
    e = np.arange(int(np.prod(shape)), dtype=np.int64)
    i = ((e + 1) * 7919 + step * 104729 + replica * 1299709 + index * 15485863) % 2001
    return ((i * i % 2003 - 1001).astype(f32) / f32(1024)).astype(f32)


def wanted(ratio, n):
    return min(max(math.ceil(ratio * n * (1.0 - 1e-12)), 1), n)


def choose(x, o, ratio):
    k, n = wanted(ratio, x.size), x.size
    samples = min(n, max(wanted(o["sample"], n), math.ceil(2.0 / ratio)))
    size = np.abs(x)
    picked = size[:: n // samples][:samples]
    threshold = np.sort(picked)[::-1][wanted(ratio, samples) - 1]
    if samples < n:
        for _ in range(o["adapt"]):
            count = np.count_nonzero((size >= threshold) & (x != 0))
            if count > float(f32(o["upper"])) * k:
                threshold = f32(threshold * f32(o["upper"]))
            elif count < float(f32(o["lower"])) * k:
                threshold = f32(threshold * f32(o["lower"]))
            else:
                break
    return np.flatnonzero((size >= threshold) & (x != 0))[:k]


def clipped(g, o):
    if o["clip"] == "value":
        limit = f32(o["threshold"] / REPLICAS)
        return np.clip(g, -limit, limit)
    if o["clip"] == "norm":
        total = 0.0  # blocks of 64, each in order, then their sums in order
        for begin in range(0, g.size, 64):
            block = 0.0
            for v in g[begin:begin + 64].astype(np.float64):
                block += v * v
            total += block
        norm, bound = math.sqrt(total), o["threshold"] / math.sqrt(REPLICAS) / REPLICAS
        if norm > bound:
            return (g * f32(bound / norm)).astype(f32)
    return g


def digest(x):
    h = 0xCBF29CE484222325
    for byte in (x + f32(0)).astype("<f4").tobytes():
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def run(o):
    mu = f32(o["momentum"])
    u = [{i: np.zeros(int(np.prod(s)), f32) for i, s in PARAMETERS} for _ in range(REPLICAS)]
    v = [{i: np.zeros(int(np.prod(s)), f32) for i, s in PARAMETERS} for _ in range(REPLICAS)]
    whole = np.zeros(13, f32)
    steps = []
    for step in range(STEPS):
        ratio, epoch = o["ratio"], step // STEPS_PER_EPOCH
        if epoch < o["warmup"]:
            coeff = o["coeff"] or math.pow(ratio, 1.0 / (o["warmup"] + 1))
            ratio = max(ratio, math.pow(coeff, epoch + 1))
        out = {}
        for index, shape in PARAMETERS:
            g = [gradient(w, step, index, shape) for w in range(REPLICAS)]
            if len(shape) == 1:
                total = (g[0] + g[1]) + g[2]
                if o["correction"]:
                    whole = mu * whole + total
                    total = whole
                out[f"{index}.sum"] = digest(total)
                continue
            total = np.zeros(int(np.prod(shape)), f32)
            for w in range(REPLICAS):
                g[w] = clipped(g[w], o)
                if o["correction"]:
                    u[w][index] = mu * u[w][index] + g[w]
                    v[w][index] = v[w][index] + u[w][index]
                else:
                    v[w][index] = v[w][index] + g[w]
                for begin in range(0, total.size, CHUNK):
                    at = begin + choose(v[w][index][begin:begin + CHUNK], o, ratio)
                    total[at] += v[w][index][at]
                    v[w][index][at] = 0
                    if o["correction"] and o["masking"]:
                        u[w][index][at] = 0
            out[f"{index}.sum"] = digest(total)
            for w in range(REPLICAS):
                out[f"{w}.{index}.error"] = digest(v[w][index])
                if o["correction"]:
                    out[f"{w}.{index}.velocity"] = digest(u[w][index])
        if step + 1 == STEPS or step == 0:
            steps.append(out)
    return steps


def main():
    print(json.dumps({name: run({**BASE, **change}) for name, change in CASES.items()}, indent=1))


main()

#!/usr/bin/env python3
"""Writes eight_bits.json: 20 steps of AdamW and Lion with moments in 8 bits, in NumPy and float32.

Needs    build/oracle-venv (./dev deps oracle)
Usage    build/oracle-venv/bin/python tests/reference/eight_bits.py > tests/reference/eight_bits.json

Maps are those of Dettmers et al. 2022 (arXiv:2110.02861) as bitsandbytes makes them: torch.linspace, midpoints,
powers of ten. Codes are found by looking at the distance to all 256 values. Digests (FNV-1a, 64 bits) are of bytes:
f32 values, and codes counted from the value 0. Each operation is rounded once, in the order of kernels/update.h.
"""
import json

import numpy as np
import torch

N, STEPS, BLOCK = 300, 20, 64
LR, DECAY, EPS = np.float32(0.01), np.float32(0.1), np.float32(1e-8)
f32 = np.float32


def mixed(i):
    z = (i + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def numbers(draw):
    """Exact: 24 random bits in [-1, 1)."""
    with np.errstate(over="ignore"):
        bits = (mixed(np.arange(N, dtype=np.uint64) * np.uint64(64) + np.uint64(draw)) >> np.uint64(40)).astype(np.int64)
    return ((bits - (1 << 23)) * 2.0**-23).astype(f32)


def gradients(step):
    """Sizes from 1 to 2^-28 within a block, and a block of zeros."""
    g = numbers(step) * np.exp2(-(np.arange(N) % 29)).astype(f32)
    g[128:192] = 0
    return g


def dynamic_map(signed):
    values = []
    for i in range(7):
        bounds = torch.linspace(0.1, 1, (2**i if signed else 2**(i + 1)) + 1)
        means = (bounds[:-1] + bounds[1:]) / 2.0
        values += (10**(i - 6) * means).tolist()
        if signed:
            values += (-(10**(i - 6)) * means).tolist()
    values += [0.0, 1.0]
    assert len(values) == 256
    return np.array(sorted(values), dtype=f32)


class State:
    def __init__(self, signed):
        self.signed, self.map = signed, dynamic_map(signed)
        self.codes = np.full(N, int(np.argmin(np.abs(self.map))))
        self.scales = np.zeros((N + BLOCK - 1) // BLOCK, dtype=f32)

    def values(self):
        return self.map[self.codes] * np.repeat(self.scales, BLOCK)[:N]

    def store(self, x):
        # A tie gives the lower value: the middle, in f32, belongs to it.
        middles = (self.map[:-1] + self.map[1:]) / f32(2)
        for b in range(len(self.scales)):
            part = slice(b * BLOCK, min(N, (b + 1) * BLOCK))
            self.scales[b] = np.max(np.abs(x[part]))
            if self.scales[b] == 0:
                self.codes[part] = int(np.argmin(np.abs(self.map)))
                continue
            ratio = x[part] / self.scales[b]
            codes = (middles[None, :] < ratio[:, None]).sum(axis=1)
            apart = np.abs(self.map.astype(np.float64)[None, :] - ratio.astype(np.float64)[:, None])
            nearest = np.take_along_axis(apart, codes[:, None], 1)[:, 0]
            assert (nearest <= apart.min(axis=1) + 1e-7 * np.abs(ratio)).all()
            if not self.signed:
                codes = np.maximum(codes, (x[part] > 0).astype(int))  # never 0
            self.codes[part] = codes

    def bytes(self):
        return ((self.codes - int(np.argmin(np.abs(self.map)))) & 255).astype(np.uint8)


def digest(array):
    value = 0xCBF29CE484222325
    for byte in np.ascontiguousarray(array).tobytes():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def fresh(beta):
    return f32(1.0 - float(beta))


def adamw():
    p, m, v = numbers(0), State(True), State(False)
    b1, b2 = f32(0.9), f32(0.95)
    for t in range(1, STEPS + 1):
        g = gradients(t)
        rate = f32(float(LR) * (1.0 / (1.0 - float(b1)**t)))
        root = f32(1.0 / np.sqrt(1.0 - float(b2)**t))
        new_m = b1 * m.values() + fresh(b1) * g
        new_v = b2 * v.values() + fresh(b2) * (g * g)
        p = (p - (LR * DECAY) * p) - rate * new_m / (np.sqrt(new_v) * root + EPS)
        m.store(new_m)
        v.store(new_v)
    assert p.dtype == f32
    return p, [m, v]


def lion():
    p, m = numbers(0), State(True)
    b1, b2 = f32(0.9), f32(0.99)
    for t in range(1, STEPS + 1):
        g, old = gradients(t), m.values()
        p = p - LR * (np.sign(b1 * old + fresh(b1) * g) + DECAY * p)
        m.store(b2 * old + fresh(b2) * g)
    return p, [m]


def main():
    out = {"generator": f"tests/reference/eight_bits.py, numpy {np.__version__}, torch {torch.__version__}",
           "with_signs": digest(dynamic_map(True)), "without": digest(dynamic_map(False)),
           "gradient_of_step_7": digest(gradients(7))}
    for name, run in (("adamw", adamw), ("lion", lion)):
        p, states = run()
        out[name] = {"parameters": digest(p), "some": [float(x) for x in p[[0, 1, 150, 299]]],
                     "codes": [digest(s.bytes()) for s in states], "scales": [digest(s.scales) for s in states]}
    print(json.dumps(out, indent=1))


main()

#!/usr/bin/env python3
"""Writes block_codec.json: 2^16 + 13 numbers in int8 and int4 blocks (kernels/block_codec.h), in NumPy.

Needs    build/oracle-venv (./dev deps oracle)
Usage    build/oracle-venv/bin/python tests/reference/block_codec.py > tests/reference/block_codec.json

Scales are rounded up in float64 arithmetic (frexp, ceil), not with bits. Digests (FNV-1a, 64 bits) are of bytes.
"""
import json

import numpy as np

N, BLOCK, PARTS = (1 << 16) + 13, 64, 3
f32 = np.float32


def mixed(i):
    z = (i + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def numbers(draw):
    """24 random bits in [-1, 1), times a power of two for each block; every 17th block is zero."""
    i = np.arange(N, dtype=np.uint64)
    with np.errstate(over="ignore"):
        bits = (mixed(i * np.uint64(64) + np.uint64(draw)) >> np.uint64(40)).astype(np.int64)
    block = np.arange(N) // BLOCK
    x = (bits - (1 << 23)) * 2.0**-23 * np.exp2((block % 61) - 40.0)
    return np.where(block % 17 == 3, 0.0, x).astype(f32)


def rounded_up_to_bf16(x):
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.ceil(mantissa * 256) / 256, exponent).astype(f32)


def encode(x, most):
    blocks = np.zeros(((N + BLOCK - 1) // BLOCK, BLOCK), dtype=f32)
    blocks.reshape(-1)[:N] = x
    scales = rounded_up_to_bf16(np.abs(blocks).max(axis=1) / f32(most))
    with np.errstate(invalid="ignore"):
        codes = np.where(scales[:, None] > 0, np.rint(blocks / scales[:, None]), 0).astype(np.int64)
    assert np.abs(codes).max() == most
    return codes, scales


def decode(codes, scales):
    values = codes.astype(f32) * scales[:, None]
    assert (values.astype(np.float64) == codes * scales[:, None].astype(np.float64)).all()
    return values.reshape(-1)[:N]


def digest(array):
    value = 0xCBF29CE484222325
    for byte in np.ascontiguousarray(array).tobytes():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def wire(codes, scales, most):
    code_bytes = (codes & 255).astype(np.uint8).reshape(-1)
    if most == 7:
        nibbles = (codes & 15).reshape(-1)
        code_bytes = (nibbles[0::2] * 16 + nibbles[1::2]).astype(np.uint8)
    scale_bytes = (scales.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    return np.concatenate([code_bytes, scale_bytes])


def main():
    out = {"generator": f"tests/reference/block_codec.py, numpy {np.__version__}", "numbers": N, "parts": PARTS,
           "x": digest(numbers(0))}
    for name, most in (("int8_block64", 127), ("int4_block64", 7)):
        parts = [encode(numbers(draw), most) for draw in range(PARTS)]
        total = numbers(PARTS)
        for codes, scales in parts:
            total = total + decode(codes, scales)
        assert total.dtype == f32
        out[name] = {"bytes": digest(wire(*parts[0], most)), "values": digest(decode(*parts[0])),
                     "sum_onto_fourth": digest(total)}
    print(json.dumps(out, indent=1))


main()

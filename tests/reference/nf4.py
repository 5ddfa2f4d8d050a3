#!/usr/bin/env python3
"""Writes nf4.json: what bitsandbytes makes of 2^20 numbers, as digests (FNV-1a, 64 bits) of bytes.

Needs    build/oracle-venv (./dev deps oracle) and bitsandbytes 0.50.2 in it (pip install --no-deps)
Usage    build/oracle-venv/bin/python tests/reference/nf4.py > tests/reference/nf4.json

The mean of the scales is taken in f64 here; torch's, in f32, may differ in the last bit. Codes of
scales are nearest values, as in bitsandbytes' portable and GPU forms; the library's CPU form looks them
up in a table, and is one off for a few: "scale_codes_otherwise" says how many.
"""
import json

import bitsandbytes
import bitsandbytes.functional as F
import numpy as np
import torch

N = 1 << 20


def mixed(i):
    z = (i + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def numbers():
    """Sums of four uniform numbers, another scale in each block. Exact but for one product."""
    i = np.arange(N, dtype=np.uint64)
    with np.errstate(over="ignore"):
        draws = [(mixed(i * np.uint64(4) + np.uint64(k)) >> np.uint64(42)).astype(np.int64) for k in range(4)]
    sums = (sum(draws) - (1 << 23)).astype(np.float32) * np.float32(2**-22)
    return sums * (1 + (np.arange(N) // 64 % 97).astype(np.float32) / np.float32(64))


def digest(array):
    value = 0xCBF29CE484222325
    for byte in np.ascontiguousarray(array).tobytes():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def main():
    x = torch.from_numpy(numbers())
    codes, state = F.quantize_4bit(x, blocksize=64, compress_statistics=False, quant_type="nf4")
    _, nested = F.quantize_4bit(x, blocksize=64, compress_statistics=True, quant_type="nf4")
    scales = state.absmax.numpy()
    dynamic = F.create_dynamic_map()
    mean = np.float32(scales.astype(np.float64).mean())
    from_mean = torch.from_numpy(scales - mean).reshape(-1, 256)
    ranges = from_mean.abs().max(dim=1)[0]
    middles = (dynamic[:-1] + dynamic[1:]) / 2
    scale_codes = torch.bucketize((from_mean * (1 / ranges)[:, None]).clamp(-1, 1).reshape(-1), middles).to(torch.uint8)

    inner = F.QuantState(absmax=ranges, code=dynamic, blocksize=256, dtype=torch.float32)
    values = {}
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16), ("f16", torch.float16)):
        outer = F.QuantState(absmax=scale_codes, shape=x.shape, code=state.code, blocksize=64, quant_type="nf4",
                             dtype=dtype, offset=torch.tensor(mean), state2=inner)
        out = F.dequantize_4bit(codes, outer)
        values[name] = digest(out.view(torch.int32 if dtype == torch.float32 else torch.int16).numpy())
    print(json.dumps({
        "bitsandbytes": bitsandbytes.__version__, "numbers": N, "x": digest(x.numpy()),
        "codes": digest(codes.numpy()), "scales": digest(scales), "dynamic_values": digest(dynamic.numpy()),
        "mean": float(mean), "mean_of_torch": float(nested.offset),
        "ranges": digest(ranges.numpy()), "scale_codes": digest(scale_codes.numpy()),
        "scale_codes_otherwise": int((scale_codes != nested.absmax).sum()), "values": values}, indent=1))


main()

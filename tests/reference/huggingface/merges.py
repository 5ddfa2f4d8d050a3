"""merges.py [--check]: weighted sums of models, by torch in float64.

Writes tests/engine/inference/merges.json. The models have the tensors of folders.json. Model k (from 0) has the values

    float(formula of folders.py at element i + 977 k) * float(1 + 0.1 k)      in f32

The sum over k of weight_k * value_k is formed in float64, divided by the sum of the weights, and rounded to nearest
with ties to even, to f32 and to bf16. Of each tensor the file has two checksums: the sum over i of (i + 1) * bits_i, modulo 2^64.

Needs `./dev deps oracle`.
"""
import json
import pathlib
import sys

import torch

HERE = pathlib.Path(__file__).resolve().parent
FOLDERS = HERE.parents[1] / "engine" / "huggingface" / "folders.json"
VALUES = HERE.parents[1] / "engine" / "inference" / "merges.json"
CASES = [("llama", [0.5, 0.3, 0.2]), ("llama_tied", [3.0, 1.0]), ("gpt2", [1.0, 1.0, 1.0])]


def values_of(name, shape, model):
    numel = torch.Size(shape).numel()
    i = torch.arange(numel, dtype=torch.int64) + 977 * model
    n = sum(ord(c) * p for p, c in enumerate(name, 1))
    k = ((i * 7919 + n * 104729) % 2**32 >> 7) % 255 - 127
    is_norm = len(shape) == 1 and name.endswith(".weight")
    values = 1 + (k % 17 - 8) / 64 if is_norm else k / 512
    return values.to(torch.float32) * torch.tensor(1 + 0.1 * model, dtype=torch.float32)


def bits_of(sums, dtype):
    if dtype == torch.float32:
        return sums.to(dtype).view(torch.int32).to(torch.int64) % 2**32
    # From f64 torch rounds to f32 first; here to eight bits at once.
    mantissa, exponent = torch.frexp(sums)
    rounded = torch.ldexp(torch.round(mantissa * 256) / 256, exponent)
    return rounded.to(dtype).view(torch.int16).to(torch.int64) % 2**16


def checksum(bits):
    return f"{sum((i + 1) * b for i, b in enumerate(bits.tolist())) % 2**64:016x}"


def main():
    folders = json.loads(FOLDERS.read_text())
    cases = {}
    for name, weights in CASES:
        header = json.loads(folders[name]["header"])
        tensors = {}
        for tensor, entry in header.items():
            if tensor == "__metadata__":
                continue
            sums = torch.zeros(torch.Size(entry["shape"]).numel(), dtype=torch.float64)
            for model, weight in enumerate(weights):
                sums += weight * values_of(tensor, entry["shape"], model).double()
            sums /= sum(weights)
            tensors[tensor] = {"f32": checksum(bits_of(sums, torch.float32)),
                               "bf16": checksum(bits_of(sums, torch.bfloat16))}
        cases[name] = {"weights": weights, "tensors": tensors}
    text = json.dumps(cases, indent=1) + "\n"
    if "--check" in sys.argv:
        sys.exit(VALUES.read_text() != text)
    VALUES.write_text(text)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes stability.json: z-losses and their gradients, and each head's largest attention score, by PyTorch in float64.

Needs    build/oracle-venv (./dev deps oracle)
Usage    build/oracle-venv/bin/python tests/reference/stability.py > tests/reference/stability.json

All inputs are small multiples of 1/8, exact in every type. Gradients come from autograd, of
scale * sum over tokens with a target of (cross-entropy + c * logsumexp^2). Scores are formed for each head, query and
key by themselves; what isn't seen is -inf.
"""
import json

import torch

torch.set_default_dtype(torch.float64)


def eighths(count, step, modulus):
    i = torch.arange(count)
    return ((i * step) % modulus - modulus // 2) / 8.0


def z_loss(vocab, targets, c, grad_scale, scale, softcap):
    logits = eighths(len(targets) * vocab, 37, 61).reshape(-1, vocab).requires_grad_()
    z = scale * logits
    if softcap > 0:
        z = softcap * torch.tanh(z / softcap)
    target = torch.tensor(targets)
    losses = torch.nn.functional.cross_entropy(z, target, ignore_index=-1, reduction="none")
    z_losses = torch.where(target < 0, 0.0, c * torch.logsumexp(z, 1) ** 2)
    (grad_scale * (losses + z_losses).sum()).backward()
    return {"vocab": vocab, "targets": targets, "c": c, "grad_scale": grad_scale, "scale": scale, "softcap": softcap,
            "losses": losses.tolist(), "z_losses": z_losses.tolist(), "gradients": logits.grad.flatten().tolist()}


def largest_scores(sequences, positions, heads, kv_heads, width, scale, window, lengths):
    """`lengths`: of the documents of each row, one after another; padding follows the last."""
    packed = (heads + 2 * kv_heads) * width
    qkv = eighths(sequences * positions * packed, 53, 97).reshape(sequences, positions, -1, width)
    largest = torch.full((heads,), -torch.inf)
    for b in range(sequences):
        document = torch.full((positions,), -1)
        first = 0
        for number, length in enumerate(lengths or [positions]):
            document[first:first + length] = number
            first += length
        for h in range(heads):
            g = heads + h // (heads // kv_heads)
            for q in range(positions):
                for k in range(q + 1):
                    seen = document[q] == document[k] >= 0 and (window == 0 or q - k < window)
                    if seen:
                        score = scale * (qkv[b, q, h] * qkv[b, k, g]).sum()
                        largest[h] = torch.maximum(largest[h], score)
    return {"sequences": sequences, "positions": positions, "heads": heads, "kv_heads": kv_heads, "width": width,
            "scale": scale, "window": window, "lengths": lengths, "largest": largest.tolist()}


print(json.dumps({
    "z_loss": [
        z_loss(2, [0], 1e-4, 1.0, 1.0, 0.0),
        z_loss(7, [3, -1, 0, 6], 1e-4, 1.0, 1.0, 0.0),
        z_loss(33, [5, 32, 0], 0.25, 0.5, 1.0, 0.0),
        z_loss(40, [39, -1, 17], 0.125, 2.0, 0.5, 0.0),
        z_loss(40, [1, 2, 3, -1], 0.5, 1.0, 1.5, 2.5),
    ],
    "attention": [
        largest_scores(1, 1, 1, 1, 4, 0.5, 0, []),
        largest_scores(2, 30, 4, 2, 8, 0.25, 0, []),
        largest_scores(1, 50, 6, 2, 5, 0.5, 7, []),
        largest_scores(2, 40, 2, 1, 8, 1.0, 0, [13, 1, 20]),
        largest_scores(1, 40, 2, 2, 8, 0.125, 5, [25, 15]),
    ],
}, indent=0))

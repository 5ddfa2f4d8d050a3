"""PyTorch's side of `./dev bench peers`: the same training, written as PyTorch's users write it.

    theirs.py MODEL.json WEIGHTS TOKENS MODE WORLD THREADS

MODE: eager or compile; plain at world 1, else with "+ddp" or "+fsdp2". "step" on stdin takes a step, the
answer is JSON. Fused kernels where PyTorch has them: scaled_dot_product_attention, layer_norm,
rms_norm, fused AdamW. Ranks are processes over gloo; rank 0 starts the others and passes turns on.

bf16 keeps the state that Sherd keeps, f32 weights and moments: autocast, or FSDP2's MixedPrecisionPolicy
(gradients reduced in f32). With "+pure" weights, gradients and moments are bf16 alone: less state, other results.
"""
import json
import pathlib
import sys

import numpy
import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from torch_ranks import Ranks, status_bytes  # noqa: E402


class Norm(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m = m
        self.weight = nn.Parameter(torch.empty(m["width"]))
        self.bias = nn.Parameter(torch.empty(m["width"])) if m["bias"] and not m["rmsnorm"] else None

    def forward(self, x):
        if self.m["rmsnorm"]:
            return F.rms_norm(x, self.weight.shape, self.weight, self.m["norm_eps"])
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.m["norm_eps"])


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Attention(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.H, self.G, self.K = m["query_heads"], m["kv_heads"], m["width"] // m["query_heads"]
        self.rope = m["rope"]
        self.qkv = nn.Linear(m["width"], (self.H + 2 * self.G) * self.K, bias=m["bias"])
        self.output = nn.Linear(m["width"], m["width"], bias=m["bias"])

    def forward(self, x, cos, sin):
        B, S, _ = x.shape
        H, G, K = self.H, self.G, self.K
        q, k, v = self.qkv(x).split([H * K, G * K, G * K], dim=-1)
        q = q.view(B, S, H, K).transpose(1, 2)
        k = k.view(B, S, G, K).transpose(1, 2)
        v = v.view(B, S, G, K).transpose(1, 2)
        if self.rope:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if G != H:
            k, v = k.repeat_interleave(H // G, dim=1), v.repeat_interleave(H // G, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(y.transpose(1, 2).reshape(B, S, H * K))


class Mlp(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.swiglu = m["swiglu"]
        self.up = nn.Linear(m["width"], m["ffn_width"] * (2 if self.swiglu else 1), bias=m["bias"])
        self.down = nn.Linear(m["ffn_width"], m["width"], bias=m["bias"])

    def forward(self, x):
        up = self.up(x)
        if self.swiglu:
            gate, up = up.chunk(2, dim=-1)
            return self.down(F.silu(gate) * up)
        return self.down(F.gelu(up, approximate="tanh"))


class Block(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = Norm(m), Attention(m), Norm(m), Mlp(m)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.token = nn.Embedding(m["vocab_size"], m["width"])
        self.position = None if m["rope"] else nn.Embedding(m["seq_length"], m["width"])
        self.block = nn.ModuleList(Block(m) for _ in range(m["layers"]))
        self.final_norm = Norm(m)
        self.head = nn.Linear(m["width"], m["vocab_size"], bias=False)
        if m["tied"]:
            self.head.weight = self.token.weight
        K = m["width"] // m["query_heads"]
        angle = torch.outer(torch.arange(m["seq_length"], dtype=torch.float64),
                            m["rope_theta"] ** (-2.0 * torch.arange(K // 2, dtype=torch.float64) / K))
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(self, tokens, targets):
        x = self.token(tokens)
        if self.position is not None:
            x = x + self.position.weight
        for block in self.block:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.final_norm(x)).float()  # autocast does the same
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def load(model, m, path):
    """The parameters from one raw file, in the order of Sherd's table."""
    names = dict(model.named_parameters())
    raw = numpy.memmap(path, dtype=numpy.float32, mode="r")
    at = 0
    for name, shape in m["parameters"]:
        own = name.replace("embedding.token", "token").replace("embedding.position", "position")
        count = int(numpy.prod(shape))
        with torch.no_grad():
            names.pop(own).copy_(torch.from_numpy(raw[at:at + count].reshape(shape).copy()))
        at += count
    assert not names and at == len(raw), (list(names), at, len(raw))


def wrap(model, mode, world, dtype):
    compiled = mode.startswith("compile")
    if world == 1:
        return torch.compile(model) if compiled else model
    # Block by block: torch.compile around the wrapper of DDP stopped in its first step here.
    for block in model.block if compiled else []:
        block.compile()
    if mode.endswith("+ddp"):
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    options = {}
    if dtype == "bf16":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.block:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def main():
    model_path, weights, tokens_path, mode, world, threads = sys.argv[1:7]
    m = json.load(open(model_path))
    torch.set_num_threads(int(threads))
    ranks = Ranks(int(world))
    world, rank = ranks.world, ranks.rank

    libraries = status_bytes("VmRSS")
    on_gpu = m["device"] == "cuda"
    device = torch.device(m["device"])
    model = Model(m)
    load(model, m, weights)
    pure = mode.endswith("+pure")
    model = model.to(device, torch.bfloat16) if pure else model.to(device)
    autocast = m["dtype"] == "bf16" and not pure and not mode.endswith("+fsdp2")
    parameters = lambda: list(model.parameters())  # FSDP replaces them
    wrapped = wrap(model, mode, world, m["dtype"])
    decayed = [p for p in parameters() if p.dim() >= 2]
    plain = [p for p in parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": m["weight_decay"]},
                                   {"params": plain, "weight_decay": 0.0}],
                                  lr=m["lr"], betas=m["betas"], eps=m["eps"], fused=True)
    B, S = m["sequences"], m["seq_length"]
    tokens = numpy.fromfile(tokens_path, dtype=numpy.int32).reshape(-1, world, B, S + 1)

    def take_step(step):
        rows = torch.from_numpy(tokens[step, rank].astype(numpy.int64))
        rows = rows.pin_memory().to(device, non_blocking=True) if on_gpu else rows
        with torch.autocast(m["device"], dtype=torch.bfloat16, enabled=autocast):
            loss = wrapped(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters(), m["max_norm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return {"loss": ranks.sum(loss.detach()) / world, "grad_norm": norm.item()}

    ranks.serve(take_step, 0 if on_gpu else libraries,
                torch.cuda.max_memory_allocated if on_gpu else lambda: status_bytes("VmHWM"))


main()

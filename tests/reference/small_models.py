"""The tiny models that generate.py, trainings.py and runs.py train in PyTorch, in float64.

The model (decoder only, pre-norm), D width, H query heads, G key/value heads, K head width, F mlp width:

    x      = token_weight[token] (+ position_weight[position])
    x      = x + attention(norm1(x)) Wo^T + bo           for each block
    x      = x + act(norm2(x) Wup^T + bup) Wdown^T + bdown
    logits = final_norm(x) head^T                        head is the token weight where tied
    loss   = mean over all tokens of cross-entropy(logits, target)

The forward is written out; its gradients are autograd's and checked against central differences.
"""

import math

import torch

# --- what the cases are -----------------------------------------------------------------------------

COMMON = {
    "vocab_size": 61,       # V, odd on purpose: slices don't fall on row borders
    "layers": 2,
    "batch_size": 3,        # B, sequences in a micro-batch
    "sequence_length": 24,  # S
    "norm_eps": 1e-5,
}

CASES = {
    "gpt2_tied": {
        "norm": "layernorm", "positions": "learned", "activation": "gelu", "bias": True, "tied": True,
        "width": 64, "query_heads": 4, "kv_heads": 4, "head_width": 16, "mlp_width": 160,
        "max_sequence": 32,
    },
    "gpt2_nobias_untied": {
        "norm": "layernorm", "positions": "learned", "activation": "gelu", "bias": False, "tied": False,
        "width": 48, "query_heads": 4, "kv_heads": 4, "head_width": 12, "mlp_width": 192,
        "max_sequence": 32,
    },
    "llama_gqa": {
        "norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "bias": False, "tied": False,
        "width": 48, "query_heads": 6, "kv_heads": 2, "head_width": 8, "mlp_width": 88,
        "max_sequence": 24, "rope_theta": 10000.0,
    },
    "llama_tied": {
        "norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "bias": False, "tied": True,
        "width": 64, "query_heads": 4, "kv_heads": 4, "head_width": 16, "mlp_width": 112,
        "max_sequence": 24, "rope_theta": 10000.0,
    },
}

OPTIMIZER = {
    "kind": "adamw", "lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8,
    "weight_decay": 0.1,  # on tensors with two dimensions or more (the embeddings too), 0 elsewhere
    "max_grad_norm": 1.0,
}
STEPS = 6

# --- weights and tokens by formula ------------------------------------------------------------------


def hash32(i: int, p: int) -> int:
    h = (i * 2654435761 + p * 40503 + 12345) & 0xFFFFFFFF
    h ^= h >> 15
    h = (h * 2246822519) & 0xFFFFFFFF
    h ^= h >> 13
    return h


def initial_values(name: str, shape, p: int) -> torch.Tensor:
    """Parameter p of the list. Norm weights: f32(1 + 0.1 u); all others, norm biases too: f32(0.1 u).

    The expression is evaluated in double and rounded to float32 once. Returned as float32."""
    offset = 1.0 if is_norm_weight(name) else 0.0
    values = [offset + 0.1 * (hash32(i, p) / 2.0**32 * 2.0 - 1.0) for i in range(math.prod(shape))]
    return torch.tensor(values, dtype=torch.float64).to(torch.float32).reshape(shape)


def is_norm_weight(name: str) -> bool:
    return name.endswith(("norm1.weight", "norm2.weight", "final_norm.weight"))


def micro_batch(c, m: int):
    """Tokens and targets [B, S] of micro-batch m."""
    n = c["batch_size"] * c["sequence_length"]

    def draw(p):
        flat = [hash32(t, p) % c["vocab_size"] for t in range(n)]
        return torch.tensor(flat).reshape(c["batch_size"], c["sequence_length"])

    return draw(1000 + m), draw(2000 + m)


def parameter_list(c):
    """[(name, shape)] in the order that numbers the parameters."""
    V, D, H, G, K, M = (c[k] for k in ("vocab_size", "width", "query_heads", "kv_heads", "head_width",
                                       "mlp_width"))
    bias = c["bias"]
    norm_bias = bias and c["norm"] == "layernorm"
    up = 2 * M if c["activation"] == "swiglu" else M
    out = []

    def add(name, shape, present=True):
        if present:
            out.append((name, tuple(shape)))

    add("embedding.token.weight", (V, D))
    add("embedding.position.weight", (c["max_sequence"], D), c["positions"] == "learned")
    for i in range(c["layers"]):
        b = f"block.{i}."
        add(b + "norm1.weight", (D,))
        add(b + "norm1.bias", (D,), norm_bias)
        add(b + "attention.qkv.weight", ((H + 2 * G) * K, D))
        add(b + "attention.qkv.bias", ((H + 2 * G) * K,), bias)
        add(b + "attention.output.weight", (D, H * K))
        add(b + "attention.output.bias", (D,), bias)
        add(b + "norm2.weight", (D,))
        add(b + "norm2.bias", (D,), norm_bias)
        add(b + "mlp.up.weight", (up, D))
        add(b + "mlp.up.bias", (up,), bias)
        add(b + "mlp.down.weight", (D, M))
        add(b + "mlp.down.bias", (D,), bias)
    add("final_norm.weight", (D,))
    add("final_norm.bias", (D,), norm_bias)
    add("head.weight", (V, D), not c["tied"])
    return out


def build_parameters(c, dtype=torch.float64):
    return {name: initial_values(name, shape, p).to(dtype).requires_grad_()
            for p, (name, shape) in enumerate(parameter_list(c))}


# --- the model --------------------------------------------------------------------------------------


def normalise(c, w, prefix, x):
    weight, bias = w[prefix + ".weight"], w.get(prefix + ".bias")
    if c["norm"] == "layernorm":
        mean = x.mean(-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(-1, keepdim=True)
        y = (x - mean) / torch.sqrt(variance + c["norm_eps"]) * weight
        return y if bias is None else y + bias
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + c["norm_eps"]) * weight


def linear(w, prefix, x):
    y = x @ w[prefix + ".weight"].T
    bias = w.get(prefix + ".bias")
    return y if bias is None else y + bias


def rotate(c, x):
    """Half-split rotary embedding of x [B, heads, S, K]: pair (x[j], x[j + K/2]) rotated by p theta^(-2j/K)."""
    S, K = x.shape[-2:]
    j = torch.arange(K // 2, dtype=torch.float64)
    p = torch.arange(S, dtype=torch.float64)
    angle = p[:, None] * c["rope_theta"] ** (-2.0 * j / K)[None, :]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., : K // 2], x[..., K // 2:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def split_heads(c, qkv):
    """qkv [B, S, (H + 2G) K] to q [B, H, S, K] and k, v [B, G, S, K], rotated where positions are rope."""
    H, G, K = c["query_heads"], c["kv_heads"], c["head_width"]
    B, S, _ = qkv.shape
    heads = qkv.reshape(B, S, H + 2 * G, K).transpose(1, 2)
    q, k, v = heads[:, :H], heads[:, H:H + G], heads[:, H + G:]
    if c["positions"] == "rope":
        q, k = rotate(c, q), rotate(c, k)
    return q, k, v


def attention(c, qkv):
    H, G, K = c["query_heads"], c["kv_heads"], c["head_width"]
    B, S, _ = qkv.shape
    q, k, v = split_heads(c, qkv)
    future = torch.ones(S, S, dtype=torch.bool).triu(1)
    out = []
    for h in range(H):
        g = h // (H // G)
        scores = q[:, h] @ k[:, g].transpose(1, 2) / math.sqrt(K)
        p = torch.softmax(scores.masked_fill(future, -math.inf), dim=-1)
        out.append(p @ v[:, g])
    return torch.cat(out, dim=-1)  # [B, S, H K]


def activate(c, x):
    if c["activation"] == "swiglu":
        gate, up = x[..., : c["mlp_width"]], x[..., c["mlp_width"]:]
        return gate * torch.sigmoid(gate) * up
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def loss_of(c, w, tokens, targets):
    x = w["embedding.token.weight"][tokens]
    if c["positions"] == "learned":
        x = x + w["embedding.position.weight"][: tokens.shape[1]]
    for i in range(c["layers"]):
        b = f"block.{i}."
        qkv = linear(w, b + "attention.qkv", normalise(c, w, b + "norm1", x))
        x = x + linear(w, b + "attention.output", attention(c, qkv))
        up = linear(w, b + "mlp.up", normalise(c, w, b + "norm2", x))
        x = x + linear(w, b + "mlp.down", activate(c, up))
    head = w["embedding.token.weight" if c["tied"] else "head.weight"]
    logits = normalise(c, w, "final_norm", x) @ head.T
    picked = logits.gather(-1, targets[..., None]).squeeze(-1)
    return (torch.logsumexp(logits, dim=-1) - picked).mean()


def backward(c, w, batches):
    """Loss and gradients of the mean over all tokens of the given micro-batches together."""
    for value in w.values():
        value.grad = None
    tokens = torch.cat([t for t, _ in batches])
    targets = torch.cat([t for _, t in batches])
    loss = loss_of(c, w, tokens, targets)
    loss.backward()
    return loss.item()


def total_norm(w):
    return math.sqrt(sum((v.grad.double() ** 2).sum().item() for v in w.values()))


# --- training ---------------------------------------------------------------------------------------


def train(c, dtype=torch.float64):
    """Losses (before the update) and gradient norms (before clipping) of STEPS steps, and the weights after."""
    o = OPTIMIZER
    w = build_parameters(c, dtype)
    groups = [
        {"params": [v for v in w.values() if v.dim() >= 2], "weight_decay": o["weight_decay"]},
        {"params": [v for v in w.values() if v.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"],
                                  foreach=False)
    steps = []
    for m in range(STEPS):
        loss = backward(c, w, [micro_batch(c, m)])
        norm = total_norm(w)
        scale = min(1.0, o["max_grad_norm"] / norm)
        for value in w.values():
            value.grad *= scale
        optimizer.step()
        steps.append({"loss": loss, "grad_norm": norm, "clip_scale": scale})
    return steps, w


# --- what is stored ---------------------------------------------------------------------------------


def gradient_indices(n):
    """Eight: 0, n - 1 and six spread between."""
    return [j * (n - 1) // 7 for j in range(8)]


def null_range(c, name):
    """Elements [first, last) whose true gradient is zero, or None.

    A key bias without rotary embedding adds the same number to all scores of a query, which softmax
    ignores. There is rounding noise instead of a gradient, and AdamW blows noise up to a full step;
    the loss doesn't notice, but the values after training can't be compared."""
    if not name.endswith("attention.qkv.bias") or c["positions"] == "rope":
        return None
    H, G, K = c["query_heads"], c["kv_heads"], c["head_width"]
    return [H * K, (H + G) * K]


def final_indices(c, name, n):
    null = null_range(c, name)
    return [0, null[0] - 1, null[1], n - 1] if null else [0, n // 3, 2 * n // 3, n - 1]


def outside_null(c, name, flat):
    null = null_range(c, name)
    return torch.cat([flat[: null[0]], flat[null[1]:]]) if null else flat


def projection(c, number, flat, leave_out=None):
    """sum_i flat[i] u[i], u the hash of parameter 3000 + number mapped to [-1, 1). Plain sums of gradients
    often vanish (a layernorm after the tensor, a softmax); this one doesn't, and it sees a permutation."""
    u = torch.tensor([hash32(i, 3000 + number) / 2.0**32 * 2.0 - 1.0 for i in range(flat.numel())],
                     dtype=torch.float64)
    if leave_out:
        u[leave_out[0]:leave_out[1]] = 0.0
    return (flat.double() * u).sum().item()


def norm_of(x):
    return math.sqrt((x.double() ** 2).sum().item())


def picks(flat, indices):
    return [flat[i].item() for i in indices]

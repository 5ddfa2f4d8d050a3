"""Short trainings with every optimizer, in PyTorch and float64: clipped, accumulated, with a schedule.

    python tests/reference/trainings.py            # check itself, then write trainings.json next to this file
    python tests/reference/trainings.py --check    # check itself and the stored file, write nothing
    python tests/reference/trainings.py --float32  # also: how far a plain float32 run strays from float64

Models, weights and tokens are generate.py's. AdamW, Adam, SGD and Adafactor are PyTorch's own. Lion, LAMB, LARS and
Muon are written here from their papers: arXiv:2302.06675 Alg. 2, arXiv:1904.00962v3 Alg. 2,
arXiv:1708.03888 Alg. 1, and https://kellerjordan.github.io/posts/muon. Polar Express has the coefficients
of arXiv:2505.16932 for five steps and a safety factor of 2e-2, by which the norm is multiplied as well.
"""

import argparse
import json
import math

import torch

import generate
import small_models

MODELS = ["gpt2_tied", "llama_gqa"]
STEPS = 4
MICRO_BATCHES = 2  # of a step: micro-batches 2 s and 2 s + 1 are one batch, its loss the mean over all tokens
MAX_NORM = 0.5     # below every gradient norm of every step
SCHEDULE = {"warmup_steps": 1, "decay_steps": 5, "min_lr_ratio": 0.1}  # cosine

OPTIMIZERS = {
    "adamw": {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
    "adam": {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
    "sgd": {"lr": 0.5, "momentum": 0.9, "weight_decay": 0.1},
    "lion": {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.5},
    "lamb": {"lr": 2e-2, "beta1": 0.9, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.1},
    "lars": {"lr": 1.0, "momentum": 0.9, "trust_coefficient": 0.02, "weight_decay": 0.05},
    "muon": {"lr": 2e-2, "momentum": 0.95, "weight_decay": 0.1,
             "adamw_lr": 3e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8},
    "muon_polar_express": {"lr": 2e-2, "momentum": 0.95, "weight_decay": 0.1,
                           "adamw_lr": 3e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8},
    "adafactor": {"lr": 5e-2, "beta2_decay": -0.8, "eps": 1e-7, "min_parameter_rms": 0.03, "clip_threshold": 1.0,
                  "weight_decay": 0.1},
}

# --- optimizers from their papers -------------------------------------------------------------------


def decay_of(o, w):
    return o["weight_decay"] if w.dim() >= 2 else 0.0


class Lion:
    def __init__(self, c, o, w):
        self.o, self.m = o, {k: torch.zeros_like(v) for k, v in w.items()}

    def step(self, w, lr):
        b1, b2 = self.o["beta1"], self.o["beta2"]
        for k, x in w.items():
            direction = torch.sign(b1 * self.m[k] + (1 - b1) * x.grad)
            x -= lr * (direction + decay_of(self.o, x) * x)
            self.m[k] = b2 * self.m[k] + (1 - b2) * x.grad


class Lamb:
    def __init__(self, c, o, w):
        self.o, self.t = o, 0
        self.m = {k: torch.zeros_like(v) for k, v in w.items()}
        self.v = {k: torch.zeros_like(v) for k, v in w.items()}

    def step(self, w, lr):
        self.t += 1
        b1, b2 = self.o["beta1"], self.o["beta2"]
        for k, x in w.items():
            self.m[k] = b1 * self.m[k] + (1 - b1) * x.grad
            self.v[k] = b2 * self.v[k] + (1 - b2) * x.grad**2
            m_hat = self.m[k] / (1 - b1**self.t)
            v_hat = self.v[k] / (1 - b2**self.t)
            r = m_hat / (v_hat.sqrt() + self.o["eps"]) + decay_of(self.o, x) * x
            x -= lr * (x.norm() / r.norm()) * r


class Lars:
    def __init__(self, c, o, w):
        self.o, self.v = o, {k: torch.zeros_like(v) for k, v in w.items()}

    def step(self, w, lr):
        for k, x in w.items():
            beta = decay_of(self.o, x)
            local = self.o["trust_coefficient"] * x.norm() / (x.grad.norm() + beta * x.norm())
            self.v[k] = self.o["momentum"] * self.v[k] + lr * local * (x.grad + beta * x)
            x -= self.v[k]


def newton_schulz(m):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = m / (m.norm() + 1e-7)
    if m.shape[0] > m.shape[1]:
        x = x.T
    for _ in range(5):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if m.shape[0] > m.shape[1] else x


POLAR_EXPRESS = [
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323)]


def polar_express(m):
    x = m / (m.norm() * 1.02 + 1e-6)
    tall = x.shape[0] > x.shape[1]
    for a, b, c in POLAR_EXPRESS:
        s = x.T @ x if tall else x @ x.T
        p = b * s + c * s @ s
        x = a * x + (x @ p if tall else p @ x)
    return x


class Muon:
    """Matrices of blocks by Muon, query, key, value, gate and up each by itself; the rest by AdamW."""

    orthogonalise = staticmethod(newton_schulz)

    def __init__(self, c, o, w):
        self.c, self.o = c, o
        self.matrices = {k: v for k, v in w.items() if k.startswith("block.") and v.dim() == 2}
        self.m = {k: torch.zeros_like(v) for k, v in self.matrices.items()}
        rest = {k: v for k, v in w.items() if k not in self.matrices}
        self.adamw = torch_optimizer(torch.optim.AdamW, o, rest, o["adamw_lr"],
                                     betas=(o["beta1"], o["beta2"]), eps=o["eps"])

    def stacked(self, name):
        c = self.c
        if name.endswith("attention.qkv.weight"):
            return [n * c["head_width"] for n in (c["query_heads"], c["kv_heads"], c["kv_heads"])]
        if name.endswith("mlp.up.weight") and c["activation"] == "swiglu":
            return [c["mlp_width"]] * 2
        return None

    def step(self, w, lr):
        mu = self.o["momentum"]
        for k, x in self.matrices.items():
            self.m[k] = mu * self.m[k] + (1 - mu) * x.grad
            u = (1 - mu) * x.grad + mu * self.m[k]
            parts = u.split(self.stacked(k) or [u.shape[0]])
            direction = torch.cat([self.orthogonalise(p) * max(1.0, p.shape[0] / p.shape[1])**0.5 for p in parts])
            x -= lr * self.o["weight_decay"] * x + lr * direction
        for group in self.adamw.param_groups:
            group["lr"] = lr * self.o["adamw_lr"] / self.o["lr"]
        self.adamw.step()


class MuonPolarExpress(Muon):
    orthogonalise = staticmethod(polar_express)


def torch_optimizer(kind, o, w, lr, **options):
    groups = [{"params": [v for v in w.values() if (v.dim() >= 2) == decays],
               "weight_decay": o["weight_decay"] if decays else 0.0} for decays in (True, False)]
    return kind(groups, lr=lr, foreach=False, **options)


class Torch:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, w, lr):
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()


def make(name, c, o, w):
    if name in ("adamw", "adam"):
        kind = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
        return Torch(torch_optimizer(kind, o, w, o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"]))
    if name == "sgd":
        return Torch(torch_optimizer(torch.optim.SGD, o, w, o["lr"], momentum=o["momentum"]))
    if name == "adafactor":
        return Torch(torch_optimizer(torch.optim.Adafactor, o, w, o["lr"], beta2_decay=o["beta2_decay"],
                                     eps=(o["eps"], o["min_parameter_rms"]), d=o["clip_threshold"]))
    return {"lion": Lion, "lamb": Lamb, "lars": Lars, "muon": Muon,
            "muon_polar_express": MuonPolarExpress}[name](c, o, w)


# --- training ---------------------------------------------------------------------------------------


def learning_rate(lr, step):
    """As nanoGPT's get_lr."""
    warmup, decay, low = SCHEDULE["warmup_steps"], SCHEDULE["decay_steps"], lr * SCHEDULE["min_lr_ratio"]
    if step < warmup:
        return lr * (step + 1) / (warmup + 1)
    ratio = (step - warmup) / (decay - warmup)
    return low + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (lr - low)


def train(name, c, dtype=torch.float64):
    o = OPTIMIZERS[name]
    w = small_models.build_parameters(c, dtype)
    optimizer = make(name, c, o, w)
    steps = []
    for s in range(STEPS):
        batches = [small_models.micro_batch(c, MICRO_BATCHES * s + m) for m in range(MICRO_BATCHES)]
        loss = small_models.backward(c, w, batches)
        norm = small_models.total_norm(w)
        assert norm > 1.2 * MAX_NORM, (name, s, norm)
        with torch.no_grad():
            for x in w.values():
                x.grad *= MAX_NORM / norm
            optimizer.step(w, learning_rate(o["lr"], s))
        steps.append({"loss": rounded(loss), "grad_norm": rounded(norm)})
    return steps, {k: x.detach() for k, x in w.items()}


def rounded(x):
    return float(f"{x:.10g}")


def indices(c, name, n):
    null = small_models.null_range(c, name)
    return [null[0] - 1, null[1]] if null else [n // 3, 2 * n // 3]


def after(c, w):
    """By parameter: its projection (generate.py) and two values."""
    out = {}
    for number, (name, _) in enumerate(small_models.parameter_list(c)):
        flat = w[name].double().flatten()
        values = [small_models.projection(c, number, flat, small_models.null_range(c, name))]
        out[name] = [rounded(x) for x in values + small_models.picks(flat, indices(c, name, flat.numel()))]
    return out


def reference():
    trainings = []
    for model in MODELS:
        c = {"name": model, **small_models.COMMON, **small_models.CASES[model]}
        for name in OPTIMIZERS:
            steps, w = train(name, c)
            trainings.append({"model": model, "optimizer": name, "steps": steps, "after": after(c, w)})
    return {"generator": f"tests/reference/trainings.py, torch {torch.__version__}, float64",
            "micro_batches": MICRO_BATCHES, "max_norm": MAX_NORM, "schedule": SCHEDULE,
            "optimizers": OPTIMIZERS, "trainings": trainings}


# --- checks of this file itself ---------------------------------------------------------------------


def one_step(kind, o, x, grad, lr):
    w = {"block.0.mlp.down.weight": x.clone().requires_grad_()}
    w["block.0.mlp.down.weight"].grad = grad.clone()
    with torch.no_grad():
        kind({"activation": "gelu"}, o, w).step(w, lr)
    return w["block.0.mlp.down.weight"].detach() - x


def check_optimizers():
    """What the papers say of a first step, by algebra."""
    torch.manual_seed(0)
    x, grad = torch.randn(24, 10, dtype=torch.float64), torch.randn(24, 10, dtype=torch.float64)
    close = torch.testing.assert_close
    o = OPTIMIZERS["lion"]
    close(one_step(Lion, o, x, grad, 0.1), -0.1 * (grad.sign() + o["weight_decay"] * x))
    close(one_step(Lamb, OPTIMIZERS["lamb"], x, grad, 0.1).norm(), 0.1 * x.norm())  # the step is as long as lr |x|
    o = {**OPTIMIZERS["lars"], "weight_decay": 0.0}
    close(one_step(Lars, o, x, grad, 0.1).norm(), 0.1 * o["trust_coefficient"] * x.norm())
    # Muon's direction has the gradient's singular vectors, and values between about 0.7 and 1.2.
    o = {**OPTIMIZERS["muon"], "weight_decay": 0.0}
    u, _, v = torch.linalg.svd(grad, full_matrices=False)
    stretched = u.T @ (one_step(Muon, o, x, grad, 0.1) / (-0.1 * math.sqrt(2.4))) @ v.T
    values = stretched.diagonal()
    close(stretched, torch.diag(values), rtol=0, atol=1e-9)
    assert 0.65 < values.min() and values.max() < 1.25, values
    # As the paper's polynomials act on singular values alone.
    first = (1 - o["momentum"]) * (1 + o["momentum"]) * grad  # u of a first step
    expected = torch.linalg.svdvals(first) / (1.02 * first.norm() + 1e-6)
    for a, b, c in POLAR_EXPRESS:
        expected = a * expected + b * expected**3 + c * expected**5
    stretched = u.T @ (one_step(MuonPolarExpress, o, x, grad, 0.1) / (-0.1 * math.sqrt(2.4))) @ v.T
    close(stretched, torch.diag(expected), rtol=0, atol=1e-9)
    assert 0.8 < expected.min() and expected.max() < 1.2, expected


def report_float32(data):
    for t in data["trainings"]:
        c = {"name": t["model"], **small_models.COMMON, **small_models.CASES[t["model"]]}
        steps, w = train(t["optimizer"], c, torch.float32)
        found = after(c, w)
        worst = lambda key: max(abs(a[key] / b[key] - 1) for a, b in zip(steps, t["steps"]))
        off = lambda i: max(abs(found[k][i] - v[i]) for k, v in t["after"].items())
        print(f"  {t['model']} {t['optimizer']}: loss {worst('loss'):.1e}, grad_norm {worst('grad_norm'):.1e} rel, "
              f"projections {off(0):.1e}, values {max(off(1), off(2)):.1e} abs")


def to_text(data):
    trainings = data.pop("trainings")
    head = json.dumps(data, indent=1)[:-2]
    data["trainings"] = trainings
    lines = []
    for t in trainings:
        after_text = ",\n    ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in t["after"].items())
        lines.append(f'  {{"model": "{t["model"]}", "optimizer": "{t["optimizer"]}",\n   "steps": '
                     f'{json.dumps(t["steps"])},\n   "after": {{\n    {after_text}}}}}')
    return head + ',\n "trainings": [\n' + ",\n".join(lines) + "]}\n"


def main():
    parser = argparse.ArgumentParser(description="Reference trainings for Sherd's optimizers.")
    parser.add_argument("--check", action="store_true", help="compare with the stored file instead of writing")
    parser.add_argument("--float32", action="store_true", help="print how far a float32 run strays")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    check_optimizers()
    data = reference()
    if args.float32:
        report_float32(data)
    generate.keep("trainings.json", to_text(data), data, args.check)


if __name__ == "__main__":
    main()

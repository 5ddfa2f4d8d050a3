"""Whole-model reference values for Sherd, computed independently in PyTorch, in float64.

Run by hand, never in CI (see README.md for the environment):

    python tests/reference/generate.py            # check itself, then write the <case>.json next to this file
    python tests/reference/generate.py --check    # check itself and the stored files, write nothing
    python tests/reference/generate.py --float32  # also: how far a plain float32 run strays from float64

Pinned: torch == 2.15.0 (CPU). Nothing here depends on torch's random numbers: weights and tokens come
from the integer hash below, so a test rebuilds them bit for bit without reading any weights from disk.

small_models.py has the models.
"""

import argparse
import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F

from small_models import (
    COMMON, CASES, OPTIMIZER, STEPS, micro_batch, parameter_list, build_parameters, normalise,
    rotate, split_heads, attention, activate, loss_of, backward, total_norm, train,
    gradient_indices, null_range, final_indices, outside_null, projection, norm_of, picks)

PINNED_TORCH = "2.15.0"
HERE = pathlib.Path(__file__).resolve().parent


# --- what is stored ----------------------------------------------------------------------------------


def reference(case):
    c = {"name": case, **COMMON, **CASES[case]}
    w = build_parameters(c)
    tokens, targets = micro_batch(c, 0)

    initial = {name: value.detach().clone() for name, value in w.items()}
    loss = backward(c, w, [(tokens, targets)])
    gradients = {name: value.grad.clone() for name, value in w.items()}
    grad_norm = total_norm(w)

    both_loss = backward(c, w, [micro_batch(c, 0), micro_batch(c, 1)])
    both_norm = total_norm(w)
    both_gradients = {name: value.grad.clone() for name, value in w.items()}

    steps, trained = train(c)

    parameters, final, both = [], [], []
    for p, (name, shape) in enumerate(parameter_list(c)):
        n = math.prod(shape)
        at = gradient_indices(n)
        g = gradients[name].flatten()
        parameters.append({
            "number": p, "name": name, "shape": list(shape),
            "initial_norm": norm_of(initial[name]),
            "gradient_norm": norm_of(g), "gradient_sum": g.sum().item(),
            "gradient_projection": projection(c, p, g),
            "indices": at, "initial": picks(initial[name].flatten(), at), "gradient": picks(g, at),
        })

        b = both_gradients[name].flatten()
        both.append({"name": name, "gradient_norm": norm_of(b),
                     "gradient_projection": projection(c, p, b), "indices": at[1:7:2], "gradient": picks(b, at[1:7:2])})

        flat = trained[name].detach().flatten()
        at = final_indices(c, name, n)
        null = null_range(c, name)
        entry = {"name": name, "norm": norm_of(outside_null(c, name, flat)),
                 "projection": projection(c, p, flat, null), "indices": at, "values": picks(flat, at)}
        if null:
            entry["left_out"] = null  # elements [first, last) counted neither in norm nor in projection
        final.append(entry)

    return {
        "generator": f"tests/reference/generate.py, torch {torch.__version__}, float64",
        "config": c,
        "tokens": tokens.flatten()[:8].tolist(),    # the first of micro-batch 0, to check the hash by
        "targets": targets.flatten()[:8].tolist(),
        "loss": loss,
        "grad_norm": grad_norm,
        "parameters": parameters,
        "accumulated": {"micro_batches": [0, 1], "loss": both_loss, "grad_norm": both_norm,
                        "parameters": both},
        "optimizer": OPTIMIZER,
        "steps": steps,
        "after_steps": final,
    }


# --- checks of this file itself ---------------------------------------------------------------------


def check_against_torch(c):
    """The written-out pieces against torch's own."""
    torch.manual_seed(0)
    D, H, G, K = c["width"], c["query_heads"], c["kv_heads"], c["head_width"]
    x = torch.randn(2, 5, D, dtype=torch.float64)
    weight = torch.randn(D, dtype=torch.float64)
    mine = normalise(c, {"n.weight": weight}, "n", x)
    theirs = (F.layer_norm(x, (D,), weight, None, c["norm_eps"]) if c["norm"] == "layernorm"
              else F.rms_norm(x, (D,), weight, c["norm_eps"]))
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)

    qkv = torch.randn(2, 7, (H + 2 * G) * K, dtype=torch.float64)
    q, k, v = split_heads(c, qkv)
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(attention(c, qkv), theirs.transpose(1, 2).reshape(2, 7, H * K),
                               rtol=1e-12, atol=1e-12)

    if c["positions"] == "rope":  # as a complex number: (a + ib) e^(i angle)
        r = torch.randn(1, 1, 7, K, dtype=torch.float64)
        turned = torch.complex(r[..., : K // 2], r[..., K // 2:])
        for p in range(7):
            for j in range(K // 2):
                angle = p * c["rope_theta"] ** (-2.0 * j / K)
                turned[0, 0, p, j] *= complex(math.cos(angle), math.sin(angle))
        torch.testing.assert_close(rotate(c, r), torch.cat([turned.real, turned.imag], -1),
                                   rtol=1e-12, atol=1e-12)

    y = torch.randn(4, 2 * c["mlp_width"], dtype=torch.float64)
    if c["activation"] == "swiglu":
        gate, up = y.chunk(2, -1)
        theirs = F.silu(gate) * up
    else:
        theirs = F.gelu(y, approximate="tanh")
    torch.testing.assert_close(activate(c, y), theirs, rtol=1e-12, atol=1e-12)


def check_gradients(c, data):
    """The stored gradients against fourth-order central differences, three elements a parameter."""
    w = {name: value.detach() for name, value in build_parameters(c).items()}
    batch = micro_batch(c, 0)
    step, worst = 1e-3, 0.0
    for entry in data["parameters"]:
        flat = w[entry["name"]].view(-1)
        for slot in (0, 3, 5):
            i, kept = entry["indices"][slot], flat[entry["indices"][slot]].item()

            def at(offset):
                flat[i] = kept + offset
                value = loss_of(c, w, *batch).item()
                flat[i] = kept
                return value

            difference = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)
            error = abs(difference - entry["gradient"][slot])
            worst = max(worst, error / (abs(entry["gradient"][slot]) + 1e-4))
            assert error <= 1e-6 * abs(entry["gradient"][slot]) + 1e-10, (entry["name"], i, difference)
    return worst


def check_adamw(c, data):
    """torch.optim.AdamW against the update written out as kernels/update.h has it."""
    o = OPTIMIZER
    w = build_parameters(c)
    m = {k: torch.zeros_like(v) for k, v in w.items()}
    v = {k: torch.zeros_like(x) for k, x in w.items()}
    for t in range(1, STEPS + 1):
        loss = backward(c, w, [micro_batch(c, t - 1)])
        assert math.isclose(loss, data["steps"][t - 1]["loss"], rel_tol=1e-11), (t, loss)
        scale = min(1.0, o["max_grad_norm"] / total_norm(w))
        with torch.no_grad():
            for k, p in w.items():
                g = scale * p.grad
                m[k] = o["beta1"] * m[k] + (1 - o["beta1"]) * g
                v[k] = o["beta2"] * v[k] + (1 - o["beta2"]) * g * g
                decay = o["weight_decay"] if p.dim() >= 2 else 0.0
                p -= o["lr"] * decay * p + o["lr"] * (m[k] / (1 - o["beta1"] ** t)) / (
                    torch.sqrt(v[k] / (1 - o["beta2"] ** t)) + o["eps"])
    for entry in data["after_steps"]:
        assert math.isclose(norm_of(outside_null(c, entry["name"], w[entry["name"]].detach().flatten())),
                            entry["norm"], rel_tol=1e-9), entry
        for i, value in zip(entry["indices"], entry["values"]):
            assert math.isclose(w[entry["name"]].flatten()[i].item(), value, rel_tol=1e-8, abs_tol=1e-10), entry


def check_accumulation(c, data):
    """Equal micro-batches: the mean of their gradients is the gradient of the whole."""
    w = build_parameters(c)
    losses, sums = [], None
    for m in (0, 1):
        losses.append(backward(c, w, [micro_batch(c, m)]))
        grads = [value.grad.clone() / 2 for value in w.values()]
        sums = grads if sums is None else [a + b for a, b in zip(sums, grads)]
    norm = math.sqrt(sum((g**2).sum().item() for g in sums))
    assert math.isclose(sum(losses) / 2, data["accumulated"]["loss"], rel_tol=1e-12)
    assert math.isclose(norm, data["accumulated"]["grad_norm"], rel_tol=1e-11)


def report_float32(c, data):
    """How far plain float32 (torch, CPU) strays: a floor for a test's tolerances."""
    w = build_parameters(c, torch.float32)
    loss = backward(c, w, [micro_batch(c, 0)])
    grad = worst_value = grad_projection = 0.0
    for e in data["parameters"]:
        g = w[e["name"]].grad.double()
        grad_projection = max(grad_projection, abs(projection(c, e["number"], g.flatten()) -
                                                   e["gradient_projection"]) / e["gradient_norm"])
        if null_range(c, e["name"]) is None:
            grad = max(grad, abs(norm_of(g) / e["gradient_norm"] - 1))
        rms = e["gradient_norm"] / math.sqrt(g.numel())
        for i, value in zip(e["indices"], e["gradient"]):
            worst_value = max(worst_value, abs(g.flatten()[i].item() - value) / rms)
    steps, trained = train(c, torch.float32)
    step_loss = max(abs(a["loss"] / b["loss"] - 1) for a, b in zip(steps, data["steps"]))
    step_norm = max(abs(a["grad_norm"] / b["grad_norm"] - 1) for a, b in zip(steps, data["steps"]))
    final_norm = final_value = final_projection = 0.0
    for p, e in enumerate(data["after_steps"]):
        flat = trained[e["name"]].detach().double().flatten()
        final_norm = max(final_norm, abs(norm_of(outside_null(c, e["name"], flat)) / e["norm"] - 1))
        final_projection = max(final_projection, abs(projection(c, p, flat, e.get("left_out")) - e["projection"]))
        for i, value in zip(e["indices"], e["values"]):
            final_value = max(final_value, abs(flat[i].item() - value))
    print(f"  float32: loss {abs(loss / data['loss'] - 1):.1e} rel\n"
          f"    gradients: norms {grad:.1e} rel, values {worst_value:.1e} of the tensor's rms, "
          f"projections {grad_projection:.1e} of its norm\n"
          f"    steps: loss {step_loss:.1e} rel, grad_norm {step_norm:.1e} rel\n"
          f"    after: norms {final_norm:.1e} rel, values {final_value:.1e} abs, projections {final_projection:.1e} abs")


# --- writing ----------------------------------------------------------------------------------------


def to_text(data):
    """One line a parameter or step. Doubles in the shortest form that reads back to the same bits."""
    def block(value, indent):
        pad = " " * indent
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return "[\n" + ",\n".join(pad + "  " + json.dumps(v) for v in value) + f"\n{pad}]"
        if isinstance(value, dict):
            return "{\n" + ",\n".join(f'{pad}  "{k}": {block(v, indent + 2)}' for k, v in value.items()) + f"\n{pad}}}"
        return json.dumps(value, allow_nan=False)
    return block(data, 0) + "\n"


def close(a, b):
    """The same up to the order of additions in another build of torch."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(close(a[k], b[k]) for k in a if k != "generator")
    if isinstance(a, list):
        return len(a) == len(b) and all(close(x, y) for x, y in zip(a, b))
    if isinstance(a, float):
        return math.isclose(a, b, rel_tol=1e-8, abs_tol=1e-10)
    return a == b


def keep(name, text, data, check_only):
    """Writes `text`, which says `data`, to the file; or compares the file that is there with it."""
    assert json.loads(text) == data
    path = HERE / name
    if not check_only:
        path.write_text(text)
        print(f"  wrote {path.name}, {len(text)} bytes")
    elif not close(json.loads(path.read_text()), data):
        sys.exit(f"{path} differs from what this file computes")


def main():
    parser = argparse.ArgumentParser(description="Reference values for Sherd's whole-model tests.")
    parser.add_argument("--check", action="store_true", help="compare with the stored files instead of writing")
    parser.add_argument("--float32", action="store_true", help="print how far a float32 run strays")
    args = parser.parse_args()
    if torch.__version__.split("+")[0] != PINNED_TORCH:
        print(f"note: torch {torch.__version__}, the stored files were made with {PINNED_TORCH}", file=sys.stderr)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    for case in CASES:
        data = reference(case)
        c = data["config"]
        check_against_torch(c)
        worst = check_gradients(c, data)
        check_adamw(c, data)
        check_accumulation(c, data)
        print(f"{case}: loss {data['loss']:.6f}, grad_norm {data['grad_norm']:.4f}, "
              f"central differences within {worst:.1e}\n  losses " +
              " ".join(f"{s['loss']:.4f}" for s in data["steps"]) + "\n  clip   " +
              " ".join(f"{s['clip_scale']:.4f}" for s in data["steps"]))
        if args.float32:
            report_float32(c, data)
        keep(f"{case}.json", to_text(data), data, args.check)


if __name__ == "__main__":
    main()

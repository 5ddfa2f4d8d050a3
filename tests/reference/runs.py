"""Whole runs of two small models in PyTorch and float64, with the gradient of every parameter at every step: what runs
on meshes of tensor, sequence and context ranks are compared with.

    python tests/reference/runs.py            # check itself, then write runs.json next to this file
    python tests/reference/runs.py --check    # check itself and the stored file, write nothing
    python tests/reference/runs.py --float32  # also: how far a plain float32 run strays from float64

The models, weights and tokens are generate.py's, the optimizers, clipping and schedule trainings.py's. `gpt2` is its
case gpt2_tied; `llama` has eight query heads on two key/value heads, so that four tensor ranks need copies of these.
"""

import argparse
import json

import torch

import generate
import small_models
import trainings

MODELS = {
    "gpt2": small_models.CASES["gpt2_tied"],
    "llama": {
        "norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "bias": False, "tied": False,
        "width": 64, "query_heads": 8, "kv_heads": 2, "head_width": 8, "mlp_width": 88,
        "max_sequence": 24, "rope_theta": 10000.0,
    },
}
OPTIMIZERS = ["sgd", "adamw"]


def digest(c, name, number, flat):
    """Norm, projection (generate.py) and two values, without what has no true gradient."""
    null = small_models.null_range(c, name)
    values = [small_models.norm_of(small_models.outside_null(c, name, flat)),
              small_models.projection(c, number, flat, null)]
    return [trainings.rounded(x)
            for x in values + small_models.picks(flat, trainings.indices(c, name, flat.numel()))]


def digests(c, tensors):
    return {name: digest(c, name, number, tensors[name].double().flatten())
            for number, (name, _) in enumerate(small_models.parameter_list(c))}


def run(c, name, dtype=torch.float64):
    o = trainings.OPTIMIZERS[name]
    w = small_models.build_parameters(c, dtype)
    optimizer = trainings.make(name, c, o, w)
    steps = []
    for s in range(trainings.STEPS):
        first = trainings.MICRO_BATCHES * s
        batches = [small_models.micro_batch(c, first + m) for m in range(trainings.MICRO_BATCHES)]
        loss = small_models.backward(c, w, batches)
        norm = small_models.total_norm(w)
        assert norm > 1.2 * trainings.MAX_NORM, (name, s, norm)
        gradients = digests(c, {k: x.grad for k, x in w.items()})
        with torch.no_grad():
            for x in w.values():
                x.grad *= trainings.MAX_NORM / norm
            optimizer.step(w, trainings.learning_rate(o["lr"], s))
        steps.append({"loss": trainings.rounded(loss), "grad_norm": trainings.rounded(norm), "gradients": gradients})
    return steps, digests(c, {k: x.detach() for k, x in w.items()})


def reference():
    models = []
    for name, case in MODELS.items():
        c = {"name": name, **small_models.COMMON, **case}
        parameters = [{"number": p, "name": n, "shape": list(shape), "null": small_models.null_range(c, n)}
                      for p, (n, shape) in enumerate(small_models.parameter_list(c))]
        runs = []
        for optimizer in OPTIMIZERS:
            steps, after = run(c, optimizer)
            runs.append({"optimizer": optimizer, "steps": steps, "after": after})
        models.append({"config": c, "parameters": parameters, "runs": runs})
    return {"generator": f"tests/reference/runs.py, torch {torch.__version__}, float64",
            "micro_batches": trainings.MICRO_BATCHES, "max_norm": trainings.MAX_NORM,
            "schedule": trainings.SCHEDULE,
            "optimizers": {k: trainings.OPTIMIZERS[k] for k in OPTIMIZERS}, "models": models}


# --- checks of this file itself ---------------------------------------------------------------------


def check(data):
    """The first step's gradient of the GPT-2 model is the one that generate.py has stored of both micro-batches; what
    trainings.py has stored of its runs is the same run."""
    stored = json.loads((generate.HERE / "gpt2_tied.json").read_text())["accumulated"]
    other = {(t["model"], t["optimizer"]): t
             for t in json.loads((generate.HERE / "trainings.json").read_text())["trainings"]}
    gpt2 = data["models"][0]
    for one in gpt2["runs"]:
        first = one["steps"][0]
        assert abs(first["loss"] / stored["loss"] - 1) < 1e-9 and abs(first["grad_norm"] / stored["grad_norm"] - 1) < 1e-9
        for entry in stored["parameters"]:
            if small_models.null_range(gpt2["config"], entry["name"]):
                continue
            assert abs(first["gradients"][entry["name"]][0] / entry["gradient_norm"] - 1) < 1e-8, entry["name"]
        same = other["gpt2_tied", one["optimizer"]]
        for name, values in same["after"].items():
            assert generate.close(one["after"][name][1:], values), name
        for a, b in zip(one["steps"], same["steps"]):
            assert generate.close([a["loss"], a["grad_norm"]], [b["loss"], b["grad_norm"]])
    for model in data["models"]:
        c = model["config"]
        generate.check_against_torch(c)
        for one in model["runs"]:  # the parts make the whole norm
            for step in one["steps"]:
                total = sum(v[0] ** 2 for v in step["gradients"].values()) ** 0.5
                assert abs(total / step["grad_norm"] - 1) < 1e-9


def report_float32(data):
    for model in data["models"]:
        for one in model["runs"]:
            steps, after = run(model["config"], one["optimizer"], torch.float32)
            off = {"loss": 0.0, "grad_norm": 0.0, "gradients": [0.0] * 3, "after": [0.0] * 3}
            for mine, theirs in zip(steps, one["steps"]):
                for key in ("loss", "grad_norm"):
                    off[key] = max(off[key], abs(mine[key] / theirs[key] - 1))
                for name, values in theirs["gradients"].items():
                    d = [abs(a - b) / values[0] for a, b in zip(mine["gradients"][name], values)]
                    off["gradients"] = [max(x, y) for x, y in zip(off["gradients"], [d[0], d[1], max(d[2:])])]
            for name, values in one["after"].items():
                d = [abs(a - b) for a, b in zip(after[name], values)]
                off["after"] = [max(x, y) for x, y in zip(off["after"], [d[0] / values[0], d[1], max(d[2:])])]
            print(f"  {model['config']['name']} {one['optimizer']}: loss {off['loss']:.1e}, grad_norm "
                  f"{off['grad_norm']:.1e} rel\n    gradients, over the tensor's norm: norm "
                  "{:.1e}, projection {:.1e}, values {:.1e}\n".format(*off["gradients"]) +
                  "    after: norm {:.1e} rel, projection {:.1e}, values {:.1e} abs".format(*off["after"]))


def to_text(data):
    """One line a parameter."""
    def table(values, pad):
        return "{\n" + ",\n".join(f"{pad} {json.dumps(k)}: {json.dumps(v)}" for k, v in values.items()) + "}"

    models = []
    for model in data["models"]:
        runs = []
        for one in model["runs"]:
            steps = ",\n    ".join(
                f'{{"loss": {json.dumps(s["loss"])}, "grad_norm": {json.dumps(s["grad_norm"])}, "gradients": '
                f'{table(s["gradients"], "    ")}}}' for s in one["steps"])
            runs.append(f'  {{"optimizer": "{one["optimizer"]}", "steps": [\n    {steps}],\n   "after": '
                        f'{table(one["after"], "   ")}}}')
        parameters = ",\n  ".join(json.dumps(p) for p in model["parameters"])
        models.append(f' {{"config": {json.dumps(model["config"])},\n  "parameters": [\n  {parameters}],\n  "runs": [\n' +
                      ",\n".join(runs) + "]}")
    head = json.dumps({k: v for k, v in data.items() if k != "models"}, indent=1)[:-2]
    return head + ',\n "models": [\n' + ",\n".join(models) + "]}\n"


def main():
    parser = argparse.ArgumentParser(description="Reference runs for Sherd's tensor and context ranks.")
    parser.add_argument("--check", action="store_true", help="compare with the stored file instead of writing")
    parser.add_argument("--float32", action="store_true", help="print how far a float32 run strays")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    data = reference()
    check(data)
    if args.float32:
        report_float32(data)
    generate.keep("runs.json", to_text(data), data, args.check)


if __name__ == "__main__":
    main()

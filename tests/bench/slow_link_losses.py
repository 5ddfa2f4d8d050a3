"""slow_link_losses.py PROGRAM TEXT [--seeds N] [--quickstart]: validation losses with compressed or rarer exchange.

Each form trains recipes/shakespeare_char_cpu.yaml on TEXT (nanoGPT's Tiny Shakespeare) for 1,000 steps, with equal
tokens, or recipes/quickstart.yaml as it is, and prints the loss of the whole validation split. With several seeds, the
mean and the range. Forms with SGD are compared with synchronous SGD.
"""
import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import tempfile

RECIPES = pathlib.Path(__file__).resolve().parents[2] / "recipes"
STEPS = 1000


def replicas(count):
    return [f"parallelism.data_parallel_replicate_degree={count}", "parallelism.data_parallel_shard_degree=1"]


def apart(count, steps, *more):
    return replicas(count) + [f"diloco.sync_every={steps}", *more]


SHARDS = ["parallelism.data_parallel_shard_degree=2", "zero_optimization.stage=1"]
INT8 = ["mixed_precision.gather_dtype=int8_block64", "mixed_precision.reduce_dtype=int8_block64"]
INT4 = ["mixed_precision.gather_dtype=int4_block64", "mixed_precision.reduce_dtype=int4_block64"]
PLAIN = ["diloco.outer_lr=1", "diloco.outer_momentum=0"]
SGD = ["optimizer.type=sgd", "optimizer.lr=0.1", "optimizer.momentum=0.9", "optimizer.weight_decay=0"]
DION = ["optimizer.type=dion", "optimizer.lr=0.01", "optimizer.momentum=0.95", "optimizer.adamw_lr=1e-3"]

FORMS = {
    "synchronous, AdamW": SHARDS,
    "int8 gathers and reductions": SHARDS + INT8,
    "int4 gathers and reductions": SHARDS + INT4,
    "int8 gathers, int4 reductions": SHARDS + [INT8[0], INT4[1]],
    "replicas: int8 gathers, int4 sums": replicas(2) + [
        "zero_optimization.stage=1", "zero_optimization.shard_optimizer_over_replicas=true", INT8[0],
        "mixed_precision.replica_reduce_dtype=int4_block64"],
    "DiLoCo, 2 replicas, every 10 steps": apart(2, 10),
    "DiLoCo, 2 replicas, every 50 steps": apart(2, 50),
    "DiLoCo, 4 replicas, every 10 steps": apart(4, 10),
    "DiLoCo, 4 replicas, every 50 steps": apart(4, 50),
    "averages, 2 replicas, every 10 steps": apart(2, 10, *PLAIN),
    "averages, 2 replicas, every 50 steps": apart(2, 50, *PLAIN),
    "averages, 2 replicas, every 50 steps, int8": apart(2, 50, *PLAIN, "diloco.quantize=int8_block64"),
    "PowerSGD, rank 4": replicas(2) + ["powersgd.rank=4"],
    "Dion": SHARDS + DION,
    "Dion, decoupled": replicas(2) + DION + ["optimizer.dion_decoupled=true", "gradient_clipping.max_norm=0"],
    "synchronous, SGD": SHARDS + SGD,
    "DGC, 1 %": replicas(2) + SGD + ["dgc.compress_ratio=0.01"],
}
QUICKSTART = ["synchronous, AdamW", "int8 gathers and reductions", "DiLoCo, 2 replicas, every 50 steps",
              "averages, 2 replicas, every 50 steps", "Dion", "Dion, decoupled"]


def loss_of(program, recipe, settings, folder):
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    sets = [word for setting in settings for word in ("--set", setting)]
    subprocess.run([program, "train", recipe, "--set", f"run.output_dir={out}", "--set", "run.num_threads=1", *sets],
                   check=True, capture_output=True, cwd=folder)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["val_loss"] for line in lines if "val_loss" in line][-1]


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("program", type=pathlib.Path)
    arguments.add_argument("text", type=pathlib.Path)
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--quickstart", action="store_true")
    arguments.add_argument("--only", default="", help="forms whose name contains this")
    given = arguments.parse_args()
    program, text = given.program.resolve(), given.text.resolve()
    if given.quickstart:
        recipe, common = RECIPES / "quickstart.yaml", ["training.sample_tokens=0", "checkpoint.interval=0"]
    else:
        recipe, common = RECIPES / "shakespeare_char_cpu.yaml", [
            f"data.path={text}", f"training.max_steps={STEPS}", f"lr_scheduler.decay_steps={STEPS}",
            "training.sample_tokens=0", "training.eval_interval=500"]
    with tempfile.TemporaryDirectory() as name:
        for form, settings in FORMS.items():
            if given.only not in form or (given.quickstart and form not in QUICKSTART):
                continue
            losses = [loss_of(program, recipe, common + settings + [f"run.seed={seed}"], pathlib.Path(name))
                      for seed in range(1, 2 if given.quickstart else given.seeds + 1)]
            print(f"| {form} | {statistics.mean(losses):.3f} | {min(losses):.3f} to {max(losses):.3f} |", flush=True)


main()

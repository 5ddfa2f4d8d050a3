#!/usr/bin/env python3
"""`./dev bench layouts`: how good are predicted times on this machine's CPUs?

Trains three models in 40 layouts: threads, processes, links between network namespaces that tc slows (as root),
pipelines, recomputing, state on disk, bf16. Without root or tc, those of slow links are left out. Prints the median
step of each, what `sherd plan --cluster` predicted, and their ratio. Layouts take turns. `--choice`: is the first
layout that `sherd plan --search` prints as fast as the fastest of those measured on as many threads?
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SHERD = os.environ.get("SHERD", str(ROOT / "build/cpu/sherd"))
MODELS = {"quickstart": ROOT / "recipes/quickstart.yaml", "llama_25m": ROOT / "tests/bench/peers/llama_25m.yaml",
          "gpt_34m": HERE / "gpt_34m.yaml"}
FIRST = "the search's first"
STEPS = 7  # of a run, of which the first two are left out

SHARDS, REPLICAS = "parallelism.data_parallel_shard_degree", "parallelism.data_parallel_replicate_degree"
TENSOR, CONTEXT = "parallelism.tensor_parallel_degree", "parallelism.context_parallel_degree"
PIPELINE, SCHEDULE = "parallelism.pipeline_parallel_degree", "parallelism.pipeline_schedule"
CHUNKS, SEQUENCE = "parallelism.pipeline_chunks_per_rank", "parallelism.sequence_parallel"
METHOD, STAGE = "parallelism.context_parallel_method", "zero_optimization.stage"
PARTS = "training.gradient_accumulation_steps"
AGAIN, DTYPE, THREADS = "activation_checkpointing.mode", "mixed_precision.param_dtype", "run.num_threads"
OFFLOAD, PREFETCH = "zero_optimization.offload_optimizer", "zero_optimization.prefetch_depth"


def zero(stage, ranks=2, **more):
    return {STAGE: stage, SHARDS: ranks, **more}


# Name: where ranks run, and settings. "threads"; "processes"; a rate: processes in namespaces, one in each.
ALL = {
    "one thread": ("threads", zero(0, 1) | {THREADS: 1}),
    "two threads": ("threads", zero(0, 1)),
    "stage 0": ("threads", zero(0)),
    "stage 1": ("threads", zero(1)),
    "stage 3": ("threads", zero(3)),
    "2 tensor ranks": ("threads", zero(0, 1) | {TENSOR: 2}),
    "2 pipeline ranks": ("threads", zero(0, 1) | {PIPELINE: 2, PARTS: 4}),
    "recompute, stage 3": ("threads", zero(3) | {AGAIN: "full"}),
    "2 processes, stage 1": ("processes", zero(1)),
    "2 nodes, 1 Gbit/s": ("1gbit", zero(2)),
}
LAYOUTS = {
    "quickstart": ALL | {
        "stage 2, micro-batches": ("threads", zero(2) | {PARTS: 2}),
        "4 ranks, stage 3": ("threads", zero(3, 4)),
        "2 context ranks": ("threads", zero(0, 1) | {CONTEXT: 2}),
        "bf16, stage 3": ("threads", zero(3) | {DTYPE: "bf16"}),
    },
    "llama_25m": ALL | {
        "2 x 2 hybrid": ("threads", zero(3) | {REPLICAS: 2}),
        "2 tensor x 2": ("threads", zero(1) | {TENSOR: 2, SEQUENCE: "true"}),
        "interleaved pipeline": ("threads",
                                 zero(0, 1) | {PIPELINE: 2, PARTS: 4, SCHEDULE: "interleaved_1f1b", CHUNKS: 2}),
        "optimizer on disk": ("threads", zero(1) | {OFFLOAD: "nvme"}),
    },
    "gpt_34m": ALL | {
        "ring of 2": ("threads", zero(0, 1) | {CONTEXT: 2, METHOD: "ring"}),
        "2 pipeline x 2": ("threads", zero(1) | {PIPELINE: 2, PARTS: 2}),
    },
}


def words_of(model, sets):
    """A recipe and its settings. Data is this repository's documentation."""
    common = {"run.device": "cpu", "training.max_steps": STEPS, "training.eval_interval": 0, "training.eval_batches": 1,
              "training.final_eval": "batches", "training.sample_tokens": 0, "checkpoint.interval": 0,
              "checkpoint.resume": "never", "metrics.tensorboard": "false", "metrics.log_interval": 1,
              "lr_scheduler.warmup_steps": 1, "training.seq_length": 256, "data.path": ROOT / "docs",
              "data.format": "bytes"}
    words = [str(MODELS[model])]
    for key, value in (common | sets).items():
        words += ["--set", f"{key}={value}"]
    return words


def ranks_of(sets):
    product = 1
    for key in (SHARDS, REPLICAS, TENSOR, CONTEXT, PIPELINE):
        product *= int(sets.get(key, 1))
    return product


def said(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def steps_of(model, where, sets):
    """Seconds of each step of a run."""
    with tempfile.TemporaryDirectory() as folder:
        if OFFLOAD in sets:
            sets = sets | {"zero_optimization.offload_path": folder + "/state"}
        train = ["train", *words_of(model, sets), "--set", f"run.output_dir={folder}/run"]
        ranks = ranks_of(sets)
        if where == "threads":
            said(SHERD, *train)
        elif where == "processes":
            said(SHERD, "launch", "-n", ranks, "--", *train, "--set", f"{THREADS}=1")
        else:
            said(ROOT / "tests/cluster/namespaces.sh", "--rate", where, "--nodes", ranks, "run", 1, *train,
                 "--set", f"{THREADS}=1")
        rows = [json.loads(line) for line in open(folder + "/run/metrics.jsonl")]
    rows = [row for row in rows if "tokens_per_s" in row]
    tokens = rows[1]["tokens"] - rows[0]["tokens"]
    return [tokens / row["tokens_per_s"] for row in rows[2:]]


def predicted(model, where, sets, links):
    ranks = ranks_of(sets)
    cluster = {"machines": 1, "ranks_per_machine": ranks, "device": "cpu", "memory": "16GiB"}
    if where == "processes":
        cluster["within"] = links
    elif where != "threads":
        bits = int(where[:-4]) * {"g": 10**9, "m": 10**6}[where[-4]]
        cluster |= {"machines": ranks, "ranks_per_machine": 1,
                    "between": f"{{bandwidth: {bits // 8}B, latency_us: 100}}"}
    if where != "threads":
        sets = sets | {THREADS: 1}
    if OFFLOAD in sets:
        sets = sets | {"zero_optimization.offload_path": tempfile.gettempdir() + "/state"}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.writelines(f"{key}: {value}\n" for key, value in cluster.items())
        file.flush()
        plan = said(SHERD, "plan", *words_of(model, sets), "--cluster", file.name, "--json")
    return json.loads(plan)["predicted_step_s"]


def measured_links():
    """Between two processes on this machine, as a cluster file has them: {bandwidth: 2857MB, latency_us: 266}."""
    text = said(SHERD, "launch", "-n", 2, "--", "info", "--links")
    return re.search("^within: ({.*})", text, re.MULTILINE)[1]


def compare(models, rounds, only):
    links = measured_links()
    slow_links = os.geteuid() == 0 and shutil.which("tc")
    wanted = [(model, name, where, sets) for model in models for name, (where, sets) in LAYOUTS[model].items()
              if only in name and (slow_links or where in ("threads", "processes"))]
    steps = {(model, name): [] for model, name, *_ in wanted}
    for _ in range(rounds):
        for model, name, where, sets in wanted:
            steps[model, name].append(statistics.median(steps_of(model, where, sets)))
            print(f"{model}, {name}: {steps[model, name][-1] * 1e3:.0f} ms", file=sys.stderr, flush=True)
    errors = []
    print("| model | layout | measured ms | predicted | ratio |\n|---|---|---|---|---|")
    for model, name, where, sets in wanted:
        measured, thought = statistics.median(steps[model, name]), predicted(model, where, sets, links)
        errors.append(abs(thought / measured - 1))
        columns = [model, name, f"{measured * 1e3:.0f}", f"{thought * 1e3:.0f}", f"{thought / measured:.2f}"]
        print(f"| {' | '.join(columns)} |", flush=True)
    median = statistics.median(errors)
    print(f"\n{len(errors)} layouts, medians of {rounds}: median error {median:.1%}, largest {max(errors):.1%}")


def fastest(of):
    return min(of, key=lambda name: statistics.median(of[name]))


def choose(models, rounds):
    """In turns: the search's first layout, and the three fastest of those of two threads that compute in f32."""
    for model in models:
        sets = zero(3 if model == "quickstart" else 0)
        found = json.loads(said(SHERD, "plan", *words_of(model, sets), "--search", "--json"))["best"][0]["settings"]
        others = {name: of for name, (where, of) in LAYOUTS[model].items()
                  if where == "threads" and ranks_of(of) <= 2 and DTYPE not in of and THREADS not in of}
        once = {name: statistics.median(steps_of(model, "threads", of)) for name, of in others.items()}
        sides = {FIRST: sets | found} | {name: others[name] for name in sorted(once, key=once.get)[:3]}
        times = {name: [] for name in sides}
        for _ in range(rounds):
            for name, of in sides.items():
                times[name].append(statistics.median(steps_of(model, "threads", of)))
        best = fastest({name: of for name, of in times.items() if name != FIRST})
        ratios = [first / other for first, other in zip(times[FIRST], times[best])]
        print(f"{model}: {FIRST} is {found}. Its steps take {statistics.median(ratios):.3f} times those of the fastest"
              f" measured, {best} ({min(ratios):.3f} to {max(ratios):.3f}, {rounds} rounds). Medians in ms: "
              + ", ".join(f"{name} {statistics.median(of) * 1e3:.0f}" for name, of in times.items()), flush=True)


def main():
    parser = argparse.ArgumentParser(prog="./dev bench layouts")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="layouts whose name has this")
    parser.add_argument("--choice", action="store_true", help="compare the search's first layout with the others")
    args = parser.parse_args()
    said(SHERD, "info", "--rates")
    models = args.models.split(",")
    if args.choice:
        choose(models, args.rounds)
    else:
        compare(models, args.rounds, args.only)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""./dev bench processes [RECIPES...]: compares ranks as processes over MPI with ranks as threads, taking turns.

Both train the same recipe on two ranks at stage 3, one thread each. Prints tokens/s of both, medians over steps, and
their ratio in each round; the last line of a recipe is the median of ratios. ROUNDS=N (3), STEPS=N (8).
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SHERD = os.environ.get("SHERD", str(ROOT / "build/cpu/sherd"))
ROUNDS, STEPS = int(os.environ.get("ROUNDS", "3")), int(os.environ.get("STEPS", "8"))


# For a recipe made for GPUs: a batch that two cores compute in some seconds.
SMALLER = {"gpt2_124m": {"training.seq_length": 256, "training.global_batch_size": 4,
                         "training.micro_batch_size": 2, "data.validation_path": '""'}}


def speed(recipe, folder, launch):
    words = [SHERD] + (["launch", "-n", "2", "--"] if launch else [])
    settings = {
        "run.output_dir": folder,
        "run.num_threads": 1,
        "run.device": "cpu",
        "training.max_steps": STEPS,
        "training.eval_interval": 0,
        "training.eval_batches": 1,
        "training.final_eval": "batches",
        "training.sample_tokens": 0,
        "zero_optimization.stage": 3,
        "checkpoint.interval": 0,
        "checkpoint.resume": "never",
        "metrics.tensorboard": "false",
        "lr_scheduler.warmup_steps": 1,
        "data.path": ROOT / "docs",
        "data.format": "bytes",
    }
    settings |= SMALLER.get(recipe.stem, {})
    words += ["train", str(recipe), "--ranks", "2"]
    for key, value in settings.items():
        words += ["--set", f"{key}={value}"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}\n{done.stderr}")
    rows = [json.loads(line) for line in open(Path(folder) / "metrics.jsonl")]
    return statistics.median([row["tokens_per_s"] for row in rows if "tokens_per_s" in row][2:])


def main():
    for recipe in sys.argv[1:] or ["quickstart", "gpt2_124m"]:
        ratios = []
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                threads = speed(ROOT / "recipes" / f"{recipe}.yaml", folder + "/threads", False)
                processes = speed(ROOT / "recipes" / f"{recipe}.yaml", folder + "/processes", True)
            ratios.append(processes / threads)
            print(f"{recipe}: threads {threads:.0f}, processes {processes:.0f} tokens/s, "
                  f"ratio {ratios[-1]:.3f}", flush=True)
        print(f"{recipe}: median of ratios {statistics.median(ratios):.3f}", flush=True)


if __name__ == "__main__":
    main()

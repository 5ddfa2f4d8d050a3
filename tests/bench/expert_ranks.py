"""expert_ranks.py PROGRAM [ROUNDS]: training steps with whole experts and with experts on two ranks, turn by turn.

A model with the ratios of Qwen3-MoE: 4 layers, 32 experts, 4 for each token, D 512, F 192, 8 sequences of 256 tokens,
AdamW, two data ranks of one thread each. Prints tokens per second of both, and the median of the ratios, for f32 and
bf16 at stages 1 and 3. Losses of both must be equal.
"""
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from experts_recipe import recipe_in

STEPS = 6


def run(program, folder, dtype, stage, degree):
    out = folder / "run"
    subprocess.run([program, "train", folder / "recipe.yaml", "--ranks", "2", "--set", f"run.output_dir={out}",
                    "--set", f"mixed_precision.param_dtype={dtype}", "--set", "run.num_threads=1", "--set",
                    f"zero_optimization.stage={stage}", "--set", f"parallelism.expert_parallel_degree={degree}",
                    "--set", "checkpoint.resume=never"], check=True, capture_output=True, cwd=folder)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "tokens_per_s" in line]
    subprocess.run(["rm", "-r", out], check=True)
    return statistics.median(line["tokens_per_s"] for line in steps[2:]), [line["loss"] for line in steps]


def main():
    program, rounds = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        recipe_in(folder, STEPS)
        for dtype in ("f32", "bf16"):
            for stage in (1, 3):
                rates = {1: [], 2: []}
                for number in range(rounds):
                    losses = {}
                    for degree in (1, 2) if number % 2 == 0 else (2, 1):
                        rate, losses[degree] = run(program, folder, dtype, stage, degree)
                        rates[degree].append(rate)
                    assert losses[1] == losses[2], (losses[1], losses[2])
                ratio = statistics.median(b / a for a, b in zip(rates[1], rates[2]))
                print(f"{dtype} stage {stage}: {statistics.median(rates[1]):.0f} tokens/s with whole experts, "
                      f"{statistics.median(rates[2]):.0f} on two expert ranks; median ratio {ratio:.2f}", flush=True)


main()

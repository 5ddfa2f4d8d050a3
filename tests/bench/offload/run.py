"""`./dev bench offload`: the same training with its optimizer state in memory and on disk, in alternating runs.

The drive is the one of --folder. --tokens sets the tokens of a step. --peer PYTHON adds DeepSpeed, if that Python
has it (theirs.py says what it needs). The first step of a run isn't counted. Losses of ours must be equal.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
LENGTH = 1024


def ours(program, folder, home, steps, sequences):
    out = folder / "run"
    subprocess.run([program, "train", HERE / "llama_374m.yaml", "--set", f"run.output_dir={out}",
                    "--set", f"training.max_steps={steps}", "--set", f"training.global_batch_size={sequences}",
                    "--set", f"zero_optimization.offload_optimizer={home}", "--set", "checkpoint.resume=never"],
                   check=True, stdout=(folder / "log").open("w"))
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    subprocess.run(["rm", "-r", out], check=True)
    rows = [line for line in lines if "tokens_per_s" in line]
    return [{"seconds": sequences * LENGTH / line["tokens_per_s"], "loss": line["loss"],
             "waited": line.get("exposed_disk_ms", 0) / 1e3} for line in rows]


def theirs(python, folder, home, steps, sequences):
    out = subprocess.run([python, HERE / "theirs.py", folder, home, str(steps), str(sequences)], check=True,
                         stdout=subprocess.PIPE, stderr=(folder / "log").open("w"), text=True).stdout
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--peer")
    options = parser.parse_args()
    if options.steps < 2 or options.tokens < LENGTH or options.tokens % LENGTH:
        parser.error(f"--steps is at least 2, --tokens a multiple of {LENGTH}")
    options.folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([options.program, "info", "--disk", options.folder], check=True)
    sequences, ratios, losses = options.tokens // LENGTH, {}, []
    for number in range(options.rounds):
        for side, train, what in (("sherd", ours, options.program.resolve()), ("deepspeed", theirs, options.peer)):
            if what is None:
                continue
            medians = {}
            homes = {"memory": "none" if side == "sherd" else "cpu", "disk": "nvme"}
            for home in sorted(homes, reverse=number % 2 == 0):
                steps = train(what, options.folder, homes[home], options.steps, sequences)
                for step in steps:
                    print(json.dumps({"side": side, "home": home, **step}), flush=True)
                medians[home] = statistics.median(step["seconds"] for step in steps[1:])
                if side == "sherd":
                    losses.append([step["loss"] for step in steps])
            ratios.setdefault(side, []).append(medians["memory"] / medians["disk"])
    if any(other != losses[0] for other in losses):
        sys.exit("the losses of Sherd's runs differ")
    for side, values in ratios.items():
        print(f"{side}: speed with state on disk, compared with memory: {statistics.median(values):.3f} "
              f"(median of {len(values)}: {', '.join(f'{value:.3f}' for value in values)})")


if __name__ == "__main__":
    main()

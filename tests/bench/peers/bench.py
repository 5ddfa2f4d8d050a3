"""`./dev bench peers`: Sherd and PyTorch do the same training side by side, taking turns step by step.

Both start from one file of weights, read the same tokens, and print the same losses, which is the
proof that it is the same work. A turn is one step of either, so that a change of the machine's load
meets both; what counts is the median of the ratios of neighbouring turns. Every finished case is
kept in build/peers/results.jsonl, so that an interrupted run continues where it was; --fresh forgets it.
"""
import argparse
import array
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from turns import Side  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
OUT = ROOT / "build" / "peers"
OURS = ROOT / "build" / "cpu" / "tests" / "sherd_peers"
MODELS = {"quickstart": 8, "llama_25m": 4, "gpt2_124m": 1, "llama_300m": 1}  # sequences of one step at world 1
# On a GPU: bf16 with FP32 master weights (there: autocast), nothing recomputed, sequences of 1,024.
GPU_MODELS = {"gpt2_124m": 16, "llama_05b": 16, "llama_15b": 4}  # both sides of 1.5B fit one H100
GPU = False
WARM_UP = 2
# World, our stage, their wrapper. "pure", in bf16 only: weights and moments of theirs in bf16 alone, less than ours.
CASES = [(1, 0, "plain"), (1, 0, "pure"), (2, 0, "ddp"), (2, 3, "fsdp2")]
DTYPE = "f32"
# What holds PyTorch's own kernels, oneDNN and MKL to an instruction set: --isa.
THEIR_ISA = {"avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}}


def output_of(*command):
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True, cwd=ROOT).stdout


def write_tokens(path, model, world, steps):
    # Frequencies like a text's (Zipf), so that the loss falls from ln(V) and a wrong gradient shows.
    vocabulary = range(model["vocab_size"])
    count = steps * world * model["sequences"] * (model["seq_length"] + 1)
    ids = random.Random(1).choices(vocabulary, [1 / (1 + token) for token in vocabulary], k=count)
    path.write_bytes(array.array("i", ids).tobytes())


def prepare(name, world, stage, pairs, threads, least_rows=1):
    """Files that both sides read; the model, the rows of a step, our command."""
    recipe = HERE / f"{name}.yaml"
    rows = (GPU_MODELS if GPU else MODELS)[name]
    rows = max(rows, world, least_rows)
    sets = [f"parallelism.data_parallel_shard_degree={world}", f"zero_optimization.stage={stage}",
            f"training.global_batch_size={rows}", f"run.num_threads={threads // world}"]
    weights_sets = ["run.device=cpu"]
    if GPU:
        sets += ["run.device=cuda", "mixed_precision.param_dtype=bf16", "activation_checkpointing.mode=none"]
    else:
        sets += ["run.device=cpu", f"mixed_precision.param_dtype={DTYPE}"]
    model = json.loads(output_of(OURS, "describe", recipe, *sets))
    shape, weights, tokens = (OUT / f"{name}.{what}" for what in ("json", "weights", "tokens"))
    shape.write_text(json.dumps(model))
    if not weights.exists():
        output_of(OURS, "weights", recipe, weights, *weights_sets)  # f32
    write_tokens(tokens, model, world, WARM_UP + pairs + 1)
    return model, rows, [OURS, "train", recipe, tokens, *sets]


def measure(name, world, stage, wrapper, mode, pairs, threads):
    """Turns of both; what is kept of one case."""
    model, rows, command = prepare(name, world, stage, pairs, threads)
    shape, weights, tokens = (OUT / f"{name}.{what}" for what in ("json", "weights", "tokens"))
    their_mode = mode if wrapper == "plain" else f"{mode}+{wrapper}"
    ours = Side(command, OUT / "ours.log", cwd=ROOT)
    theirs = Side([sys.executable, HERE / "theirs.py", shape, weights, tokens, their_mode, world, threads // world],
                  OUT / "theirs.log", cwd=ROOT)
    turns = []
    for turn in range(WARM_UP + pairs):
        rate = float(output_of(OURS, "gpu_rate") if GPU else
                     output_of(OURS, "rate", threads, DTYPE)) * 1e9
        turns.append({"rate": rate, "ours": ours.step(), "theirs": theirs.step()})
        if turn == 0 and not GPU:
            # What compiling took isn't counted against the peer's peak.
            pathlib.Path(f"/proc/{theirs.process.pid}/clear_refs").write_text("5")
            pathlib.Path(f"/proc/{ours.process.pid}/clear_refs").write_text("5")
        print(f"  {name} world {world} {their_mode} turn {turn - WARM_UP + 1}/{pairs}: ours {turns[-1]['ours']['seconds']:.3f} s,"
              f" theirs {turns[-1]['theirs']['seconds']:.3f} s, losses {turns[-1]['ours']['loss']:.4f} and"
              f" {turns[-1]['theirs']['loss']:.4f}, load {os.getloadavg()[0]:.1f}", flush=True)
    ours.end()
    theirs.end()
    return {"model": name, "world": world, "stage": stage, "wrapper": wrapper, "mode": mode, "threads": threads,
            "dtype": DTYPE, "isa": model["isa"],
            "tokens": rows * model["seq_length"], "parameters": model["num_parameters"],
            "flops": model["flops_per_token"], "load": os.getloadavg()[0],
            "loss_gap": max(abs(t["ours"]["loss"] - t["theirs"]["loss"]) for t in turns), "turns": turns[WARM_UP:]}


def measure_stages(name, pairs, threads):
    """Compares our stage 3 with our stage 0, both on two ranks, taking turns."""
    sides, turns = {}, []
    for stage in (0, 3):
        _, _, command = prepare(name, 2, stage, pairs, threads)
        sides[stage] = Side(command, OUT / f"stage{stage}.log", cwd=ROOT)
    for turn in range(WARM_UP + pairs):
        turns.append({stage: side.step() for stage, side in sides.items()})
        print(f"  {name} stages turn {turn - WARM_UP + 1}/{pairs}: stage 0 {turns[-1][0]['seconds']:.3f} s, stage 3"
              f" {turns[-1][3]['seconds']:.3f} s, load {os.getloadavg()[0]:.1f}", flush=True)
    for side in sides.values():
        side.end()
    turns = turns[WARM_UP:]
    median = statistics.median
    ratios = [t[0]["seconds"] / t[3]["seconds"] for t in turns]
    processor = median(t[0]["processor_seconds"] / t[3]["processor_seconds"] for t in turns)
    exposed = {stage: median(t[stage]["exposed_comm_ms"] / 1e3 / t[stage]["seconds"] for t in turns) for stage in (0, 3)}
    return (f"{name} in {DTYPE}, 2 ranks: stage 3 at {median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f}) of stage 0's tokens/s,"
            f" {processor:.3f} in processor time; exposed communication {exposed[0]:.1%} of the step at stage 0,"
            f" {exposed[3]:.1%} at stage 3; losses {turns[-1][0]['loss']:.6f} and {turns[-1][3]['loss']:.6f}")


def measure_threads(name, pairs, threads):
    """Compares one rank with all threads with two ranks with half of them each: the same batch, taking turns."""
    sides, turns = {}, []
    for world in (1, 2):
        model, rows, command = prepare(name, world, 0, pairs, threads, least_rows=2)
        sides[world] = Side(command, OUT / f"world{world}.log", cwd=ROOT)
    for turn in range(WARM_UP + pairs):
        rate = float(output_of(OURS, "rate", threads, DTYPE)) * 1e9
        turns.append({"rate": rate, **{world: side.step() for world, side in sides.items()}})
        print(f"  {name} threads turn {turn - WARM_UP + 1}/{pairs}: world 1 {turns[-1][1]['seconds']:.3f} s, world 2"
              f" {turns[-1][2]['seconds']:.3f} s, load {os.getloadavg()[0]:.1f}", flush=True)
    for side in sides.values():
        side.end()
    turns, median = turns[WARM_UP:], statistics.median
    ratios = [t[2]["seconds"] / t[1]["seconds"] for t in turns]
    tokens = rows * model["seq_length"]
    rate = {world: tokens / median(t[world]["seconds"] for t in turns) for world in sides}
    share = {world: median(model["flops_per_token"] * tokens / t["rate"] / t[world]["seconds"] for t in turns) for world in sides}
    return (f"| {name} | {DTYPE} | {rate[1]:,.0f} / {rate[2]:,.0f} | **{median(ratios):.2f}** ({min(ratios):.2f}–{max(ratios):.2f})"
            f" | {share[1]:.0%} / {share[2]:.0%} | {turns[-1][1]['loss']:.5f} / {turns[-1][2]['loss']:.5f} |")


def row_of(case):
    turns, tokens = case["turns"], case["tokens"]
    median = statistics.median
    ratios = [t["theirs"]["seconds"] / t["ours"]["seconds"] for t in turns]
    ours, theirs = (median(t[side]["seconds"] for t in turns) for side in ("ours", "theirs"))
    processor = median(t["theirs"]["processor_seconds"] / t["ours"]["processor_seconds"] for t in turns)
    bounds = [case["flops"] * tokens / t["rate"] for t in turns]
    share = lambda side: median(b / t[side]["seconds"] for b, t in zip(bounds, turns))
    last = turns[-1]
    beyond = lambda side: (last[side]["peak"] - last[side]["libraries"] - 16 * case["parameters"] *
                           (1 if case["stage"] == 3 else case["world"])) / 2**20
    ours_name = f"stage {case['stage']}" if case["world"] > 1 else "plain"
    return [case["model"], case["dtype"], case["isa"], str(case["world"]), f"{ours_name} / {case['wrapper']}, {case['mode']}",
            f"{tokens / ours:,.0f}", f"{tokens / theirs:,.0f}",
            f"**{median(ratios):.2f}** ({min(ratios):.2f}–{max(ratios):.2f})",
            f"{processor:.2f}",
            f"{last['ours']['loss']:.5f} / {last['theirs']['loss']:.5f}",
            f"{share('ours'):.0%} / {share('theirs'):.0%}",
            f"{last['ours']['peak'] / 2**20:,.0f} / {last['theirs']['peak'] / 2**20:,.0f}",
            f"{last['ours']['libraries'] / 2**20:,.0f} / {last['theirs']['libraries'] / 2**20:,.0f}",
            f"{beyond('ours'):,.0f} / {beyond('theirs'):,.0f}",
            f"{case['load']:.1f}"]


HEAD = ["model", "type", "instruction set", "world", "Sherd / PyTorch", "Sherd tokens/s", "PyTorch tokens/s", "ratio (min–max)",
        "ratio of processor time",
        "last loss", "share of matmul rate", "peak MiB", "of it libraries", "beyond 16 B/parameter", "load"]


def print_table(cases):
    print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD))
    for case in cases:
        print("| " + " | ".join(row_of(case)) + " |")
    print("\nGreatest difference of the losses of any step:",
          ", ".join(f"{c['model']} {c['world']} {c['wrapper']} {c['mode']} {c['loss_gap']:.1e}" for c in cases))


def main():
    parser = argparse.ArgumentParser(prog="./dev bench peers")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu",
                        help="cuda: one GPU, bf16, with the PyTorch of this python3")
    parser.add_argument("--models", help="comma-separated")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32",
                        help="bf16: both with f32 weights and moments; PyTorch with these in bf16, too, as a case of its own")
    parser.add_argument("--modes", default="eager,compile")
    parser.add_argument("--cases", default="plain,pure,ddp,fsdp2,stages,threads")
    parser.add_argument("--pairs", type=int, default=5, help="measured turns of each case")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of all ranks together")
    parser.add_argument("--isa", choices=list(THEIR_ISA), help="both sides use this instruction set instead of their choice")
    parser.add_argument("--fresh", action="store_true", help="forget the cases measured before")
    args = parser.parse_args()
    if args.isa:
        os.environ.update(THEIR_ISA[args.isa], SHERD_ISA=args.isa)
    global GPU, OURS, OUT, DTYPE
    GPU, DTYPE = args.device == "cuda", "bf16" if args.device == "cuda" else args.dtype
    if GPU:
        programs = pathlib.Path(os.environ.get("SHERD_PROGRAMS", ROOT / "build" / "cuda"))
        OURS = next(programs.rglob("sherd_peers"))
        OUT, args.cases = ROOT / "build" / "peers_gpu", "plain"
    args.models = args.models or ",".join(GPU_MODELS if GPU else MODELS)
    OUT.mkdir(parents=True, exist_ok=True)
    kept = OUT / "results.jsonl"
    if args.fresh:
        kept.unlink(missing_ok=True)
        for weights in OUT.glob("*.weights"):
            weights.unlink()
    key = lambda c: (c["model"], c["world"], c["wrapper"], c["mode"], c["threads"], len(c["turns"]),
                     c.get("dtype"), c.get("isa"))
    isa = json.loads(output_of(OURS, "describe", HERE / "quickstart.yaml"))["isa"]
    done = {key(c): c for c in map(json.loads, kept.read_text().splitlines())} if kept.exists() else {}
    shown, stages, by_threads = [], [], []
    for name in args.models.split(","):
        for world, stage, wrapper in CASES:
            for mode in args.modes.split(","):
                if wrapper not in args.cases.split(",") or (wrapper == "pure" and DTYPE == "f32"):
                    continue
                wanted = (name, world, wrapper, mode, args.threads, args.pairs, DTYPE, isa)
                if wanted not in done:
                    done[wanted] = measure(name, world, stage, wrapper, mode, args.pairs, args.threads)
                    with open(kept, "a") as file:
                        file.write(json.dumps(done[wanted]) + "\n")
                shown.append(done[wanted])
        if "stages" in args.cases.split(","):
            stages.append(measure_stages(name, args.pairs, args.threads))
        if "threads" in args.cases.split(",") and not GPU:
            by_threads.append(measure_threads(name, args.pairs, args.threads))
    if shown:
        print_table(shown)
    print("", *stages, sep="\n")
    if by_threads:
        print("\n| model | type | tokens/s, one rank / two | ratio (min–max) | share of matmul rate | last loss |\n" + "|---" * 6 + "|",
              *by_threads, sep="\n")


if __name__ == "__main__":
    main()

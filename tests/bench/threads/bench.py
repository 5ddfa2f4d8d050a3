"""`./dev bench threads`: where the threads of a rank wait, and what more threads would gain.

A step is recorded task by task on all threads of this machine: where did their time go (replay.py has the words)? For
each other number of threads, a team of so many runs its tasks one by one on one core, and the recording is replayed on
so many cores. The first replays are of this machine's own threads, to be compared with the measured step. There, cores
slow each other, whatever a team does: by how much is measured by as many processes that each run all tasks alone.

Of llama_1b, a model with one of its layers and one with two are recorded. What one more layer adds is taken 14 more times.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[0])]
from peers import bench as peers  # noqa: E402
from replay import (costs_of_meeting, of_layers, outside_of_loops, read, slower_at_once, slower_by_bandwidth, step_on,  # noqa: E402
                    waits_of)
from turns import Side  # noqa: E402

LAYERS = {"llama_1b": 16}
MEETING = 2.0, 2.0  # us to wake and to end a loop, where it isn't measured
PARTS = ("work", "wake", "order", "hand", "few", "end")


def prepare(name, threads, turns, layers):
    """Our command. `layers`: of the model, if not all."""
    if not layers:
        return peers.prepare(name, 1, 0, turns, threads)[2]
    recipe, tokens = HERE / f"{name}.yaml", peers.OUT / f"{name}.tokens"
    sets = ["run.device=cpu", f"mixed_precision.param_dtype={peers.DTYPE}", f"run.num_threads={threads}",
            f"model.num_layers={layers}"]
    model = json.loads(peers.output_of(peers.OURS, "describe", recipe, *sets))
    peers.write_tokens(tokens, model, 1, peers.WARM_UP + turns + 1)
    return [peers.OURS, "train", recipe, tokens, *sets]


class Recorded:
    """A side whose steps are recorded. `number`: of those that run at once."""

    def __init__(self, name, how, threads, turns, number=0, layers=0):
        command = prepare(name, threads, turns, layers)
        self.recipe, self.sets = command[2], command[4:]
        label = f"{how}{threads}.{number}"
        self.file = peers.OUT / f"{name}.{label}"
        self.side = Side([command[0], how, *command[2:4], self.file, *self.sets], peers.OUT / f"{label}.log", cwd=peers.ROOT)
        for _ in range(1 if layers else peers.WARM_UP):
            self.side.step()

    def step(self):
        """Microseconds; `read(file)` are then the step's loops."""
        return self.side.step()["seconds"] * 1e6


def in_turns(sides, turns):
    """Each side's steps. Sides take turns, and those of a list step at once."""
    groups = [side if isinstance(side, list) else [side] for side in sides]
    steps = [[] for _ in sides]
    with concurrent.futures.ThreadPoolExecutor(max(map(len, groups))) as pool:
        for _ in range(turns):
            for group, side, of_side in zip(groups, sides, steps):
                seconds = list(pool.map(Recorded.step, group))
                done = [(time, read(each.file)) for time, each in zip(seconds, group)]
                of_side.append(done if isinstance(side, list) else done[0])
    for each in sum(groups, []):
        each.side.end()
    return steps


def median_step(steps):
    return sorted(steps, key=lambda step: step[0])[len(steps) // 2]


def print_waits(name, step, loops, threads):
    rows = collections.defaultdict(lambda: dict.fromkeys(PARTS, 0.0))
    for loop in loops:
        for part, time in waits_of(loop, threads).items():
            rows[loop["name"]][part] += time
    alone = outside_of_loops(loops, step)
    rows["outside of loops"].update(work=alone, few=alone * (threads - 1))
    whole = step * threads
    table = sorted(rows.items(), key=lambda row: -sum(row[1].values()))
    total = {part: sum(parts[part] for parts in rows.values()) for part in PARTS}
    print(f"\n{name}, {threads} threads: a step of {step / 1e3:.1f} ms, {len(loops)} loops,"
          f" {sum(len(loop['tasks']) for loop in loops)} tasks; % of all threads' time")
    print(f"| {'kernel':<30} | all    | " + " | ".join(f"{part:<6}" for part in PARTS) + " |\n|" + "---|" * (2 + len(PARTS)))
    for kernel, parts in [("sum", total), *table]:
        print(f"| {kernel:<30} | {sum(parts.values()) / whole:6.1%} | "
              + " | ".join(f"{parts[part] / whole:6.2%}" for part in PARTS) + " |")


def bytes_by_kernel(recipe, sets):
    """What a step's kernels read and write, as the ledger counts it; one kernel may be several launches there."""
    ledger = json.loads(peers.output_of(peers.ROOT / "build/cpu/sherd", "plan", recipe, "--ledger", "--json",
                                        *[word for each in sets for word in ("--set", each)]))
    moved = collections.Counter()
    for row in ledger[0]["rows"]:
        moved[row["name"].split(" (")[0]] += row["read_bytes"] + row["written_bytes"]
    return moved


def print_replay(threads, compared, replayed):
    total, alone, beyond = replayed
    caps = ", ".join(f"{kernel} {time / total:.1%}" for kernel, time in beyond.most_common(4) if time > 0)
    print(f"{threads:>4} threads: {total / 1e3:8.1f} ms, {compared}; outside of loops {alone / total:.1%}; {caps}", flush=True)


def replay_own_threads(name, args):
    """One thread and all of this machine's: measured and replayed in turns. What a meeting costs."""
    threads = args.threads
    sides = [Recorded(name, "loops", 1, args.turns, number=-1), Recorded(name, "loops", threads, args.turns),
             Recorded(name, "tasks", threads, args.turns),
             [Recorded(name, "tasks", threads, args.turns, number) for number in range(1, threads + 1)]]
    one, all_threads, recorded, at_once = in_turns(sides, args.turns)
    step, loops = median_step(all_threads)
    print_waits(f"{name} in {args.dtype}", step, loops, threads)
    costs = costs_of_meeting(loops, threads)
    print(f"\n{name} in {args.dtype}: replayed from tasks one by one. A meeting costs {costs[0]:.1f} + {costs[1]:.1f} us.")
    for number, measured in ((1, one), (threads, all_threads))[:threads]:
        replays = [step_on(own[1], own[0], number, *costs,
                           slower_at_once(own[1], [loops for _, loops in others] if number > 1 else [own[1]]))
                   for own, others in zip(recorded, at_once)]
        ratio = statistics.median(replay[0] / step for replay, (step, _) in zip(replays, measured))
        print_replay(number, f"{ratio:.3f} times the measured step of {median_step(measured)[0] / 1e3:.1f} ms", median_step(replays))
    return costs


def replay(name, threads, args, costs, layers=0):
    """The step of all tasks of so many threads one by one, the replay, and how much longer the former takes than one
    thread's own step."""
    sides = [Recorded(name, "loops", 1, args.turns, layers=layers), Recorded(name, "tasks", threads, args.turns, layers=layers)]
    moved = bytes_by_kernel(sides[1].recipe, sides[1].sets)
    one, recorded = in_turns(sides, args.turns)
    replays = [step_on(loops, total, threads, *costs, slower_by_bandwidth(loops, moved, threads, args.bandwidth * 1e3))
               for total, loops in recorded]
    cut = statistics.median(total / of_one for (total, _), (of_one, _) in zip(recorded, one))
    return median_step(recorded)[0], median_step(replays), cut


def main():
    parser = argparse.ArgumentParser(prog="./dev bench threads")
    parser.add_argument("--models", default="llama_25m,gpt2_124m", help="also llama_1b")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--replay", default="4,8,16,32,64,96", help="numbers of threads")
    parser.add_argument("--bandwidth", type=float, default=460.8,
                        help="GB/s of memory that they share (default: 12 channels of DDR5-4800, an EPYC 9654's)")
    args = parser.parse_args()
    peers.DTYPE = args.dtype
    peers.OUT.mkdir(parents=True, exist_ok=True)
    for name in args.models.split(","):
        layers = LAYERS.get(name)
        costs = MEETING if layers else replay_own_threads(name, args)
        print(f"{name} in {args.dtype}: more threads share {args.bandwidth:.0f} GB/s." +
              (f" {layers} layers, of which one and two are recorded. A meeting is taken to cost {MEETING[0]:.0f} +"
               f" {MEETING[1]:.0f} us." if layers else ""))
        for threads in map(int, args.replay.split(",")):
            if layers:
                first, second = [replay(name, threads, args, costs, each) for each in (1, 2)]
                tasks = second[0] + (layers - 2) * (second[0] - first[0])
                replayed, cut = of_layers(first[1], second[1], layers), second[2]
            else:
                tasks, replayed, cut = replay(name, threads, args, costs)
            print_replay(threads, f"efficiency {tasks / replayed[0] / threads / cut:.2f} (its tasks take {cut:.3f} times one"
                                  " thread's step)", replayed)


if __name__ == "__main__":
    main()

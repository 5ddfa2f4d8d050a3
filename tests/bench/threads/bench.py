"""`./dev bench threads`: where the threads of a rank wait, and what more threads would gain.

A step is recorded task by task on all threads of this machine: where did their time go (replay.py has the words)? For
each other number of threads, a team of so many runs its tasks one by one on one core, and the recording is replayed on
so many cores. The first replays are of this machine's own threads, to be compared with the measured step.
"""
import argparse
import collections
import json
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[0])]
from peers import bench as peers  # noqa: E402
from replay import costs_of_meeting, outside_of_loops, read, slower_by_bandwidth, step_on, waits_of, work_of  # noqa: E402
from turns import Side  # noqa: E402

PARTS = ("work", "wake", "order", "hand", "few", "end")


class Recorded:
    """A side whose steps are recorded."""

    def __init__(self, name, how, threads, turns):
        _, _, command = peers.prepare(name, 1, 0, turns, threads)
        self.recipe, self.sets, self.threads = command[2], command[4:], threads
        self.file = peers.OUT / f"{name}.{how}"
        self.side = Side([command[0], how, *command[2:4], self.file, *self.sets], peers.OUT / f"{how}.log", cwd=peers.ROOT)
        self.steps = []
        for _ in range(peers.WARM_UP):
            self.side.step()

    def step(self):
        self.steps.append((self.side.step()["seconds"] * 1e6, read(self.file)))

    def end(self):
        """The step of median duration: microseconds, and its loops."""
        self.side.end()
        return sorted(self.steps, key=lambda step: step[0])[len(self.steps) // 2]


def recorded(name, how, threads, turns):
    side = Recorded(name, how, threads, turns)
    for _ in range(turns):
        side.step()
    return side.end()


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


def print_replay(threads, one, own, costs, slower, compared=""):
    step, loops = own
    total, alone, beyond = step_on(loops, step, threads, *costs, slower)
    caps = ", ".join(f"{kernel} {time / total:.1%}" for kernel, time in beyond.most_common(4) if time > 0)
    print(f"{threads:>4} threads: {total / 1e3:8.1f} ms{compared}, efficiency {one / total / threads:.2f};"
          f" outside of loops {alone / total:.1%}; {caps}", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="./dev bench threads")
    parser.add_argument("--models", default="llama_25m,gpt2_124m")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--replay", default="4,8,16,32,64,96", help="numbers of threads")
    parser.add_argument("--bandwidth", type=float, default=460.8,
                        help="GB/s of memory that they share (default: 12 channels of DDR5-4800, an EPYC 9654's)")
    args = parser.parse_args()
    peers.DTYPE = args.dtype
    peers.OUT.mkdir(parents=True, exist_ok=True)
    for name in args.models.split(","):
        title = f"{name} in {args.dtype}"
        measured = {}
        for threads in sorted({1, args.threads}):
            step, loops = measured[threads] = recorded(name, "loops", threads, args.turns)
        print_waits(title, step, loops, args.threads)
        costs = costs_of_meeting(loops, args.threads)
        one = measured[1][0]
        probe = Recorded(name, "tasks", args.threads, 1)
        probe.step()
        moved = bytes_by_kernel(probe.recipe, probe.sets)
        own = probe.end()
        work = collections.Counter()
        for loop in own[1]:
            work[loop["name"]] += work_of(loop)
        counted = sum(time for kernel, time in work.items() if kernel in moved) / work.total()
        print(f"\n{title}: replayed from tasks one by one. A meeting costs {costs[0]:.1f} + {costs[1]:.1f} us."
              f" More threads share {args.bandwidth:.0f} GB/s, for kernels that have {counted:.1%} of the work.")
        alike = lambda kernel: 1.0
        for threads in measured:
            print_replay(threads, one, own, costs, alike, f", measured {measured[threads][0] / 1e3:.1f} ms")
        for threads in map(int, args.replay.split(",")):
            more = recorded(name, "tasks", threads, 1)
            print_replay(threads, one, more, costs,
                         slower_by_bandwidth(more[1], moved, threads, args.bandwidth * 1e3))


if __name__ == "__main__":
    main()

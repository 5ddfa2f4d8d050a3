"""`./dev bench pipeline [SCHEDULE...]`: what a real pipeline's step takes, against the simulator.

Trains on two pipeline ranks with one thread each and reads the trace: what each chunk's forward, backward or halves
took, without what they waited for messages. The simulator (`sherd schedule`) gets these times; its step is compared
with the trace's, from the first computation to the last. 1F1B unless schedules are named. Also prints the share of idle
time that both see. The machine must be quiet.
"""
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
OUT = ROOT / "build" / "pipeline_bench"
SHERD = ROOT / "build" / "cpu" / "sherd"
COMPUTE = re.compile(r"(\d+)([FBIW])(\d+)$")
MICRO_BATCHES, RANKS = 8, 2


def trained(schedule):
    """The trace of steps 3 to 8: spans of a rank's compute stream as (rank, name, begin, end), in milliseconds."""
    run = OUT / schedule
    shutil.rmtree(run, ignore_errors=True)
    text = OUT / "text.txt"
    text.write_text("".join(f"line {i} of a text that nobody reads\n" for i in range(20000)))
    command = [SHERD, "train", HERE / "recipe.yaml"]
    for setting in (f"data.path={text}", f"run.output_dir={run}", f"parallelism.pipeline_schedule={schedule}"):
        command += ["--set", setting]
    subprocess.run([str(c) for c in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    events = json.loads(next(run.glob("*trace*")).read_text())
    compute = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["args"]["name"] == "compute"}
    return [(e["pid"], e["name"], e["ts"] / 1e3, (e["ts"] + e["dur"]) / 1e3)
            for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) in compute]


def steps_of(spans):
    """Each step's computations: (rank, chunk, kind, begin, end, milliseconds without waiting)."""
    waits = [(rank, begin, end) for rank, name, begin, end in spans if name == "wait"]
    steps, seen = [], {}
    for rank, name, begin, end in sorted(spans, key=lambda span: span[2]):
        match = COMPUTE.fullmatch(name)
        if not match:
            continue
        number = seen.get((rank, name), 0)
        seen[rank, name] = number + 1
        waited = sum(b - a for r, a, b in waits if r == rank and begin <= a and b <= end)
        # What it waits for before it computes is a message that hasn't come: it begins then.
        first = max([b for r, a, b in waits if r == rank and begin <= a and b <= end], default=begin)
        if number == len(steps):
            steps.append([])
        steps[number].append((rank, int(match[1]), match[2], first, end, end - begin - waited))
    # The evaluation at the end has forwards alone.
    return [step for step in steps if len(step) == len(steps[0])]


def simulated(schedule, times):
    """The simulator's step and share of idle time, of chunks that take (F, I, W) each."""
    command = [SHERD, "schedule", "--pipeline", RANKS, "--micro-batches", MICRO_BATCHES, "--schedule", schedule,
               "--times", ",".join(f"{t:.4f}" for chunk in times for t in chunk)]
    said = subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout
    step, idle = re.search(r"a step takes ([\d.]+) ms; ranks are idle for ([\d.]+) %", said).groups()
    return float(step), float(idle)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    print("| schedule | step, measured | step, simulated | ratio (min–max) | idle, measured | idle, simulated |")
    print("|---|---|---|---|---|---|")
    for schedule in sys.argv[1:] or ["1f1b"]:
        rows = []
        for step in steps_of(trained(schedule)):
            chunks = 1 + max(chunk for _, chunk, *_ in step)
            mean = lambda chunk, kind: statistics.mean([t for _, c, k, _, _, t in step if (c, k) == (chunk, kind)] or [0.0])
            # A joint backward is passed as two halves.
            times = [(mean(c, "F"), max(mean(c, "I") + mean(c, "B") / 2, 1e-3), max(mean(c, "W") + mean(c, "B") / 2, 1e-3))
                     for c in range(chunks)]
            took = max(end for *_, end, _ in step) - min(begin for *_, begin, _, _ in step)
            busy = sum(t for *_, t in step)
            rows.append((took, 100 * (1 - busy / (RANKS * took)), *simulated(schedule, times)))
        ratios = [took / told for took, _, told, _ in rows]
        median = lambda i: statistics.median(row[i] for row in rows)
        print(f"| {schedule} | {median(0):.0f} ms | {median(2):.0f} ms | **{statistics.median(ratios):.3f}** "
              f"({min(ratios):.3f}–{max(ratios):.3f}) | {median(1):.1f} % | {median(3):.1f} % |", flush=True)


main()

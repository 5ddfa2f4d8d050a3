#!/usr/bin/env python3
"""predict.py PLAN METRICS RATE BLOCKS MICRO_STEPS [DEPTH]: how long a step takes on a slow link.

PLAN     of `sherd plan RECIPE --json --ranks-per-machine N`: what a machine sends to others in a step
METRICS  metrics.jsonl of the same run without a limit on the link: what a step computes
RATE     of a machine's link, bits per second; BLOCKS of the model, MICRO_STEPS of a step, DEPTH of prefetch (1)

The computation is divided among the uses of blocks, a backward taking twice a forward. A block's gather is asked for
when the use DEPTH before it begins, its reduction when its backward ends; both take their turn on the link. What
doesn't fit beside the computation is what the step waits for. Prints JSON: seconds and tokens_per_s of a step,
compute_s, link_s if nothing else were done, planned_bytes from one machine.
"""
import json
import statistics
import sys


def sent(plan, *words):
    rows = plan["sent_by_machine"]["rows"][:-1]
    return sum(row["to_other_machines_bytes"] for row in rows if all(w in row["what"] for w in words))


def simulate(compute_s, gathered_s, reduced_s, last_s, blocks, micro_steps, depth):
    uses = []  # of a step: seconds to compute, to gather, to reduce behind it
    share = compute_s / (3 * blocks * micro_steps)
    gather = gathered_s / (2 * blocks * micro_steps)
    reduce = reduced_s / (blocks * micro_steps)
    for _ in range(micro_steps):
        uses += [(share, gather, 0.0)] * blocks + [(2 * share, gather, reduce)] * blocks
    link = now = 0.0
    gathered = []

    def ask_for(use, at):
        nonlocal link
        link = max(link, at) + uses[use][1]
        gathered.append(link)

    for use, (compute, _, behind) in enumerate(uses):
        while len(gathered) <= min(use + depth, len(uses) - 1):
            ask_for(len(gathered), now)
        now = max(now, gathered[use]) + compute
        link = max(link, now) + behind if behind else link
    return max(now, link) + last_s


def main():
    plan_path, metrics_path, rate, blocks, micro_steps = sys.argv[1:6]
    depth = int(sys.argv[6]) if len(sys.argv) > 6 else 1
    plan = json.load(open(plan_path))
    bytes_per_s = float(rate) / 8
    seconds = [
        (row["tokens_per_s"], row["exposed_comm_ms"])
        for row in map(json.loads, open(metrics_path))
        if "tokens_per_s" in row
    ][2:]
    tokens = tokens_per_step(metrics_path)
    compute_s = statistics.median(tokens / speed - exposed / 1000 for speed, exposed in seconds)
    gathered = sent(plan, "parameters", "all_gather")
    reduced = sent(plan, "gradients", "reduce_scatter")
    total = sent(plan)
    among_replicas = sum(
        row["to_other_machines_bytes"]
        for row in plan["sent_by_machine"]["rows"][:-1]
        if row["among"] == "replicate"
    )
    if among_replicas:  # once, behind the last micro-step
        gathered = reduced = 0
    step_s = simulate(
        compute_s,
        gathered / bytes_per_s,
        reduced / bytes_per_s,
        (total - gathered - reduced) / bytes_per_s,
        int(blocks),
        int(micro_steps),
        depth,
    )
    json.dump(
        {"seconds": step_s, "compute_s": compute_s, "link_s": total / bytes_per_s,
         "tokens_per_s": tokens / step_s, "planned_bytes": total},
        sys.stdout,
    )


def tokens_per_step(metrics_path):
    rows = [json.loads(line) for line in open(metrics_path)]
    counts = [row["tokens"] for row in rows if "tokens_per_s" in row]
    return counts[1] - counts[0]


if __name__ == "__main__":
    main()

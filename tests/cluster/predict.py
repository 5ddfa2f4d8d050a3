#!/usr/bin/env python3
"""predict.py PLAN METRICS RATE BLOCKS MICRO_STEPS [DEPTH]: how long a step takes on a slow link.

PLAN     of `sherd plan RECIPE --json --ranks-per-machine N`: what a machine sends to others in a step
METRICS  metrics.jsonl of the same run without a limit on the link: how long a step takes there
RATE     of a machine's link, bits per second; BLOCKS of the model, MICRO_STEPS of a step, DEPTH of prefetch (1)

The step without a limit is divided among the uses of blocks, a backward taking twice a forward. The link's transfers
overlap it as the engine asks for them (sharding/zero/slot_schedule.h): gathers one after another, up to DEPTH uses
ahead and into DEPTH + 1 slots, filling the slot that is needed latest; reductions one after another, each after its
backward, between replicas in the last micro-step only. While both kinds are under way they share the link. The step
waits for the transfers that the computation doesn't cover. Prints JSON: seconds and tokens_per_s of a step,
free_s without a limit, link_s if nothing else were done, planned_bytes from one machine.
"""
import json
import statistics
import sys


def sent(plan, *words, among=None):
    """Bytes a machine sends to others in a step, of the rows whose `what` has all words."""
    return sum(
        row["to_other_machines_bytes"]
        for row in plan["sent_by_machine"]["rows"][:-1]
        if all(word in row["what"] for word in words) and among in (None, row["among"])
    )


class Link:
    """Carries the transfers of two queues, each one after another, sharing its rate while both have some."""

    def __init__(self):
        self.now = 0.0
        self.queues = {"gather": [], "reduce": []}  # of [seconds left alone, number]
        self.ends = {}

    def ask(self, queue, number, seconds):
        self.queues[queue].append([seconds, (queue, number)])

    def run_until(self, time):
        while self.now < time:
            heads = [queue[0] for queue in self.queues.values() if queue]
            if not heads:
                self.now = time
                return
            step = min(min(head[0] for head in heads), (time - self.now) / len(heads))
            self.now += step * len(heads)
            for queue in self.queues.values():
                if queue:
                    queue[0][0] -= step
                    if queue[0][0] <= 1e-12:
                        self.ends[queue.pop(0)[1]] = self.now

    def wait_for(self, queue, number):
        while (queue, number) not in self.ends:
            heads = [waiting[0][0] for waiting in self.queues.values() if waiting]
            self.run_until(self.now + max(min(heads), 1e-9))
        return self.ends[queue, number]


def fills(uses, depth):
    """For each use: the gathers asked for when it begins, and when it has ended, as numbers of uses."""
    slots = [None] * (depth + 1)  # of blocks
    pins = [0] * len(slots)
    begins, ends, promised = [[] for _ in uses], [[] for _ in uses], 0

    def next_use(block, after):
        return next((k for k in range(after, len(uses)) if uses[k] == block), len(uses))

    def promise(until, asked):
        nonlocal promised
        while promised < min(until, len(uses)):
            block = uses[promised]
            if block not in slots:
                free = [s for s in range(len(slots)) if pins[s] == 0]
                if not free:
                    return
                slot = max(free, key=lambda s: next_use(slots[s], promised + 1) if slots[s] is not None else 1 << 30)
                slots[slot] = block
                asked.append(promised)
            pins[slots.index(block)] += 1
            promised += 1

    for use, block in enumerate(uses):
        promise(use + depth + 1, begins[use])
        pins[slots.index(block)] -= 1
        promise(use + 1 + depth, ends[use])
    return begins, ends


def simulate(free_s, gathered_s, reduced_s, between_s, last_s, blocks, micro_steps, depth):
    """`between_s`: of replicas' sums, in the last micro-step; `last_s`: after everything else."""
    order = list(range(blocks)) + list(reversed(range(blocks)))
    uses = order * micro_steps
    begins, ends = fills(uses, min(depth, blocks - 1))
    gather = gathered_s / max(1, sum(map(len, begins + ends)))
    share = free_s / (3 * blocks * micro_steps)
    link, now, reductions, asked = Link(), 0.0, 0, set()
    for use in range(len(uses)):
        link.run_until(now)
        for number in begins[use]:
            asked.add(number)
            link.ask("gather", number, gather)
        if use in asked:
            now = max(now, link.wait_for("gather", use))
        backward = use % (2 * blocks) >= blocks
        now += share * (2 if backward else 1)
        link.run_until(now)
        for number in ends[use]:
            asked.add(number)
            link.ask("gather", number, gather)
        if backward:
            last = use >= len(uses) - 2 * blocks
            link.ask("reduce", reductions, reduced_s / (blocks * micro_steps) + (between_s / blocks if last else 0))
            reductions += 1
    return max(now, link.wait_for("reduce", reductions - 1)) + last_s


def main():
    plan_path, metrics_path, rate, blocks, micro_steps = sys.argv[1:6]
    depth = int(sys.argv[6]) if len(sys.argv) > 6 else 1
    plan = json.load(open(plan_path))
    bytes_per_s = float(rate) / 8
    rows = [row for row in map(json.loads, open(metrics_path)) if "tokens_per_s" in row]
    tokens = rows[1]["tokens"] - rows[0]["tokens"]
    free_s = statistics.median(tokens / row["tokens_per_s"] for row in rows[2:])
    gathered = sent(plan, "parameters, all_gather", among="shard")
    reduced = sent(plan, "gradients", among="shard")
    between = sent(plan, "gradients", among="replicate")
    total = sent(plan)
    step_s = simulate(
        free_s,
        gathered / bytes_per_s,
        reduced / bytes_per_s,
        between / bytes_per_s,
        (total - gathered - reduced - between) / bytes_per_s,
        int(blocks),
        int(micro_steps),
        depth,
    )
    json.dump(
        {"seconds": step_s, "free_s": free_s, "link_s": total / bytes_per_s,
         "tokens_per_s": tokens / step_s, "planned_bytes": total},
        sys.stdout,
    )


if __name__ == "__main__":
    main()

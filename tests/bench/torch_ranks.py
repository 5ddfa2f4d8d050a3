"""PyTorch's ranks in a bench that takes turns: processes over gloo that take a step each time they are asked to.

Rank 0 is started by the bench, starts the others with the same arguments and passes turns on to them: "step" on
stdin, answered in JSON with what all ranks took together.
"""
import json
import os
import subprocess
import sys
import time

import torch


def status_bytes(key):
    """A line of /proc/self/status: VmHWM is the peak, VmRSS what is resident now."""
    for line in open("/proc/self/status"):
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0


class Ranks:
    def __init__(self, world):
        self.world, self.rank, self.others = world, int(os.environ.get("RANK", "0")), []
        if world == 1:
            return
        env = dict(os.environ, MASTER_ADDR="127.0.0.1", WORLD_SIZE=str(world))
        env.setdefault("MASTER_PORT", str(20000 + os.getpid() % 20000))
        os.environ.update(env, RANK=str(self.rank))
        if self.rank == 0:
            self.others = [subprocess.Popen([sys.executable, *sys.argv], env=dict(env, RANK=str(r)), text=True,
                                            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
                           for r in range(1, world)]
        torch.distributed.init_process_group("gloo")

    def sum(self, value):
        """Of all ranks' numbers."""
        total = torch.tensor(float(value))
        if self.world > 1:
            torch.distributed.all_reduce(total)
        return total.item()

    def serve(self, take_step, libraries, peak, forgets_first_peak=False):
        """take_step(number) gives what it has found, by name; libraries and peak() are bytes."""
        step = 0
        for line in sys.stdin:
            if line.strip() != "step":
                break
            for other in self.others:
                other.stdin.write(line)
                other.stdin.flush()
            begin, processor = time.perf_counter(), time.process_time()
            found = take_step(step)
            seconds = time.perf_counter() - begin
            own = [libraries, peak(), time.process_time() - processor]
            if self.world > 1:
                of_all = [None] * self.world
                torch.distributed.all_gather_object(of_all, own)
                own = [sum(values) for values in zip(*of_all)]
            if step == 0 and forgets_first_peak:
                # What compiling took isn't counted against the peak.
                open("/proc/self/clear_refs", "w").write("5")
            step += 1
            if self.rank == 0:
                print(json.dumps(found | {"seconds": seconds, "libraries": own[0], "peak": own[1],
                                          "processor_seconds": own[2]}), flush=True)
        for other in self.others:
            other.stdin.close()
            other.wait()
        if self.world > 1:
            torch.distributed.destroy_process_group()

"""A side of a bench that takes turns: a process that takes a step when told to."""
import json
import subprocess
import sys


class Side:
    def __init__(self, command, log, cwd=None):
        self.log = log
        self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=open(log, "w"), text=True, cwd=cwd)

    def step(self):
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"a side stopped; its words:\n{self.log.read_text()[-2000:]}")
        return json.loads(line)

    def end(self):
        self.process.stdin.close()
        self.process.wait()

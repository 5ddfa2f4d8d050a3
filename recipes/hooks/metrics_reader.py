"""New values of a run's metrics.jsonl, for the scripts in this folder.

`{output_dir}/NAME.json` holds the service's run id and the last step that was sent. So the run keeps
its id over resumes, and each step is sent once and in rising order. A step that occurs several times,
as after a resume from an older checkpoint, counts with its last values. Steps that were sent and are
trained again aren't sent again: services refuse falling steps.
"""

import json
import os

FIGURES = (
    "loss grad_norm lr tokens tokens_per_s exposed_comm_ms data_wait_ms comm_cpu_ms loss_scale balance_loss"
    " router_z_loss z_loss max_attention_logit clipped_heads val_loss val_loss_20_batches save_s"
    " goodput"
).split()


def is_figure(key):
    return key in FIGURES or key.startswith("val_loss/")


def read_steps(path):
    """{step: {figure: value}} of all whole lines; numbers only."""
    steps = {}
    ends = set()  # steps of programs' last lines, from which a later program may have gone back
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    entry = json.loads(line)
                except ValueError:  # torn: the run is writing it
                    continue
                if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
                    continue
                if "goodput" in entry:
                    ends.add(entry["step"])
                else:
                    for end in ends:
                        if end > entry["step"]:
                            steps.pop(end, None)
                    ends.clear()
                figures = steps.setdefault(entry["step"], {})
                for key, value in entry.items():
                    if is_figure(key) and isinstance(value, (int, float)):
                        figures[key] = value
    except FileNotFoundError:
        pass
    return steps


class Sync:
    """Use: sync = Sync("wandb"); run id in sync.run_id; `for step, figures in sync.new()`; sync.sent(step)."""

    def __init__(self, name):
        self.event = os.environ["SHERD_EVENT"]
        self.folder = os.environ["SHERD_OUTPUT_DIR"]
        self.run = os.environ["SHERD_RUN"]
        self.path = os.path.join(self.folder, name + ".json")
        state = {}
        try:
            with open(self.path, encoding="utf-8") as file:
                state = json.load(file)
        except (FileNotFoundError, ValueError):
            pass
        self.run_id = state.get("run_id")
        self.last_step = state.get("last_step", -1)

    def new(self):
        """Steps that weren't sent, in rising order.

        The newest step waits for the next event, since its evaluation may still come; at the run's
        end it is sent, too.
        """
        steps = sorted(read_steps(os.path.join(self.folder, "metrics.jsonl")).items())
        is_over = self.event in ("end", "failure")
        for number, (step, figures) in enumerate(steps):
            if step > self.last_step and figures and (is_over or number + 1 < len(steps)):
                yield step, figures

    def sent(self, step):
        self.last_step = max(self.last_step, step)

    def save(self):
        """Replaces the file as a whole."""
        text = json.dumps({"run_id": self.run_id, "last_step": self.last_step})
        with open(self.path + ".tmp", "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(self.path + ".tmp", self.path)

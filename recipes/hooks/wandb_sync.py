#!/usr/bin/env python3
"""Sends a run's metrics to Weights & Biases. Needs the package wandb, and WANDB_API_KEY or a login.

hooks:
  on_evaluation: python3 recipes/hooks/wandb_sync.py
  on_end: python3 recipes/hooks/wandb_sync.py
  on_failure: python3 recipes/hooks/wandb_sync.py

WANDB_PROJECT (default: sherd), WANDB_ENTITY and WANDB_MODE mean what they mean to wandb.
"""

import os

import wandb
from metrics_reader import Sync


def main():
    sync = Sync("wandb")
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "sherd"),
        name=sync.run,
        id=sync.run_id or None,
        resume="allow",
        dir=sync.folder,
    )
    sync.run_id = run.id
    sync.save()  # a failure from here on keeps the id
    for step, figures in sync.new():
        run.log(figures, step=step)
        sync.sent(step)
    run.finish(exit_code=1 if sync.event == "failure" else 0)
    sync.save()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Sends a run's metrics to MLflow. Needs the package mlflow; MLFLOW_TRACKING_URI names the server.

hooks:
  on_evaluation: python3 recipes/hooks/mlflow_sync.py
  on_end: python3 recipes/hooks/mlflow_sync.py
  on_failure: python3 recipes/hooks/mlflow_sync.py

MLFLOW_EXPERIMENT_NAME (default: sherd) is the experiment.
"""

import os
import time

import mlflow
from metrics_reader import Sync


def send(client, sync, batch):
    """Sends whole steps, and remembers the last."""
    if not batch:
        return
    client.log_batch(sync.run_id, metrics=list(batch))
    sync.sent(batch[-1].step)
    sync.save()
    batch.clear()


def main():
    sync = Sync("mlflow")
    mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "sherd"))
    name = None if sync.run_id else sync.run
    run = mlflow.start_run(run_id=sync.run_id or None, run_name=name)
    sync.run_id = run.info.run_id
    sync.save()  # a failure from here on keeps the id
    client, now = mlflow.MlflowClient(), int(time.time() * 1000)
    batch = []
    for step, figures in sync.new():
        if len(batch) + len(figures) > 1000:  # the most that a request may have
            send(client, sync, batch)
        batch += [mlflow.entities.Metric(key, value, now, step) for key, value in figures.items()]
    send(client, sync, batch)
    mlflow.end_run(status="FAILED" if sync.event == "failure" else "FINISHED")
    sync.save()


if __name__ == "__main__":
    main()

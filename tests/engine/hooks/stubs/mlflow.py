"""Stands in for the package mlflow: writes each call to the file $STUB_CALLS."""

import json
import os
from types import SimpleNamespace


def note(**call):
    with open(os.environ["STUB_CALLS"], "a", encoding="utf-8") as file:
        file.write(json.dumps(call) + "\n")


class Metric:
    def __init__(self, key, value, timestamp, step):
        self.key, self.value, self.timestamp, self.step = key, value, timestamp, step


entities = SimpleNamespace(Metric=Metric)


class MlflowClient:
    def log_batch(self, run_id, metrics):
        assert len(metrics) <= 1000
        for metric in metrics:
            note(call="log", run=run_id, step=metric.step, figures={metric.key: metric.value})


def set_experiment(name):
    note(call="experiment", name=name)


def start_run(run_id, run_name):
    note(call="init", id=run_id, name=run_name)
    return SimpleNamespace(info=SimpleNamespace(run_id=run_id or "new1"))


def end_run(status):
    note(call="finish", status=status)

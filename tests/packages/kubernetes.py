#!/usr/bin/env python3
"""Checks recipes/cluster/*.yaml against the schemas of Kubernetes. Run by hand:

    python3 -m venv build/k8s-venv && build/k8s-venv/bin/pip install kubernetes-validate==1.37.0
    build/k8s-venv/bin/python tests/packages/kubernetes.py

An MPIJob is the operator's own kind, which Kubernetes' schemas don't have: its pod templates are
checked as those of a Job. The rest of it isn't checked.
"""

import pathlib
import sys

import kubernetes_validate
import yaml

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "recipes" / "cluster"


def objects(document):
    if document["kind"] != "MPIJob":
        yield document["kind"], document
        return
    for role, replica in document["spec"]["mpiReplicaSpecs"].items():
        template = replica["template"]
        template["spec"]["restartPolicy"] = replica.get("restartPolicy", "Never")
        metadata = {"name": role.lower()}
        yield f"MPIJob's {role}", {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata,
                                   "spec": {"template": template}}


def main():
    failures = 0
    for path in sorted(FOLDER.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            for name, checked in objects(document):
                try:
                    version = kubernetes_validate.validate(checked, "1.33", strict=True)
                    print(f"{path.name}: {name} is valid (Kubernetes {version})")
                except kubernetes_validate.ValidationError as error:
                    failures += 1
                    print(f"{path.name}: {name}: {error.message}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()

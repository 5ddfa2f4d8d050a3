"""tasks.py [--check]: log-likelihoods of choices, by `transformers` in float64.

Writes tests/engine/inference/tasks.json: for two models of folders.py the lines of a file of questions, the
log-likelihood of every choice, and how many questions are right, by likelihood and by likelihood per byte. Each choice
is scored alone: context and choice in one row, without padding. Questions are a formula; no two choices are closer than
1e-3. The best choice is max()'s: the first of equal ones.

Needs `./dev deps oracle`.
"""
import json
import pathlib
import sys

import torch
import transformers

from folders import MODELS, fill

HERE = pathlib.Path(__file__).resolve().parent
VALUES = HERE.parents[1] / "engine" / "inference" / "tasks.json"
VOCABULARY, QUESTIONS = 56, 37


def tokens_of(seed, count):
    return [(31 * seed + 7 * t * t + 13 * t * seed + t) % VOCABULARY for t in range(count)]


def question_of(number):
    context = tokens_of(number, 2 + number * number % 11)
    choices = [tokens_of(5 * number + 11 * choice + 3, 1 + number % 5 + (choice + number) % 2)
               for choice in range(2 + number % 4)]
    sizes = [2 + (3 * len(choice) + number + index) % 9 for index, choice in enumerate(choices)]
    return {"context": context, "choices": choices, "bytes": sizes, "answer": number * 5 % len(choices)}


def score_of(model, context, choice):
    with torch.no_grad():
        logits = model(torch.tensor([context + choice])).logits[0]
    of_tokens = torch.log_softmax(logits, -1)
    return sum(of_tokens[len(context) - 1 + i, token].item() for i, token in enumerate(choice))


def case_of(name):
    config = MODELS[name]
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float32).eval()
    for parameter_name, parameter in model.named_parameters():
        fill(parameter_name, parameter)
    model.double()
    lines, scores, right, right_by_bytes = [{"sherd_task": 1, "vocab_size": VOCABULARY}], [], 0, 0
    for number in range(QUESTIONS):
        question = question_of(number)
        own = [score_of(model, question["context"], choice) for choice in question["choices"]]
        by_bytes = [score / size for score, size in zip(own, question["bytes"])]
        for values in (own, by_bytes):
            ordered = sorted(values)
            assert all(b - a > 1e-3 for a, b in zip(ordered, ordered[1:])), (number, values)
        right += own.index(max(own)) == question["answer"]
        right_by_bytes += by_bytes.index(max(by_bytes)) == question["answer"]
        lines.append(question)
        scores.append(own)
    return {"lines": [json.dumps(line) for line in lines], "scores": scores, "right": right,
            "right_by_bytes": right_by_bytes}


def main():
    cases = {name: case_of(name) for name in ("llama", "gpt2")}
    if sys.argv[1:] != ["--check"]:
        VALUES.write_text(json.dumps(cases, indent=1) + "\n")
        return
    committed = json.loads(VALUES.read_text())
    for name, case in cases.items():
        assert committed[name]["lines"] == case["lines"], name
        assert committed[name]["right"] == case["right"], name
        assert committed[name]["right_by_bytes"] == case["right_by_bytes"], name
        for ours, theirs in zip(committed[name]["scores"], case["scores"]):
            assert all(abs(a - b) < 1e-9 for a, b in zip(ours, theirs)), name


if __name__ == "__main__":
    main()

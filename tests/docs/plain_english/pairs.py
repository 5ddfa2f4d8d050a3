#!/usr/bin/env python3
"""Pairs of sentences, before and after, in an order that hides which is which.

  pairs.py > pairs.txt       for a judge: "1A ...", "1B ..."; answers are lines such as "1 A", "1 B",
                             "1 =", followed by "changed" where the meaning differs
  pairs.py answers.txt       counts: after preferred, equal, before preferred, changed in meaning

The order follows from the seed of the draw, so that answers can be counted later.
"""
import json
import pathlib
import random
import sys

HERE = pathlib.Path(__file__).parent


def main():
    before = json.loads((HERE / "before.json").read_text())
    after = {s["id"]: s["after"] for s in json.loads((HERE / "after.json").read_text())}
    chance = random.Random(before["seed"] + 1)
    pairs = [(s["before"], after[s["id"]]) for s in before["sentences"]]
    chance.shuffle(pairs)
    swapped = [chance.random() < 0.5 for _ in pairs]
    if len(sys.argv) < 2:
        for number, (pair, swap) in enumerate(zip(pairs, swapped), 1):
            first, second = reversed(pair) if swap else pair
            print(f"{number}A {first}\n{number}B {second}\n")
        return
    count = {"after": 0, "=": 0, "before": 0, "changed": 0}
    for line in pathlib.Path(sys.argv[1]).read_text().split("\n"):
        words = line.split()
        if not words:
            continue
        count["changed"] += "changed" in words[2:]
        if words[1] == "=":
            count["="] += 1
        else:
            is_after = (words[1] == "B") != swapped[int(words[0]) - 1]
            count["after" if is_after else "before"] += 1
    print(count)


if __name__ == "__main__":
    main()

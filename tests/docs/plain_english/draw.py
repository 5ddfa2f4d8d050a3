#!/usr/bin/env python3
"""Draws the sentences whose language is compared before and after (issue 38).

  draw.py [COMMIT] [SEED] > before.json

Reads the pages, the recipe's field descriptions, the changelog and the header comments of COMMIT
with git, splits them into sentences and draws a fixed number from each kind of text. The draw was
made before any sentence was rewritten. COMMIT and SEED default to what before.json was made with.
"""
import json
import random
import re
import subprocess
import sys

COMMIT, SEED = "e41c13d", 20261125
SHARES = {"page": 40, "field": 6, "changelog": 4, "header": 10}


def git(*words):
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout


def kind_of(path):
    if path == "docs/recipe.md":
        return "field"
    if path == "CHANGELOG.md":
        return "changelog"
    if path in ("README.md", "CONTRIBUTING.md") or re.fullmatch(r"docs/\w+\.md", path):
        return "page"
    if path.endswith(".h") and not path.startswith("tests/"):
        return "header"
    return None


def paragraphs(kind, text):
    """(line number, paragraph): lines that belong together, joined."""
    open_fence, begin, words = False, 0, []
    for number, line in enumerate(text.split("\n"), 1):
        if kind == "header":
            comment = re.match(r"\s*///?(?!/) ?(\S.*)", line)  # indented: equations and tables
            line = comment[1] if comment else ""
        elif kind == "field":
            cells = line.split(" | ")
            line = cells[-1].strip(" |") if line.startswith("| `") else ""
            if line:
                yield number, line
            continue
        if line.startswith("```"):
            open_fence, line = not open_fence, ""
        item = re.match(r"\s*(?:[-*]|\d+\.) +(.*)", line)
        if open_fence or not line.strip() or item or re.match(r"[#|]", line):
            if words:
                yield begin, " ".join(words)
            words, begin = ([item[1]], number) if item and not open_fence else ([], 0)
            continue
        begin = begin or number
        words.append(line.strip())
    if words:
        yield begin, " ".join(words)


def sentences(text):
    for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`*\[])", text):
        if 7 <= len(sentence.split()) <= 60 and re.search(r"[.:!?]$", sentence):
            yield sentence


def main():
    commit = sys.argv[1] if len(sys.argv) > 1 else COMMIT
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else SEED
    found = {kind: [] for kind in SHARES}
    for path in sorted(git("ls-tree", "-r", "--name-only", commit).split("\n")):
        kind = kind_of(path)
        if not kind:
            continue
        for line, paragraph in paragraphs(kind, git("show", f"{commit}:{path}")):
            for sentence in sentences(paragraph):
                found[kind].append({"kind": kind, "file": path, "line": line, "before": sentence})
    chance = random.Random(seed)
    drawn = []
    for kind, share in SHARES.items():
        drawn += sorted(chance.sample(found[kind], share), key=lambda s: (s["file"], s["line"]))
    for number, sentence in enumerate(drawn, 1):
        sentence["id"] = number
    print(json.dumps({"commit": commit, "seed": seed,
                      "drawn_from": {kind: len(all_) for kind, all_ in found.items()},
                      "sentences": drawn}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()

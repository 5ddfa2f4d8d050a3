"""Compares the spans of answers when beginnings of a conversation are rendered at once and one by one.

    build/oracle-venv/bin/python tests/reference/templates/compare_beginnings.py PROGRAM

PROGRAM is the compiled spans.cpp next to this file. Each template of TRL shows conversations of 4 and 16 answers:
spans must be the same; the number of renderings tells which templates are rendered at once.
"""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

import compare
import compare_spans


def conversation(answers, system, thinking):
    messages = [{"role": "system", "content": "Be brief."}] if system else []
    for i in range(answers):
        said = f"<think>\nw{i}\n</think>\n\na{i}" if thinking else f"a{i} x"
        messages += [{"role": "user", "content": f"q{i} <|im_end|>"}, {"role": "assistant", "content": said}]
    return messages


if __name__ == "__main__":
    found = pathlib.Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"
    program = subprocess.Popen(sys.argv[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    def ask(**question):
        print(json.dumps(question), file=program.stdin, flush=True)
        return json.loads(program.stdout.readline())
    differ = 0
    for path in sorted(found.glob("*.jinja")):
        seen = []
        if path.stem.endswith("_training"):
            continue
        with tempfile.TemporaryDirectory() as name:
            compare_spans.tokenizer(pathlib.Path(name), path.read_text())
            cases = [conversation(answers, system, thinking) for answers in (4, 16) for system in (False, True)
                     for thinking in (False, True)] + list(compare.MESSAGES.values())
            for messages in cases:
                answers = [ask(folder=name, messages=messages, one_by_one=alone) for alone in (True, False)]
                counts = [answer.pop("renderings", None) for answer in answers]
                seen.append(counts)
                if answers[0] != answers[1]:
                    differ += 1
                    print("DIFFERS", path.name, messages, answers)
        print(f"{path.name:40} renderings of 4 answers {seen[0]}, of 16 {seen[4]}, with a system text {seen[6]}, "
              f"thinking {seen[5]}")
    sys.exit(differ > 0)

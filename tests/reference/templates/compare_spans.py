"""Compares the spans of answers that Sherd finds in a template with those that TRL's training templates mark.

    build/oracle-venv/bin/python tests/reference/templates/compare_spans.py PROGRAM

PROGRAM is the compiled spans.cpp next to this file. For each NAME.jinja of TRL that has a NAME_training.jinja,
the same conversations are rendered in both: text and trained bytes must be the same.
"""

import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import compare

BEGIN, END = "\ue000", "\ue001"  # around what is generated
CONVERSATIONS = {name: compare.MESSAGES[name] for name in ("answered", "system", "turns", "thinking")}


class Marked(compare.Generation):
    def _body(self, caller):
        return BEGIN + caller() + END


def tokenizer(folder, source):
    """A byte-level tokenizer whose special tokens are those that the template spells."""
    low = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    letters = {byte: chr(byte) for byte in low}
    letters |= {byte: chr(256 + i) for i, byte in enumerate(b for b in range(256) if b not in letters)}
    special = sorted(set(re.findall(r"<[|\uff5c][^<>{}'\" ]+?[|\uff5c]>|<end_of_turn>|<start_of_turn>|</s>|\[e~\[", source)) |
                     {"<s>", "</s>", "<|im_end|>"})
    added = [{"id": 256 + i, "content": token, "special": True, "normalized": False} for i, token in enumerate(special)]
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}, "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "dropout": None, "vocab": {letters[b]: b for b in range(256)}, "merges": []}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    (folder / "chat_template.jinja").write_text(source)


def expected(env, source, messages):
    marked = env.from_string(source).render(messages=messages, tools=None, documents=None, add_generation_prompt=False,
                                            bos_token="<s>", eos_token="</s>").encode()
    text, spans, begin = b"", [], 0
    for part in re.split(f"({BEGIN}|{END})".encode(), marked):
        if part == BEGIN.encode():
            begin = len(text)
        elif part == END.encode():
            if spans and spans[-1][1] == begin:  # two that touch are one
                begin = spans.pop()[0]
            spans.append([begin, len(text)])
        else:
            text += part
    return text.decode(), [span for span in spans if span[0] < span[1]]


def main():
    env = compare.environment()
    env.extensions.clear()
    env = env.overlay(extensions=[Marked, compare.jinja2.ext.loopcontrols])
    ours = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    folder = pathlib.Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"
    names = sorted(p.name[:-len("_training.jinja")] for p in folder.glob("*_training.jinja"))
    good = 0
    for name in names:
        plain = (folder / f"{name}.jinja").read_text()
        training = (folder / f"{name}_training.jinja").read_text()
        verdicts = []
        with tempfile.TemporaryDirectory() as temporary:
            tokenizer(pathlib.Path(temporary), plain)
            for case, messages in CONVERSATIONS.items():
                ours.stdin.write(json.dumps({"folder": temporary, "messages": messages}) + "\n")
                ours.stdin.flush()
                found = json.loads(ours.stdout.readline())
                try:
                    text, spans = expected(env, training, messages)
                except Exception as error:
                    verdicts.append((case, "both refuse" if "error" in found else f"only TRL's refuses: {error}"))
                    continue
                if "error" in found:
                    verdicts.append((case, "error " + found["error"]))
                elif found["rewritten"]:
                    verdicts.append((case, "rewritten"))
                elif found["text"] != text:
                    verdicts.append((case, "another text"))
                elif found["spans"] != spans:
                    raw = text.encode()
                    show = lambda s: [raw[a:b].decode(errors="replace") for a, b in s]
                    verdicts.append((case, f"DIFFERS: {show(found['spans'])} instead of {show(spans)}"))
                else:
                    verdicts.append((case, "equal"))
        equal = sum(v == "equal" or v == "both refuse" for _, v in verdicts)
        good += equal == len(verdicts)
        print(f"{name}: {equal} of {len(verdicts)} equal")
        for case, verdict in verdicts:
            if verdict not in ("equal", "both refuse"):
                print("    ", case, verdict[:300])
    print(f"{good} of {len(names)} templates are equal in every conversation")


if __name__ == "__main__":
    main()

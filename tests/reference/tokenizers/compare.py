#!/usr/bin/env python3
"""Compares Sherd's tokenizer with Hugging Face's over folders of vocabularies.

    compare.py PROBE FOLDERS [--texts FILE ...] [--fuzz 60000] [--only NAME ...]

PROBE is build/cpu/tests/tokenizer_probe, FOLDERS what folders.py made. Half of the fuzz strings are encoded with special
tokens as tokens, half as text; texts line by line and whole. Per vocabulary: differences in ids, in decoded text, in
published ids, and round trips that don't return. Ends with 1 if there is a difference.
"""
import argparse
import json
import pathlib
import struct
import subprocess
import sys

import tokenizers

from fuzz_texts import fuzz_texts

FAILED = 0xFFFFFFFF


def pack_texts(texts):
    data = [text.encode() for text in texts]
    return b"".join(struct.pack("<I", len(one)) + one for one in data)


def unpack(data, size):
    items, place = [], 0
    while place < len(data):
        (count,) = struct.unpack_from("<I", data, place)
        place += 4
        if count == FAILED:
            items.append(None)
            continue
        items.append(data[place:place + size * count])
        place += size * count
    return items


def ask(probe, folder, arguments, data):
    result = subprocess.run([probe, folder, *arguments], input=data, capture_output=True)
    return result.returncode, result.stdout, result.stderr.decode().strip()


def encode(probe, folder, policy, texts):
    code, out, error = ask(probe, folder, ["encode", policy], pack_texts(texts))
    if code != 0:
        raise RuntimeError(error)
    return [None if one is None else list(struct.unpack(f"<{len(one) // 4}i", one)) for one in unpack(out, 4)]


def before_differs(probe, folder, oracle):
    """Whether the tokens before a document are others than the library's."""
    document = oracle.encode("document", add_special_tokens=False).ids
    whole = oracle.encode("document").ids
    theirs = whole[:next(i for i in range(len(whole)) if whole[i:i + len(document)] == document)]
    _, out, _ = ask(probe, folder, ["before"], b"")
    ours = list(struct.unpack(f"<{len(theirs)}i", out[4:])) if len(out) == 4 + 4 * len(theirs) else None
    if ours != theirs:
        print(f"    before a document: ours {ours}, theirs {theirs}")
    return ours != theirs


def first_difference(label, texts, ours, theirs):
    for text, mine, expected in zip(texts, ours, theirs):
        if mine != expected:
            print(f"    {label}: {text[:200]!r}\n      ours   {str(mine)[:300]}\n      theirs {str(expected)[:300]}")
            return


def compare(probe, folder, texts, num_fuzz):
    file = json.loads((folder / "tokenizer.json").read_text())
    kind = file["model"].get("type", "BPE")
    if kind != "BPE":
        code, _, error = ask(probe, folder, ["encode", "text"], b"")
        refused = code == 3 and kind in error
        print(f"{folder.name:28} {kind}: {'refused by name' if refused else 'NOT REFUSED: ' + error}", flush=True)
        return 0 if refused else 1
    oracle = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    oracle.no_truncation()
    specials = [token["content"] for token in file["added_tokens"]]
    fuzz = fuzz_texts(num_fuzz, folder.name, specials[:50] + specials[-50:])
    half = num_fuzz // 2
    num_bad, num_ids, num_bytes, lost = {"ids": 0, "text": 0, "published": 0}, 0, 0, 0
    for policy, batch in (("text", fuzz[:half] + texts), ("tokens", fuzz[half:])):
        oracle.encode_special_tokens = policy == "text"
        theirs = [e.ids for e in oracle.encode_batch_fast(batch, add_special_tokens=False)]
        ours = encode(probe, folder, policy, batch)
        num_ids += sum(map(len, theirs))
        num_bytes += sum(len(text.encode()) for text in batch)
        bad = sum(mine != expected for mine, expected in zip(ours, theirs)) + abs(len(ours) - len(theirs))
        num_bad["ids"] += bad
        if bad:
            first_difference(policy, batch, ours, theirs)
        shown = oracle.decode_batch(theirs, skip_special_tokens=False)
        _, out, _ = ask(probe, folder, ["decode"],
                        b"".join(struct.pack(f"<I{len(ids)}i", len(ids), *ids) for ids in theirs))
        decoded = [one.decode() for one in unpack(out, 1)]
        bad = sum(mine != expected for mine, expected in zip(decoded, shown)) + abs(len(decoded) - len(shown))
        num_bad["text"] += bad
        if bad:
            first_difference("decode", [str(ids) for ids in theirs], decoded, shown)
        if policy == "text":
            lost = sum(text != back for text, back in zip(batch, decoded))
    published = folder / "ids.json"
    if published.exists():
        pairs = json.loads(published.read_text())
        ours = encode(probe, folder, "tokens", [text for text, _ in pairs])
        theirs = [ids for _, ids in pairs]
        num_bad["published"] = sum(mine != expected for mine, expected in zip(ours, theirs))
        if num_bad["published"]:
            library = [oracle.encode(text, add_special_tokens=False).ids for text, _ in pairs]
            print("    Hugging Face's library differs from the list in", sum(a != b for a, b in zip(library, theirs)))
            first_difference("published", [text for text, _ in pairs], ours, theirs)
    pairs = f", published {num_bad['published']} of {len(pairs)}" if published.exists() else ""
    print(f"{folder.name:28} {num_ids:>10,} ids of {num_bytes / 1e6:.1f} MB: differ in ids {num_bad['ids']}, in text "
          f"{num_bad['text']}{pairs}; decode(encode(x)) != x: {lost}", flush=True)
    # A list that the library itself doesn't follow is no difference to the library.
    return num_bad["ids"] + num_bad["text"] + before_differs(probe, folder, oracle)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("probe")
    parser.add_argument("folders", type=pathlib.Path)
    parser.add_argument("--texts", nargs="*", type=pathlib.Path, default=[])
    parser.add_argument("--fuzz", type=int, default=60000)
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    texts = []
    for path in options.texts:
        text = path.read_text(encoding="utf-8")
        texts += [text] + text.splitlines(keepends=True)
    num_bad = 0
    for folder in sorted(options.folders.iterdir()):
        if options.only and folder.name not in options.only:
            continue
        num_bad += compare(options.probe, folder, texts, options.fuzz)
    sys.exit(1 if num_bad else 0)


main()

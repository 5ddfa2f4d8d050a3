#!/usr/bin/env python3
"""Times Sherd, Hugging Face's tokenizers and tiktoken on the same texts, in processor seconds of one thread.

    speed.py PROBE FOLDERS TEXT ...      FOLDERS: what folders.py made; texts are encoded in pieces of 4,000 characters
"""
import json
import os
import pathlib
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tiktoken  # noqa: E402
import tokenizers  # noqa: E402


REPEATS = 3


def pack_texts(texts):
    data = [text.encode() for text in texts]
    return b"".join(len(one).to_bytes(4, "little") + one for one in data)


def best(call):
    times = []
    for _ in range(REPEATS):
        begin = time.process_time()
        call()
        times.append(time.process_time() - begin)
    return min(times)


def tiktoken_of(folder):
    """From the byte-level vocabulary: its ids are ranks there."""
    file = json.loads((folder / "tokenizer.json").read_text())
    printing = list(range(33, 127)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    others = [byte for byte in range(256) if byte not in printing]
    byte_of = {chr(byte): byte for byte in printing} | {chr(256 + i): byte for i, byte in enumerate(others)}
    ranks = {bytes(byte_of[c] for c in token): rank for token, rank in file["model"]["vocab"].items()
             if all(c in byte_of for c in token)}
    parts = file["pre_tokenizer"].get("pretokenizers", [])
    pattern = next((part["pattern"]["Regex"] for part in parts if part["type"] == "Split"),
                   r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    return tiktoken.Encoding(folder.name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


def main():
    probe, folders = sys.argv[1], pathlib.Path(sys.argv[2])
    for name in ("whisper-gpt2", "qwen", "gguf-llama-bpe", "o200k", "mistral-tokenizer-v1"):
        folder = folders / name
        library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        other = tiktoken_of(folder) if not name.startswith(("mistral", "gguf")) else None
        for path in sys.argv[3:]:
            text = pathlib.Path(path).read_text()
            # Paragraphs: about what a document is.
            texts = [text[i:i + 4000] for i in range(0, len(text), 4000)]
            size = sum(len(one.encode()) for one in texts) / 1e6
            theirs = best(lambda: library.encode_batch_fast(texts, add_special_tokens=False))
            ours = float(subprocess.run([probe, folder, "time"], input=pack_texts(texts), capture_output=True).stdout)
            line = f"{name:22} {pathlib.Path(path).stem:18} Sherd {size / ours:6.1f} MB/s, {theirs / ours:5.1f} x HF"
            if other:
                line += f", {best(lambda: [other.encode_ordinary(one) for one in texts]) / ours:5.1f} x tiktoken"
            print(line, flush=True)


main()

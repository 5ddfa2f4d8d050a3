#!/usr/bin/env python3
"""Times Sherd, Hugging Face's tokenizers and tiktoken on the same texts, turn by turn, on one core.

    speed.py PROBE FOLDER [NAMES ...] [--turns 5]      FOLDER: what prepare.py made; NAMES: vocabularies

Texts are encoded in pieces of 4,000 characters, about what a document is. Times are processor seconds; a ratio is the
median of the turns' ratios. Sherd begins each turn with nothing cached; Hugging Face's library keeps its cache of words.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tiktoken  # noqa: E402
import tokenizers  # noqa: E402

NAMES = ("whisper-gpt2", "cl100k", "o200k", "qwen", "gguf-llama-bpe", "smollm2", "deepseek-v3", "mistral-tokenizer-v1",
         "gguf-gemma-4")
# tiktoken knows one pattern, no normal form and no byte fallback; of these, its own three and what is like them.
TIKTOKEN = ("whisper-gpt2", "cl100k", "o200k", "qwen")


def pack_texts(texts):
    data = [text.encode() for text in texts]
    return b"".join(len(one).to_bytes(4, "little") + one for one in data)


def seconds(call):
    begin = time.process_time()
    call()
    return time.process_time() - begin


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
    parser = argparse.ArgumentParser()
    parser.add_argument("probe")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print("| vocabulary | text | Sherd, MB/s | Hugging Face, MB/s | ratio | tiktoken, MB/s | ratio |\n|---|---|---|---|---|---|---|")
    for name in options.names or NAMES:
        folder = options.folder / "folders" / name
        library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        other = tiktoken_of(folder) if name in TIKTOKEN else None
        for path in sorted((options.folder / "texts").iterdir()):
            text = path.read_text(encoding="utf-8")
            texts = [text[i:i + 4000] for i in range(0, len(text), 4000)]
            packed = pack_texts(texts)
            size = len(text.encode()) / 1e6
            times = {"ours": [], "library": [], "tiktoken": []}
            for _ in range(options.turns):
                said = subprocess.run([options.probe, folder, "time"], input=packed, capture_output=True, check=True)
                times["ours"].append(float(said.stdout))
                times["library"].append(seconds(lambda: library.encode_batch_fast(texts, add_special_tokens=False)))
                if other:
                    times["tiktoken"].append(seconds(lambda: [other.encode_ordinary(one) for one in texts]))
            rate = lambda which: f"{size / statistics.median(times[which]):.1f}" if times[which] else ""
            ratio = lambda which: (f"{statistics.median(a / b for a, b in zip(times[which], times['ours'])):.1f}"
                                   if times[which] else "")
            print(f"| {name} | {path.stem} | {rate('ours')} | {rate('library')} | {ratio('library')} | {rate('tiktoken')} "
                  f"| {ratio('tiktoken')} |", flush=True)


if __name__ == "__main__":
    main()

"""The text that the benchmarks of this folder continue, and how sherd continues it."""
import re
import subprocess

TEXT = ("It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of "
        "foolishness, it was the epoch of belief, it was the epoch of incredulity, ") * 8


def generate(program, folder, text, tokens, dtype):
    """Seconds of the prompt, and tokens per second after it."""
    said = subprocess.run([program, "sample", folder, "--prompt", text, "--temperature", "0", "--tokens", str(tokens),
                           "--ignore-end", "--speed", "--set", f"mixed_precision.param_dtype={dtype}"],
                          check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True).stderr
    first, number, others = re.search(r"prompt in ([\d.]+) s; then (\d+) in ([\d.]+) s", said).groups()
    return float(first), int(number) / float(others)

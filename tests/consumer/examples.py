"""The examples in docs/library.md as programs: all blocks of one language, in order, are one program."""
import pathlib
import re

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/library.md"
MAIN = """#include <sherd/sherd.h>

#include <cstdio>

int main() {
%s}
"""
RECIPE = """run: {name: library, device: cpu, num_threads: 1}
model: {num_layers: 1, hidden_size: 16, num_attention_heads: 2, vocab_size: 128, max_seq_length: 8,
        positions: rope, norm: rmsnorm, activation: swiglu, bias: false}
data: {path: text.txt, format: bytes, validation_fraction: 0.2}
training: {seq_length: 8, global_batch_size: 4, max_steps: 4, eval_interval: 2, eval_batches: 2}
checkpoint: {interval: 2}
"""


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def cpp_program():
    return MAIN % "\n".join(blocks("cpp"))


def python_program():
    return "\n".join(blocks("python"))


def prepare(folder):
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 20)

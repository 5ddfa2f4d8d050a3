"""compare.py FOLDER [OTHER] [--text FILE] [--tokens N]: loads folders with `transformers` (f32) and prints the loss
over the first N tokens (384) of a text (this script), and, of two folders, the largest difference of their logits.

Needs `./dev deps oracle`.
"""
import argparse
import pathlib

import torch
import transformers
from tokenizers import Tokenizer


def logits_of(folder, tokens):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    print(f"{folder}: {type(model).__name__}, {sum(p.numel() for p in model.parameters()):,} parameters")
    with torch.no_grad():
        logits = model(tokens).logits[0].double()
    loss = torch.nn.functional.cross_entropy(logits[:-1], tokens[0, 1:])
    print(f"  loss over {tokens.shape[1]} tokens: {loss:.6f}")
    return logits


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--text", default=__file__)
    parser.add_argument("--tokens", type=int, default=384)
    arguments = parser.parse_args()
    tokenizer = pathlib.Path(arguments.folders[0], "tokenizer.json")
    text = pathlib.Path(arguments.text).read_text()
    ids = Tokenizer.from_file(str(tokenizer)).encode(text).ids if tokenizer.exists() else list(text.encode())
    tokens = torch.tensor([ids[:arguments.tokens]])
    logits = [logits_of(folder, tokens) for folder in arguments.folders]
    for other in logits[1:]:
        print(f"largest difference of logits: {(other - logits[0]).abs().max():.3e} "
              f"(largest logit {logits[0].abs().max():.3f})")


main()

"""logits.py TOKENS FOLDER...: the version of `transformers` that runs this, and what it computes in f32 for the row
TOKENS (a list of ids) with the model of each folder: JSON, {"version": ..., "logits": [[[...]]]}.

A script of its own because exports.py asks two versions of `transformers`; both know what stands here.
"""
import json
import sys

import torch
import transformers


def logits_of(folder, tokens):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].double()


def main():
    tokens = json.loads(sys.argv[1])
    logits = [logits_of(folder, tokens).tolist() for folder in sys.argv[2:]]
    print(json.dumps({"version": transformers.__version__, "logits": logits}))


if __name__ == "__main__":
    main()

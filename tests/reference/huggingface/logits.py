"""logits.py TOKENS FOLDER...: the version of `transformers` that runs this, and what it computes in f32 for the row
TOKENS (a list of ids) with the model of each folder: JSON, {"version": ..., "logits": [[[...]]]}. It also saves each
model in FOLDER/again.

A script of its own because exports.py asks two versions of `transformers`; both can run what is here.
"""
import json
import sys

import torch
import transformers


def load(folder):
    """With the plain attention: the others of transformers 4 leave soft caps out."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32,
                                                             attn_implementation="eager").eval()


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].double()


def main():
    tokens, logits = json.loads(sys.argv[1]), []
    for folder in sys.argv[2:]:
        model = load(folder)
        logits.append(logits_of(model, tokens).tolist())
        model.save_pretrained(folder + "/again")
    print(json.dumps({"version": transformers.__version__, "logits": logits}))


if __name__ == "__main__":
    main()

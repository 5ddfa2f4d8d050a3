"""greedy.py PROGRAM FOLDER: the likeliest continuations of 20 prompts, 64 tokens each, by sherd and by transformers.

In f32, with a cache on both sides; a text ends at the model's end token. All must be equal. Needs `./dev deps oracle`:
run it with build/oracle-venv/bin/python. FOLDER: what smollm2.py makes, or any other model's.
"""
import json
import subprocess
import sys

import torch
import transformers

PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):\n",
    "The three laws of thermodynamics are",
    "1, 1, 2, 3, 5, 8,",
    "Water boils at",
    "Dear Sir or Madam,\n",
    "SELECT name FROM users WHERE",
    "In the year 1969",
    "The opposite of hot is",
    "#include <stdio.h>\n",
    "Die Hauptstadt von Deutschland ist",
    "A recipe for bread:\n\n1.",
    "Q: What is the largest planet?\nA:",
    "The mitochondria is",
    "To be, or not to be,",
    "x = [1, 2, 3]\nprint(",
    "My favourite colour is",
    "naïve café — ",
    "<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n",
]
TOKENS = 64


def main():
    program, folder = sys.argv[1:]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    questions = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS)
    out = subprocess.run([program, "sample", folder, "--prompts", "-", "--temperature", "0", "--tokens", str(TOKENS)],
                         input=questions, stdout=subprocess.PIPE, text=True, check=True).stdout
    ours = [json.loads(line) for line in out.splitlines()]
    assert [answer["prompt"] for answer in ours] == PROMPTS
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    different = 0
    for prompt, answer in zip(PROMPTS, ours):
        ids = tokenizer(prompt, return_tensors="pt")
        with torch.no_grad():
            all_ids = model.generate(**ids, max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)[0]
        new = all_ids[ids["input_ids"].shape[1]:].tolist()
        if new and new[-1] in ends:
            new.pop()
        theirs = tokenizer.decode(new)
        if answer["text"] != theirs:
            different += 1
            print(f"{prompt!r}\n  sherd        {answer['text']!r}\n  transformers {theirs!r}")
    print(f"{len(PROMPTS) - different} of {len(PROMPTS)} equal")
    sys.exit(different > 0)


if __name__ == "__main__":
    main()

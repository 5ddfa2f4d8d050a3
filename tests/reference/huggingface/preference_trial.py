"""preference_trial.py PROGRAM PLACE: SmolLM2-135M-Instruct learns a simple preference from 200 pairs by DPO.

PROGRAM is sherd, PLACE a folder with 7 GB of room. Prints how often the chosen answer of 100 held-out pairs
(made_up_pairs.py: other questions, sentences and words) is likelier than the rejected one, by transformers: before, after
training, and after training on the same pairs with half of the labels swapped. About ten minutes on two cores.
"""
import json
import pathlib
import subprocess
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = pathlib.Path(__file__).resolve().parent


def recipe(place, name):
    return f"""run: {{name: {name}, output_dir: {place}/{name}}}
model: {{from: {place}/model}}
data: {{path: {place}/{name}.jsonl, format: chat, validation_path: {place}/held_out.jsonl}}
training: {{seq_length: 256, global_batch_size: 4, micro_batch_size: 4, max_steps: 30, eval_interval: 30, sample_tokens: 0}}
optimizer: {{lr: 1e-4}}
lr_scheduler: {{type: cosine, warmup_steps: 3}}
checkpoint: {{init_from: {place}/model, interval: 30}}
preference: {{loss: sigmoid, beta: 0.1}}
"""


def log_probability(model, tokenizer, prompt, answer):
    begin = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template(prompt + answer, tokenize=False)
    begin, whole = (tokenizer(text, add_special_tokens=False).input_ids for text in (begin, whole))
    assert whole[:len(begin)] == begin
    with torch.no_grad():
        logs = torch.log_softmax(model(torch.tensor([whole])).logits[0].double(), -1)
    return sum(logs[i - 1, whole[i]].item() for i in range(len(begin), len(whole)))


def preferred(folder, rows):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return sum(log_probability(model, tokenizer, row["prompt"], row["chosen"]) >
               log_probability(model, tokenizer, row["prompt"], row["rejected"]) for row in rows) / len(rows)


def main():
    program, place = sys.argv[1], pathlib.Path(sys.argv[2])
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, HERE / "smollm2.py", place / "model"], check=True)
    subprocess.run([sys.executable, HERE / "made_up_pairs.py", place], check=True)
    rows = [json.loads(line) for line in (place / "held_out.jsonl").open()]
    print("before:", preferred(place / "model", rows), flush=True)
    for name in ["pairs", "shuffled"]:
        (place / f"{name}.yaml").write_text(recipe(place, name))
        subprocess.run([program, "train", place / f"{name}.yaml"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([program, "export", place / name, "--to-hf", place / f"{name}_hf"], check=True)
        print(f"after {name}:", preferred(place / f"{name}_hf", rows), flush=True)


if __name__ == "__main__":
    main()

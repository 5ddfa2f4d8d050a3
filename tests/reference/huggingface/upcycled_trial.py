"""upcycled_trial.py PROGRAM PLACE TEXT TEXT: SmolLM2-135M as a mixture of experts learns from texts in two languages.

PROGRAM is sherd, PLACE a folder with 8 GB of room, the texts two files of at least 400 KB each. Prints

  - the loss of the dense model and of both forms of upcycle.py on the texts, which must agree but for rounding;
  - after 200 steps of 1,024 tokens, half of them of each text: the losses, and by transformers the share of choices
    that each expert has in each language, before and after, for the first, middle and last layer.

About fifteen minutes on two cores. Needs `./dev deps oracle`.
"""
import json
import pathlib
import subprocess
import sys

import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
EXPERTS, PER_TOKEN = 8, 4
MOST_TEXT = 400_000  # characters

RECIPE = """
model: {{from: {place}/copies}}
run: {{name: upcycled, output_dir: {place}/run}}
data: {{sources: [{{path: {texts[0]}, weight: 1}}, {{path: {texts[1]}, weight: 1}}], validation_fraction: 0.1}}
training: {{seq_length: 256, global_batch_size: 4, micro_batch_size: 4, max_steps: 200, sample_tokens: 0}}
moe: {{balance_loss: 0.001}}
optimizer: {{lr: 1e-4}}
lr_scheduler: {{type: cosine, warmup_steps: 20}}
checkpoint: {{init_from: {place}/copies, interval: 200}}
mixed_precision: {{param_dtype: bf16}}
"""


def call(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def loss(program, model, text):
    return json.loads(call(program, "eval", model, "--json", "--set", f"data.path={text}", "--set",
                           "data.validation_fraction=0.1", "--set", "training.seq_length=256"))["val_loss"]


def shares(folder, text):
    """Of each layer: the share of choices that each expert has among 4,096 tokens of the text's end."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = tokenizer(text.read_text()[-40_000:], return_tensors="pt").input_ids[0][:4096].view(16, 256)
    with torch.no_grad():
        logits = model(ids, output_router_logits=True).router_logits
    counts = [torch.bincount(layer.topk(PER_TOKEN).indices.flatten(), minlength=EXPERTS) for layer in logits]
    return [(count / count.sum()).tolist() for count in counts]


def main():
    program, place = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    place.mkdir(parents=True, exist_ok=True)
    texts = []
    for path in map(pathlib.Path, sys.argv[3:5]):
        texts.append(place / path.name)
        texts[-1].write_text(path.read_text()[:MOST_TEXT])
    call(sys.executable, HERE / "smollm2.py", place / "dense")
    for form in ("slices", "copies"):
        call(sys.executable, HERE / "upcycle.py", place / "dense", place / form, form)
    for form in ("dense", "slices", "copies"):
        print(f"{form}:", *(f"loss {loss(program, place / form, text):.6f} on {text.name}" for text in texts), flush=True)
    (place / "recipe.yaml").write_text(RECIPE.format(place=place, texts=texts))
    call(program, "train", place / "recipe.yaml")
    call(program, "export", place / "run", "--to-hf", place / "trained")
    print("trained:", *(f"loss {loss(program, place / 'trained', text):.4f} on {text.name}" for text in texts), flush=True)
    for folder in ("copies", "trained"):
        for text in texts:
            layers = shares(place / folder, text)
            for number in (0, len(layers) // 2, len(layers) - 1):
                print(f"{folder}, {text.name}, layer {number}:", *(f"{share:.3f}" for share in layers[number]), flush=True)


main()

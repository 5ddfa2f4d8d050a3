"""experts_or_dense.py PROGRAM TEXT [SEEDS]: a mixture of experts and a dense model of equal active width, from scratch.

Both have 4 layers of width 128 and read bytes. The dense model has a feed-forward width of 512; the mixture has 8
experts of width 256, 2 for each token, so a token goes through as many weights. 1,000 steps of 2,048 tokens each, the
same tokens for both. Prints the validation losses of each seed. About two minutes for each run.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

RECIPE = """
model: {num_layers: 4, hidden_size: 128, num_attention_heads: 4, vocab_size: 256, ffn_hidden_size: %d,
        norm: rmsnorm, positions: rope, activation: swiglu, bias: false, tie_embeddings: false}
%s
data: {path: %s, format: bytes, validation_fraction: 0.05}
training: {seq_length: 128, global_batch_size: 16, max_steps: 1000, final_eval: whole}
optimizer: {type: adamw, lr: 2e-3, weight_decay: 0.1}
lr_scheduler: {type: cosine, warmup_steps: 50, min_lr_ratio: 0.1}
gradient_clipping: {max_norm: 1.0}
"""
FORMS = {"dense": (512, ""),
         "mixture": (256, "moe: {num_experts: 8, experts_per_token: 2, ffn_hidden_size: 256, balance_loss: 0.01}")}


def run(program, folder, form, text, seed):
    width, moe = FORMS[form]
    recipe, out = folder / f"{form}.yaml", folder / f"{form}_{seed}"
    recipe.write_text(RECIPE % (width, moe, text))
    subprocess.run([program, "train", recipe, "--set", f"run.seed={seed}", "--set", f"run.output_dir={out}"], check=True,
                   capture_output=True, cwd=folder)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return next(line["val_loss"] for line in reversed(lines) if "val_loss" in line)


def main():
    program, text = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    seeds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    with tempfile.TemporaryDirectory() as name:
        for seed in range(1, seeds + 1):
            losses = {form: run(program, pathlib.Path(name), form, text, seed) for form in FORMS}
            print(f"seed {seed}: validation loss {losses['dense']:.4f} dense, {losses['mixture']:.4f} of the mixture",
                  flush=True)


main()

"""experts_peer.py PROGRAM [ROUNDS]: training steps of a small mixture of experts, Sherd and transformers turn by turn.

A model with the ratios of Qwen3-MoE: 4 layers, 32 experts, 4 for each token, D 512, F 192, 8 sequences of 256 tokens,
AdamW, all cores. transformers computes its grouped_mm form, eager and under torch.compile; the faster one counts.
Prints tokens per second and the median of the ratios. Needs `./dev deps oracle`.
"""
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import transformers

from experts_recipe import D, E, F, HEADS, K, LAYERS, LENGTH, SEQUENCES, V, recipe_in

STEPS = 6


def ours(program, folder, dtype, threads):
    out = folder / "run"
    subprocess.run([program, "train", folder / "recipe.yaml", "--set", f"run.output_dir={out}", "--set",
                    f"mixed_precision.param_dtype={dtype}", "--set", f"run.num_threads={threads}", "--set",
                    "checkpoint.resume=never"], check=True, capture_output=True, cwd=folder)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rates = [line["tokens_per_s"] for line in lines if "tokens_per_s" in line]
    subprocess.run(["rm", "-r", out], check=True)
    return statistics.median(rates[2:])


class Theirs:
    def __init__(self, dtype, compiled):
        config = transformers.Qwen3MoeConfig(
            vocab_size=V, hidden_size=D, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=HEADS,
            head_dim=D // HEADS, moe_intermediate_size=F, num_experts=E, num_experts_per_tok=K, norm_topk_prob=True,
            intermediate_size=D, output_router_logits=True, router_aux_loss_coef=0.001, mlp_only_layers=[])
        self.model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype,
                                                                   experts_implementation="grouped_mm")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.call = torch.compile(self.model) if compiled else self.model
        self.tokens = torch.randint(0, V, (SEQUENCES, LENGTH))

    def rate(self):
        seconds = []
        for _ in range(STEPS):
            begin = time.perf_counter()
            loss = self.call(input_ids=self.tokens, labels=self.tokens).loss
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            seconds.append(time.perf_counter() - begin)
        return SEQUENCES * LENGTH / statistics.median(seconds[2:])


def main():
    program, rounds = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        recipe_in(folder, STEPS)
        for dtype, theirs in (("f32", torch.float32), ("bf16", torch.bfloat16)):
            peers = {"eager": Theirs(theirs, False)}
            try:
                compiled = Theirs(theirs, True)
                compiled.rate()
                peers["compiled"] = compiled
            except Exception as error:  # a form that doesn't compile isn't compared
                print(f"{dtype}: torch.compile failed: {str(error).splitlines()[0][:100]}")
            ratios, rates = [], []
            for _ in range(rounds):
                own = ours(program, folder, dtype, threads)
                best = max(peer.rate() for peer in peers.values())
                ratios.append(own / best)
                rates.append((own, best))
            print(f"{dtype}, {threads} threads: Sherd {statistics.median(r[0] for r in rates):.0f} tokens/s, transformers "
                  f"{statistics.median(r[1] for r in rates):.0f} (of {', '.join(peers)}), ratio "
                  f"{statistics.median(ratios):.2f}", flush=True)


main()

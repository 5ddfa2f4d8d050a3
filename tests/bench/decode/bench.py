"""bench.py PROGRAM FOLDER [--dtype f32|bf16] [--tokens N] [--rounds N] [--compile]: how fast text is generated.

A Hugging Face folder's model continues one text (batch 1, the likeliest tokens), by sherd and by transformers with its
dynamic cache, turn by turn; with --compile also by its static cache, whose step of one token torch.compile has compiled
before (in f32 and bf16 some minutes; how long is printed). Printed are medians over the rounds, and medians of the
ratios within a round: tokens per second after the first token, and seconds until the first one. The share of the read rate is the bytes that a token reads, weights with or without the keys and values of earlier
positions, times tokens per second, over what torch reads with as many threads.
Needs `./dev deps oracle`.
"""
import argparse
import os
import pathlib
import statistics
import time

import torch
import transformers

from sherd import TEXT, generate


def theirs(model, ids, tokens, **options):
    """Seconds until the first token, and tokens per second after it."""
    def seconds(count):
        begin = time.perf_counter()
        with torch.no_grad():
            model.generate(**ids, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0, **options)
        return time.perf_counter() - begin
    first = seconds(1)
    return first, (tokens - 1) / (seconds(tokens) - first)


def compiled(model, ids, tokens):
    """Options of generate() for a static cache of one size and a step that is compiled once for it: a cache that
    grew with the number of tokens would be another program for each."""
    config = transformers.CompileConfig(mode="default", dynamic=False)
    config._compile_all_devices = True  # without it, generate() compiles on GPUs only
    options = {"cache_implementation": "static", "max_cache_len": ids["input_ids"].shape[1] + tokens,
               "compile_config": config}
    begin = time.perf_counter()
    for _ in range(2):  # the second pass finds what the first one compiled
        theirs(model, ids, tokens, **options)
    print(f"compiled in {time.perf_counter() - begin:.0f} s", flush=True)
    return options


def read_rate():
    """Bytes per second that all threads read: a sum over 1 GiB, written before (untouched zeros are one page that all share)."""
    x = torch.ones(1 << 28, dtype=torch.float32)
    best = 0.0
    for _ in range(5):
        begin = time.perf_counter()
        x.sum()
        best = max(best, 4 * x.numel() / (time.perf_counter() - begin))
    return best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--tokens", type=int, default=65)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[options.dtype]
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.folder, dtype=dtype).eval()
    ids = tokenizer(TEXT, return_tensors="pt")
    weight_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    config, positions = model.config, ids["input_ids"].shape[1] + options.tokens / 2  # seen by a token in the middle
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cached = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim  # of 16 bits where they are pairs
    cached_bytes = cached * positions * torch.finfo(dtype).bits / 8
    forms = {"dynamic cache": {}}
    if options.compile:
        forms["static cache, compiled"] = compiled(model, ids, options.tokens)
    rates = {"sherd": []} | {form: [] for form in forms}
    firsts = {"sherd": []} | {form: [] for form in forms}
    reads = []
    for _ in range(options.rounds):
        reads.append(read_rate())
        for form, more in forms.items():
            first, rate = theirs(model, ids, options.tokens, **more)
            firsts[form].append(first)
            rates[form].append(rate)
        first, rate = generate(options.program, options.folder, TEXT, options.tokens, options.dtype)
        firsts["sherd"].append(first)
        rates["sherd"].append(rate)
    shares = [rate * weight_bytes / read for rate, read in zip(rates["sherd"], reads)]
    with_cache = (weight_bytes + cached_bytes) / weight_bytes
    print(f"{options.dtype}, a prompt of {ids['input_ids'].shape[1]} tokens, {torch.get_num_threads()} threads; "
          f"memory is read at {statistics.median(reads) / 1e9:.1f} GB/s")
    for form in rates:
        ratio = statistics.median(a / b for a, b in zip(rates["sherd"], rates[form]))
        prompt = statistics.median(b / a for a, b in zip(firsts["sherd"], firsts[form]))
        print(f"{form:24} {statistics.median(rates[form]):7.2f} tokens/s, first after {statistics.median(firsts[form]):.3f} s"
              + ("" if form == "sherd" else f"; sherd is {ratio:.2f} and {prompt:.2f} times as fast"))
    share = 100 * statistics.median(shares)
    print(f"sherd reads weights at {share:.0f} % of that rate, and with keys and values at {share * with_cache:.0f} %")


if __name__ == "__main__":
    main()

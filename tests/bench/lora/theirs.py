"""PEFT's side of `./dev bench lora`: adapters on a Hugging Face folder, written as its users write it.

    theirs.py FOLDER ROWS SEQ_LENGTH STEP_ROWS MODE DTYPE WORLD THREADS

ROWS: i32 [rows, {inputs, targets, positions}, SEQ_LENGTH] of packed documents, STEP_ROWS of them a step.
MODE: eager or compile. DTYPE: f32, or bf16: a base in bf16, adapters in f32 under autocast, as PEFT has them.
"step" on stdin takes a step, the answer is JSON. Ranks are processes with DDP over gloo; rank 0 starts them.
"""
import json
import os
import subprocess
import sys
import time

import numpy
import peft
import torch
import torch.nn.functional as F
import transformers

ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def status_bytes(key):
    for line in open("/proc/self/status"):
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0


def main():
    folder, rows_path, seq_length, step_rows, mode, dtype, world, threads = sys.argv[1:9]
    seq_length, step_rows, world = int(seq_length), int(step_rows), int(world)
    rank = int(os.environ.get("RANK", "0"))
    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    others = []
    if world > 1:
        env = dict(os.environ, MASTER_ADDR="127.0.0.1", WORLD_SIZE=str(world))
        env.setdefault("MASTER_PORT", str(20000 + os.getpid() % 20000))
        os.environ.update(env, RANK=str(rank))
        if rank == 0:
            others = [subprocess.Popen([sys.executable, *sys.argv], env=dict(env, RANK=str(r)), text=True,
                                       stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) for r in range(1, world)]
        torch.distributed.init_process_group("gloo")
    libraries = status_bytes("VmRSS")
    base = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32, attn_implementation="sdpa")
    model = peft.get_peft_model(base, peft.LoraConfig(r=16, lora_alpha=32, target_modules=ALL_LINEAR,
                                                      task_type="CAUSAL_LM"))
    model.train()
    if mode == "compile":
        # Layer by layer where DDP wraps them, as in the bench of whole trainings.
        for layer in model.base_model.model.model.layers if world > 1 else []:
            layer.compile()
    wrapped = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True) if world > 1 else model
    if mode == "compile" and world == 1:
        wrapped = torch.compile(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, fused=True)
    rows = numpy.fromfile(rows_path, dtype=numpy.int32).reshape(-1, 3, seq_length)
    causal = torch.ones(seq_length, seq_length, dtype=torch.bool).tril()

    def take_step(step):
        first = step * step_rows % len(rows)
        of_step = torch.from_numpy(rows[first:first + step_rows].astype(numpy.int64))
        targets = int((of_step[:, 1] >= 0).sum())
        own = of_step[rank::world]
        total = 0.0
        for i, (inputs, wanted, positions) in enumerate(own):
            document = (positions == 0).cumsum(0)
            mask = causal & (document[:, None] == document[None, :])
            last = i + 1 == len(own)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"), \
                    (wrapped.no_sync() if world > 1 and not last else torch.enable_grad()):
                logits = wrapped(input_ids=inputs[None], position_ids=positions[None], attention_mask=mask[None, None],
                                 use_cache=False).logits[0]
                # What has no target costs nothing here either: its logits are left out of the loss.
                loss = F.cross_entropy(logits.float(), wanted, ignore_index=-1, reduction="sum") * world / targets
                loss.backward()
            total += loss.item() / world
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = torch.tensor(total)
        if world > 1:
            torch.distributed.all_reduce(loss)
        return loss.item()

    step = 0
    for line in sys.stdin:
        if line.strip() != "step":
            break
        for other in others:
            other.stdin.write(line)
            other.stdin.flush()
        begin = time.perf_counter()
        loss = take_step(step)
        seconds = time.perf_counter() - begin
        step += 1
        own = [libraries, status_bytes("VmHWM")]
        if world > 1:
            of_all = [None] * world
            torch.distributed.all_gather_object(of_all, own)
            own = [sum(values) for values in zip(*of_all)]
        if step == 1:
            # What compiling took isn't counted against the peak.
            open("/proc/self/clear_refs", "w").write("5")
        if rank == 0:
            print(json.dumps({"loss": loss, "seconds": seconds, "libraries": own[0], "peak": own[1]}), flush=True)
    for other in others:
        other.stdin.close()
        other.wait()
    if world > 1:
        torch.distributed.destroy_process_group()


main()

"""PEFT's side of `./dev bench lora`: adapters on a Hugging Face folder, written as its users write it.

    theirs.py FOLDER ROWS SEQ_LENGTH STEP_ROWS MODE DTYPE WORLD THREADS

ROWS: i32 [rows, {inputs, targets, positions}, SEQ_LENGTH] of packed documents, STEP_ROWS of them a step.
MODE: eager or compile. DTYPE: f32, or bf16: a base in bf16, adapters in f32 under autocast, as PEFT has them.
"step" on stdin takes a step, the answer is JSON. Ranks are processes with DDP over gloo; rank 0 starts them.
"""
import pathlib
import sys

import numpy
import peft
import torch
import torch.nn.functional as F
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from torch_ranks import Ranks, status_bytes  # noqa: E402

ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def main():
    folder, rows_path, seq_length, step_rows, mode, dtype, world, threads = sys.argv[1:9]
    seq_length, step_rows = int(seq_length), int(step_rows)
    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    ranks = Ranks(int(world))
    world, rank = ranks.world, ranks.rank
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
                loss = F.cross_entropy(logits.float(), wanted, ignore_index=-1, reduction="sum") * world / targets
                loss.backward()
            total += loss.item() / world
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return {"loss": ranks.sum(total)}

    ranks.serve(take_step, libraries, lambda: status_bytes("VmHWM"), forgets_first_peak=True)


main()

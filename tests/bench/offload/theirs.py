"""theirs.py FOLDER cpu|nvme STEPS SEQUENCES: the model of llama_374m.yaml in PyTorch, trained by DeepSpeed on CPUs.

ZeRO stage 3 on one rank, f32, FP32 optimizer state in memory or on the drive of FOLDER. Prints a JSON object for
each step. It needs torch and the packages of requirements.txt, libaio, and a compiler for DeepSpeed's operators.
"""
import json
import os
import pathlib
import shutil
import sys
import time

FOLDER, HOME, STEPS, SEQUENCES = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
THREADS = len(os.sched_getaffinity(0))
for name, value in dict(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_SIZE="1",
                        MASTER_ADDR="127.0.0.1", MASTER_PORT="29577", OMP_NUM_THREADS=str(THREADS)).items():
    os.environ.setdefault(name, value)

import deepspeed  # noqa: E402
import deepspeed.ops  # noqa: E402
import torch  # noqa: E402
from deepspeed.ops.adam import DeepSpeedCPUAdam  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

VOCABULARY, WIDTH, LAYERS, HEADS, HIDDEN, LENGTH = 32000, 1024, 24, 16, 2816, 1024
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # one rank exchanges nothing


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return functional.rms_norm(x, (WIDTH,), self.weight, 1e-5)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp_norm = Norm(), Norm()
        self.q, self.k, self.v, self.o = (linear(WIDTH, WIDTH) for _ in range(4))
        self.gate, self.up, self.down = linear(WIDTH, HIDDEN), linear(WIDTH, HIDDEN), linear(HIDDEN, WIDTH)

    def forward(self, x, cos, sin):
        rows, length, _ = x.shape
        normed = self.norm(x)

        def heads(projection):
            return projection(normed).view(rows, length, HEADS, -1).transpose(1, 2)

        def rotated(z):
            first, second = z.chunk(2, -1)
            return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

        z = functional.scaled_dot_product_attention(rotated(heads(self.q)), rotated(heads(self.k)), heads(self.v),
                                                    is_causal=True)
        x = x + self.o(z.transpose(1, 2).reshape(rows, length, WIDTH))
        normed = self.mlp_norm(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = Norm(), linear(WIDTH, VOCABULARY)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        size = WIDTH // HEADS
        angles = torch.outer(torch.arange(LENGTH).float(), 10000.0 ** (-torch.arange(0, size, 2).float() / size))
        self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return functional.cross_entropy(self.head(self.norm(x)).view(-1, VOCABULARY), targets.view(-1))


def settings():
    zero = {"stage": 3, "sub_group_size": 100_000_000, "overlap_comm": False}
    zero["offload_optimizer"] = {"device": HOME, "pin_memory": False}
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": SEQUENCES,
              "gradient_clipping": 1.0, "bf16": {"enabled": False}, "zero_optimization": zero}
    if HOME == "nvme":
        zero["offload_optimizer"] |= {"nvme_path": str(FOLDER), "buffer_count": 4}
        config["aio"] = {"block_size": 1 << 20, "queue_depth": 16, "intra_op_parallelism": 1,
                         "single_submit": False, "overlap_events": True}
    return config


def bytes_moved():
    counts = dict(line.split(": ") for line in pathlib.Path("/proc/self/io").read_text().splitlines())
    return int(counts["read_bytes"]), int(counts["write_bytes"])


def main():
    torch.set_num_threads(THREADS)
    torch.manual_seed(1)
    deepspeed.init_distributed(dist_backend="gloo")
    model = Model()
    optimizer = DeepSpeedCPUAdam(model.parameters(), lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings())
    generator = torch.Generator().manual_seed(7)
    for _ in range(STEPS):
        moved, begin = bytes_moved(), time.perf_counter()
        loss = 0.0
        for _ in range(SEQUENCES):
            tokens = torch.randint(0, VOCABULARY, (1, LENGTH + 1), generator=generator)
            of_sequence = engine(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
            engine.backward(of_sequence)
            loss += of_sequence.item() / SEQUENCES
            engine.step()
        seconds, now = time.perf_counter() - begin, bytes_moved()
        print(json.dumps({"seconds": seconds, "loss": loss, "read": now[0] - moved[0],
                          "written": now[1] - moved[1]}), flush=True)


if __name__ == "__main__":
    try:
        main()
    finally:
        shutil.rmtree(FOLDER / "zero_stage_3", ignore_errors=True)

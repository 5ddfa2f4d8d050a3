"""`./dev bench ledger`: compares what `sherd plan --ledger` predicts for an H100 with measured steps.

The first table is our own, measured on one H100 on 22 November 2026 (docs/measured/gpu_log.md). The second are published steps of
others on H100s that our recipes can say and that have no pipeline: MosaicML's llm-foundry (MPT shapes, FSDP, PyTorch;
scripts/train/benchmarking/README.md), NVIDIA's dgxc-benchmarking (NeMo; tags v25.02.01 and v25.04.01) and torchtitan
(benchmarks/). Their engines aren't ours: what differs tells as much of their kernels as of these rates.
"""
import json
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHERD = ROOT / "build" / "cpu" / "sherd"
BASE = "tests/bench/ledger/base.yaml"
PEERS = "tests/bench/peers/{}.yaml"


def batch(micro, steps=1, ranks=1):
    """Settings of a global batch of `steps` micro-batches on each rank."""
    return [f"training.micro_batch_size={micro}", f"training.global_batch_size={micro * steps * ranks}"]


def peers(name, micro, steps=1):
    return (PEERS.format(name), ["run.device=cuda", "run.deterministic=false", "mixed_precision.param_dtype=bf16",
                                 f"training.gradient_accumulation_steps={steps}", *batch(micro, steps)])


def recipe(name, *settings):
    return (f"recipes/{name}.yaml", list(settings))


def mpt(layers, hidden, heads, gpus, micro, steps, length=2048, recompute="none"):
    return (BASE, [f"model.num_layers={layers}", f"model.hidden_size={hidden}", f"model.num_attention_heads={heads}",
                   f"training.seq_length={length}", *batch(micro, steps, gpus),
                   f"parallelism.data_parallel_shard_degree={gpus}", "zero_optimization.stage=3",
                   "mixed_precision.reduce_dtype=f32", f"activation_checkpointing.mode={recompute}"])


def llama(layers, hidden, heads, ffn, length, *mesh, vocab=128256, activation="swiglu", recompute="none"):
    """Llama 3.1's form, and Nemotron's; `mesh`: batch(...) and degrees."""
    return (BASE, [f"model.num_layers={layers}", f"model.hidden_size={hidden}", f"model.num_attention_heads={heads}",
                   "model.num_kv_heads=8", f"model.ffn_hidden_size={ffn}", f"model.vocab_size={vocab}",
                   "model.norm=rmsnorm", "model.positions=rope", f"model.activation={activation}",
                   "model.tie_embeddings=false", f"training.seq_length={length}",
                   f"activation_checkpointing.mode={recompute}", *mesh])


def mesh(stage, **degrees):
    settings = [f"parallelism.{axis}_degree={degree}" for axis, degree in degrees.items()]
    if "context_parallel" in degrees:
        settings.append("parallelism.context_parallel_method=ulysses")
    if "tensor_parallel" in degrees:
        settings.append("parallelism.sequence_parallel=true")
    return [*settings, f"zero_optimization.stage={stage}"]


def llama_8b(*settings, recompute="none"):
    return llama(32, 4096, 32, 14336, 8192, *settings, recompute=recompute)


def nemotron_15b(*settings):
    return llama(32, 6144, 48, 24576, 4096, *settings, vocab=256000, activation="relu2")


# As on that day, when gradients of micro-steps were added by a pass over memory; matmuls do it since.
THEN = "zero_optimization.grad_sync=every_micro_step"

# Name, recipe and settings, tokens/s that were measured.
OURS = [
    ("gpt2_124m_h200, 24", recipe("gpt2_124m_h200", THEN), 528e3),
    ("gpt2_124m_h200, 12, deterministic",
     recipe("gpt2_124m_h200", "run.deterministic=true", "training.micro_batch_size=12"), 495e3),
    ("llama_1b_h200, 16", recipe("llama_1b_h200", THEN), 83.9e3),
    ("llama_1b_h200, 8, deterministic",
     recipe("llama_1b_h200", "run.deterministic=true", "training.micro_batch_size=8"), 80.0e3),
    ("peers gpt2_124m, 16", peers("gpt2_124m", 16), 492e3),
    ("peers llama_05b, 16", peers("llama_05b", 16), 143e3),
    ("peers llama_15b, 4", peers("llama_15b", 4), 44.7e3),
]
# Name, recipe and settings, tokens/s of all GPUs as published.
PUBLISHED = [
    ("MosaicML 1b, 8 GPUs", mpt(24, 2048, 16, 8, 14, 1), 8 * 45455),
    ("MosaicML 3b, 16 GPUs", mpt(32, 2560, 20, 16, 10, 1), 16 * 24142),
    ("MosaicML 7b, 8 GPUs", mpt(32, 4096, 32, 8, 6, 1), 8 * 10643),
    ("MosaicML 13b, 8 GPUs", mpt(40, 5120, 40, 8, 2, 1), 8 * 4792),
    ("MosaicML 7b at 8,192, recomputed, 8 GPUs", mpt(32, 4096, 32, 8, 8, 2, 8192, "full"), 8 * 6935),
    ("NeMo Llama 3.1 8B, context 2, 8 GPUs",
     llama_8b(*batch(1, 32, 4), *mesh(1, data_parallel_shard=4, context_parallel=2)), 128 * 8192 / 12.27),
    ("the same, 128 GPUs",
     llama_8b(*batch(1, 32, 64), *mesh(1, data_parallel_shard=64, context_parallel=2)), 2048 * 8192 / 12.33),
    ("NeMo Nemotron 15B, tensor 2, 16 GPUs",
     nemotron_15b(*batch(2, 4, 8), *mesh(1, data_parallel_shard=8, tensor_parallel=2)), 64 * 4096 / 2.66),
    ("NeMo Nemotron 15B, tensor 2, 64 GPUs",
     nemotron_15b(*batch(2, 4, 32), *mesh(1, data_parallel_shard=32, tensor_parallel=2)), 256 * 4096 / 2.67),
    ("NeMo Nemotron 15B, tensor 2, 256 GPUs",
     nemotron_15b(*batch(2, 4, 128), *mesh(1, data_parallel_shard=128, tensor_parallel=2)), 1024 * 4096 / 2.68),
    ("NeMo Nemotron 15B, tensor 4, 16 GPUs",
     nemotron_15b(*batch(4, 4, 4), *mesh(1, data_parallel_shard=4, tensor_parallel=4)), 64 * 4096 / 2.812),
    ("NeMo Nemotron 15B, tensor 4, 64 GPUs",
     nemotron_15b(*batch(4, 4, 16), *mesh(1, data_parallel_shard=16, tensor_parallel=4)), 256 * 4096 / 2.845),
    ("NeMo Nemotron 15B, tensor 4, 256 GPUs",
     nemotron_15b(*batch(4, 4, 64), *mesh(1, data_parallel_shard=64, tensor_parallel=4)), 1024 * 4096 / 2.852),
    ("torchtitan 8B, compiled, 8 GPUs of 500 W",
     llama_8b(*batch(2, 1, 8), *mesh(3, data_parallel_shard=8), recompute="selective"), 8 * 6667),
]


def predicted(row):
    path, settings = row
    command = [str(SHERD), "plan", path, "--ledger", "--json"]
    for setting in settings:
        command += ["--set", setting]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return json.loads(answer.stdout)[0]  # the H100


def table(title, rows):
    print(f"\n{title}\n{'':44}{'measured':>10}{'predicted':>10}{'ratio':>7}{'outside':>9}")
    ratios = []
    for name, row, measured in rows:
        step = predicted(row)
        ratio = step["estimated_tokens_per_s"] / measured
        ratios.append(ratio)
        print(f"{name:44}{measured / 1e3:>9.1f}k{step['estimated_tokens_per_s'] / 1e3:>9.1f}k{ratio:>7.2f}"
              f"{100 * step['outside_products']:>8.1f}%")
    print(f"{'median':44}{statistics.median(ratios):>27.2f}")


def main():
    table("Sherd on one H100, tokens/s", OURS)
    table("Published steps on H100s, tokens/s of all GPUs", PUBLISHED)
    print("\nOne GPU, 1.5 billion parameters (peers llama_15b)")
    for length, micro in ((1024, 8), (4096, 2)):
        path, settings = peers("llama_15b", micro, 64)
        step = predicted((path, [*settings, f"training.seq_length={length}"]))
        print(f"  sequences of {length:,}, 64 micro-batches a step: {100 * step['estimated_mfu']:.1f} % MFU, "
              f"{100 * step['outside_products']:.1f} % of the step outside matmuls and attention")


if __name__ == "__main__":
    main()

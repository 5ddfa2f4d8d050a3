"""The model that experts_peer.py and expert_ranks.py train, and its tokens."""
import random
import struct

LAYERS, D, HEADS, F, E, K, V, SEQUENCES, LENGTH = 4, 512, 8, 192, 32, 4, 1024, 8, 256


def recipe_in(folder, steps):
    """Writes recipe.yaml and tokens.bin."""
    (folder / "recipe.yaml").write_text(f"""
model: {{num_layers: {LAYERS}, hidden_size: {D}, num_attention_heads: {HEADS}, vocab_size: {V}, qk_norm: head}}
moe: {{num_experts: {E}, experts_per_token: {K}, ffn_hidden_size: {F}, balance_loss: 0.001}}
data: {{path: tokens.bin, format: bin, validation_fraction: 0}}
training: {{seq_length: {LENGTH}, global_batch_size: {SEQUENCES}, max_steps: {steps}}}
checkpoint: {{interval: 0}}
metrics: {{tensorboard: false}}
""")
    numbers = random.Random(1)
    count = SEQUENCES * LENGTH * (steps + 2)
    (folder / "tokens.bin").write_bytes(struct.pack(f"<{count}H", *(numbers.randrange(V) for _ in range(count))))

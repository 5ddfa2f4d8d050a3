"""Multi-token prediction in PyTorch: losses and gradient norms of five steps of a tiny DeepSeek-V3.

    python tests/reference/mtp.py            # write mtp.json next to this file
    python tests/reference/mtp.py --check    # compare with the stored file, write nothing

The layers after the model's are transformers' decoder layers, with the norms and the projection of DeepSeek-V3's
report around them (arXiv:2412.19437, section 2.2); transformers itself has none. Every step is one batch of all texts,
each alone in its row. A token is a byte; a text's last token has no target. The optimizer is SGD without clipping. The
weights are those of preferences.py's `weight`, by the sorted names of files, in which each expert has its own.
"""

import torch
import torch.nn.functional as F
import transformers
from torch import nn
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer, DeepseekV3RMSNorm

from preferences import store, weight

STEPS = 5
CONFIG = dict(vocab_size=260, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
              num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=False,
              attention_bias=False, q_lora_rank=12, kv_lora_rank=8, qk_nope_head_dim=6, qk_rope_head_dim=4,
              v_head_dim=8, first_k_dense_replace=1, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2,
              moe_intermediate_size=10, n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5,
              bos_token_id=None, eos_token_id=258, pad_token_id=259)
TEXTS = ["the grass is green", "snow is white", "coal: black", "1+1=2", "to be or not to be", "ab"]
# Layers, weight of their losses, rate.
RUNS = [(1, 0.3, 0.5), (1, 2.0, 0.2), (2, 1.0, 0.5)]


class Layer(nn.Module):
    def __init__(self, config, number):
        super().__init__()
        self.enorm = DeepseekV3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hnorm = DeepseekV3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.shared_head = nn.ModuleDict({"norm": DeepseekV3RMSNorm(config.hidden_size, config.rms_norm_eps)})
        self.block = DeepseekV3DecoderLayer(config, number)

    def forward(self, hidden, embedded, rotary):
        x = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(hidden)], -1))
        out = self.block(x, attention_mask=None, position_embeddings=rotary)
        return self.shared_head["norm"](out[0] if isinstance(out, tuple) else out)


def tensors_of(model, layers):
    """Name in files -> what holds it: a tensor or a part of one."""
    found = {}
    experts = model.config.n_routed_experts

    def add(name, tensor):
        name = name.replace(".block.", ".")
        if name.endswith("mlp.experts.gate_up_proj"):
            for e in range(experts):
                gate, up = tensor[e].chunk(2)
                found[name.replace("gate_up_proj", f"{e}.gate_proj.weight")] = gate
                found[name.replace("gate_up_proj", f"{e}.up_proj.weight")] = up
        elif name.endswith("mlp.experts.down_proj"):
            for e in range(experts):
                found[name.replace("down_proj", f"{e}.down_proj.weight")] = tensor[e]
        else:
            found[name] = tensor

    for name, tensor in list(model.named_parameters()) + list(model.named_buffers()):
        if "inv_freq" not in name:
            add(name, tensor.data)
    for index, layer in enumerate(layers):
        prefix = f"model.layers.{model.config.num_hidden_layers + index}."
        for name, tensor in list(layer.named_parameters()) + list(layer.named_buffers()):
            add(prefix + name, tensor.data)
    return dict(sorted(found.items()))


def make(depth):
    config = DeepseekV3Config(**CONFIG)
    config._attn_implementation = "sdpa"
    config._experts_implementation = "eager"
    model = DeepseekV3ForCausalLM(config).float()
    layers = nn.ModuleList(Layer(model.config, config.num_hidden_layers + k) for k in range(depth)).float()
    shapes = []
    for number, (name, tensor) in enumerate(tensors_of(model, layers).items()):
        values = weight(number, tensor.numel()).reshape(tensor.shape)
        tensor.copy_(values + 1.0 if "norm" in name else values)
        shapes.append(" ".join([name, *map(str, tensor.shape)]))
    return model, layers, shapes


def losses(model, layers, text):
    """The sums of a text's losses: of the next token, then of each layer's."""
    hidden = model.model(text[None]).last_hidden_state
    sums = [F.cross_entropy(model.lm_head(hidden)[0, :-1], text[1:], reduction="sum")]
    for ahead, layer in enumerate(layers, 1):
        positions = torch.arange(max(len(text) - ahead, 0))
        if len(positions) == 0:
            sums.append(torch.zeros(()))
            continue
        hidden = hidden[:, : len(positions)]
        rotary = model.model.rotary_emb(hidden, positions[None])
        hidden = layer(hidden, model.model.embed_tokens(text[None, ahead:]), rotary)
        # The last of these positions has no target.
        sums.append(F.cross_entropy(model.lm_head(hidden)[0, :-1], text[ahead + 1 :], reduction="sum"))
    return sums


def run(depth, factor, rate):
    model, layers, shapes = make(depth)
    parameters = list(model.parameters()) + list(layers.parameters())
    texts = [torch.tensor(list(text.encode())) for text in TEXTS]
    targets = [sum(max(len(text) - 1 - k, 0) for text in texts) for k in range(depth + 1)]
    optimizer = torch.optim.SGD(parameters, lr=rate)
    steps = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        sums = [0.0] * (depth + 1)
        for text in texts:
            sums = [total + own for total, own in zip(sums, losses(model, layers, text))]
        means = [total / count for total, count in zip(sums, targets)]
        predicted = sum(means[1:]) / depth
        (means[0] + factor * predicted).backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        steps.append({"loss": means[0].item(), "mtp_loss": predicted.item(), "grad_norm": norm.item()})
        optimizer.step()
    return {"layers": depth, "factor": factor, "rate": rate, "tensors": shapes,
            "steps": [{key: float(f"{value:.9g}") for key, value in step.items()} for step in steps]}


def main():
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = DeepseekV3Config(**CONFIG).to_dict()
    kept = {key: config[key] for key in CONFIG if config.get(key) is not None}
    store(__file__, {"config": kept, "texts": TEXTS, "runs": [run(*settings) for settings in RUNS]})


if __name__ == "__main__":
    main()

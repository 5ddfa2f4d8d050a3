"""Distillation in PyTorch: losses, divergences and gradient norms of five steps of a tiny Llama that learns from another.

    python tests/reference/distillation.py            # write distillation.json next to this file
    python tests/reference/distillation.py --check    # compare with the stored file, write nothing

Every step is one batch of all texts, each alone in its row. A token is a byte; a text's last token has no target. The
optimizer is SGD without clipping. The weights are those of preferences.py's `weight`; the teacher's have other numbers.
"""

import torch
import torch.nn.functional as F
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from preferences import CONFIG, store, weight

STEPS = 5
TEACHER_FIRST = 100  # number of the teacher's first tensor
TEXTS = ["the grass is green", "snow is white", "coal: black", "1+1=2", "to be or not to be"]
# Tokens of the teacher, weight, temperature, rate.
RUNS = [(5, 0.5, 1.0, 0.5), (5, 1.0, 2.0, 0.5), (260, 0.75, 0.5, 0.2), (1, 0.3, 3.0, 0.5), (5, 0.0, 1.0, 0.5)]


def model(first):
    llama = LlamaForCausalLM(LlamaConfig(**CONFIG)).float()
    with torch.no_grad():
        for number, (name, tensor) in enumerate(sorted(llama.named_parameters())):
            values = weight(first + number, tensor.numel()).reshape(tensor.shape)
            tensor.copy_(values + 1.0 if "norm" in name else values)
    return llama


def run(top, share, temperature, rate):
    teacher, student = model(TEACHER_FIRST), model(0)
    texts = [torch.tensor(list(text.encode())) for text in TEXTS]
    targets = sum(len(text) - 1 for text in texts)
    with torch.no_grad():
        taught = [F.log_softmax(teacher(text[None]).logits[0, :-1].double(), -1).topk(top) for text in texts]
    optimizer = torch.optim.SGD(student.parameters(), lr=rate)
    steps = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = divergence = 0.0
        for text, (values, ids) in zip(texts, taught):
            logits = student(text[None]).logits[0, :-1]
            loss = loss + F.cross_entropy(logits, text[1:], reduction="sum") / targets
            p = F.softmax(values / temperature, -1).float()
            q = F.log_softmax(logits / temperature, -1).gather(-1, ids)
            divergence = divergence + F.kl_div(q, p, reduction="sum") / targets
        ((1 - share) * loss + share * temperature**2 * divergence).backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in student.parameters()])
        steps.append({"loss": loss.item(), "teacher_divergence": divergence.item(), "grad_norm": norm.item()})
        optimizer.step()
    return [{key: float(f"{value:.9g}") for key, value in step.items()} for step in steps]


def main():
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    runs = [{"top": top, "weight": share, "temperature": temperature, "rate": rate,
             "steps": run(top, share, temperature, rate)} for top, share, temperature, rate in RUNS]
    store(__file__, {"config": CONFIG, "texts": TEXTS, "teacher_first": TEACHER_FIRST, "runs": runs})


if __name__ == "__main__":
    main()

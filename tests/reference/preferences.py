"""Trainings on preferences with TRL: losses, gradient norms and metrics of five steps of a tiny Llama.

    python tests/reference/preferences.py            # write preferences.json next to this file
    python tests/reference/preferences.py --check    # compare with the stored file, write nothing

Every step is one batch of all rows, so the order of rows doesn't matter. The optimizer is SGD without clipping. A
token is a byte; 258 ends a text. The weights are those of `weight`, which the tests form as well.
"""

import argparse
import json
import math
import os
import pathlib
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import transformers
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer

STEPS = 5
CONFIG = dict(vocab_size=260, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
              num_key_value_heads=1, max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=False,
              attention_bias=False, bos_token_id=None, eos_token_id=258, pad_token_id=259)

PAIRS = {
    "colours": [
        {"prompt": "Q: sky?\nA:", "chosen": " blue", "rejected": " a fish"},
        {"prompt": "Q: grass?\nA:", "chosen": " green", "rejected": " mud"},
        {"prompt": "Q: snow?\nA:", "chosen": " milky", "rejected": " fur"},
        {"prompt": "Q: coal?\nA:", "chosen": " black", "rejected": " I don't know"},
    ],
    "sums": [
        {"prompt": "1+1=", "chosen": " 2", "rejected": " 11"},
        {"prompt": "2+5=", "chosen": " 7.", "rejected": " no"},
        {"prompt": "20+22=", "chosen": " 42", "rejected": " 2022"},
    ],
}
JUDGED = {
    "colours": [
        {"prompt": "Q: sky?\nA:", "completion": " blue", "label": True},
        {"prompt": "Q: grass?\nA:", "completion": " mud", "label": False},
        {"prompt": "Q: snow?\nA:", "completion": " milky", "label": True},
        {"prompt": "Q: coal?\nA:", "completion": " I don't know", "label": False},
    ],
    "sums": [
        {"prompt": "1+1=", "completion": " 2", "label": True},
        {"prompt": "2+5=", "completion": " no", "label": False},
        {"prompt": "20+22=", "completion": " 42", "label": True},
    ],
}
# Loss, beta, label smoothing, rate.
RUNS = [("sigmoid", 0.1, 0.0, 0.5), ("sigmoid", 0.5, 0.0, 0.1), ("robust", 0.3, 0.1, 0.1), ("hinge", 0.2, 0.0, 0.05),
        ("ipo", 0.1, 0.0, 0.005), ("apo_zero", 0.1, 0.0, 0.5), ("apo_down", 0.1, 0.0, 0.5), ("kto", 0.1, 0.0, 0.5)]
METRICS = ["loss", "grad_norm", "rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins",
           "logps/chosen", "logps/rejected", "kl"]


def weight(tensor, count):
    """Tensor number `tensor`, in the order of its names, as f32."""
    index = torch.arange(1, count + 1, dtype=torch.int64)
    bits = (index * 2654435761 + (tensor + 1) * 40503 * 65537) % (1 << 32)
    return ((bits.double() / (1 << 32) - 0.5) * 0.4).float()


def model():
    llama = LlamaForCausalLM(LlamaConfig(**CONFIG)).float()
    with torch.no_grad():
        for number, (name, tensor) in enumerate(sorted(llama.named_parameters())):
            values = weight(number, tensor.numel()).reshape(tensor.shape)
            tensor.copy_(values + 1.0 if "norm" in name else values)
    return llama


def byte_tokenizer():
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in visible]
    of = {b: chr(b) for b in visible} | {b: chr(256 + i) for i, b in enumerate(hidden)}
    assert sorted(of.values()) == characters
    vocabulary = {of[b]: b for b in range(256)} | {"<u>": 256, "<v>": 257, "<|end|>": 258, "<pad>": 259}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<pad>")


def run(rows, loss, beta, smoothing, rate):
    with tempfile.TemporaryDirectory() as folder:
        start = os.path.join(folder, "start")  # TRL loads the reference from there
        model().save_pretrained(start)
        common = dict(output_dir=folder, per_device_train_batch_size=len(rows), max_steps=STEPS, learning_rate=rate,
                      lr_scheduler_type="constant", optim="sgd", max_grad_norm=1e9, logging_steps=1, beta=beta,
                      report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, save_strategy="no",
                      disable_tqdm=True, seed=1, max_length=128)
        if loss == "kto":
            trainer = KTOTrainer(model=LlamaForCausalLM.from_pretrained(start), args=KTOConfig(**common), processing_class=byte_tokenizer(),
                                 train_dataset=Dataset.from_list(rows))
        else:
            trainer = DPOTrainer(model=LlamaForCausalLM.from_pretrained(start), processing_class=byte_tokenizer(),
                                 args=DPOConfig(loss_type=loss, label_smoothing=smoothing, **common),
                                 train_dataset=Dataset.from_list(rows))
        trainer.train()
        steps = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
        return [{key: float(f"{entry[key]:.9g}") for key in METRICS if key in entry and math.isfinite(entry[key])}
                for entry in steps]


def store(script, document):
    """Writes the document next to the script, or with --check compares its runs' steps with the stored ones."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    path = pathlib.Path(script).with_suffix(".json")
    if not parser.parse_args().check:
        text = json.dumps({"generator": f"tests/reference/{pathlib.Path(script).name}"} | document, indent=1)
        return path.write_text(text + "\n")
    stored = json.loads(path.read_text())["runs"]
    for old, new in zip(stored, document["runs"], strict=True):
        for before, now in zip(old["steps"], new["steps"], strict=True):
            for key, value in before.items():
                settings = {name: old[name] for name in old if name != "steps"}
                assert abs(now[key] - value) <= 1e-5 * max(1.0, abs(value)), (settings, key, value, now[key])
    print("as stored")


def main():
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    runs = []
    for loss, beta, smoothing, rate in RUNS:
        for name, rows in (JUDGED if loss == "kto" else PAIRS).items():
            steps = run(rows, loss, beta, smoothing, rate)
            assert len(steps) == STEPS
            runs.append({"loss": loss, "beta": beta, "label_smoothing": smoothing, "rate": rate, "data": name, "steps": steps})
    store(__file__, {"config": CONFIG, "pairs": PAIRS, "judged": JUDGED, "runs": runs})


if __name__ == "__main__":
    main()

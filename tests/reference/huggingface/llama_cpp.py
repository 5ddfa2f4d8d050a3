"""llama_cpp.py PROGRAM CONVERTER [NAME…]: exports of PROGRAM (sherd) say in llama.cpp what they say in PROGRAM.

For a case of tests/engine/huggingface/scratch.json of each dense family that llama.cpp knows: PROGRAM trains a tiny model
on words, with a tokenizer, and exports it. Mixtures are those of experts.json, with the weights of folders.py's formula,
which PROGRAM trains further. CONVERTER, llama.cpp's convert_hf_to_gguf.py, writes a file in f32; llama.cpp continues
prompts by the likeliest tokens. Checked: the texts are those of `sherd score` for the run's checkpoint, whose likeliest
tokens are the same. An adapter in PEFT's form goes through convert_lora_to_gguf.py, onto the model that it was trained on.

llama.cpp knows pre-tokenizers by a hash of what large vocabularies do with a text. Ours is that of GPT-2, which is passed
to the converter; all else is as its makers ship it.

llama_cpp.sh installs what this needs (gguf_requirements.txt, and the converter).
"""
import json
import pathlib
import random
import re
import string
import subprocess
import sys
import tempfile

import numpy
import safetensors.numpy
import tokenizers

HERE = pathlib.Path(__file__).resolve().parent
VALUES = HERE.parents[1] / "engine" / "huggingface"
CASES = {case["name"]: case for case in json.loads((VALUES / "scratch.json").read_text())}
FOLDERS = json.loads((VALUES / "experts.json").read_text())
# For Phi-3, Gemma 1 and 2 and Nemotron the converter needs a tokenizer.model, for GLM-4 its special tokens. Seed-OSS has
# no biases there.
NAMES = ["gpt2", "llama2", "llama31", "qwen2", "qwen3", "smollm3", "olmo2", "gemma3", "stablelm", "pythia", "starcoder2",
         "granite", "command_r", "arcee", "exaone4"]
# For GLM-4.5 and Hunyuan the converter needs their own tokens, for ERNIE 4.5 a tokenizer.model. llama.cpp knows OLMoE and
# dots.llm1 with as many key and value heads as query heads alone, and DeepSeek-V2 without a latent of queries if it has 27
# layers.
MIXTURES = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "granitemoeshared", "minimax_m2",
            "deepseek_v2_groups", "deepseek_v3", "dots1", "gpt_oss", "llama4_text"]
ADAPTER = "llama2_adapter"
ALL_HEADS = ["olmoe", "dots1"]
# Keys that published folders have, and llama.cpp's own constants. It chooses DeepSeek-V2's groups of experts by
# DeepSeek-V3's rule, and has no windows in dots.llm1.
SIGMOIDS, ONE_GROUP = {"scoring_func": "sigmoid"}, {"n_group": 1, "topk_group": 1}
FULL = {"layer_types": ["full_attention"] * 2, "sliding_window": None, "max_window_layers": 2}
FOLDER_CHANGES = {"minimax_m2": SIGMOIDS | {"rotary_dim": 8}, "dots1": SIGMOIDS | FULL, "deepseek_v2_groups": ONE_GROUP,
                  "deepseek_v3": SIGMOIDS, "llama4_text": {"floor_scale": 8192, "attn_scale": 0.1}}
# llama.cpp has no windows in StarCoder 2; one as long as the context does nothing. It looks GELU up in a table in f16, which
# turned a tie of 4e-5 nats of Pythia's: with larger weights there is none. Gemma 3 said nothing but spaces.
CHANGES = {"starcoder2": {"window": 64}, "pythia": {"init_std": 0.4}, "gemma3": {"tie_embeddings": False}}
END = "<|endoftext|>"  # the converter looks for this name in some families
SIZES = dict(num_layers=4, hidden_size=64, num_attention_heads=4, num_kv_heads=2, vocab_size=56, max_seq_length=64,
             init_std=0.3)
WORDS = ["the", "in", "an", "er", "on", "at", "re", "is", "or", "he", "nd", "to", "ed", "es", "ha", "st", "ar"]
PROMPTS = ["the hare ", "an order is to ", "she", "a stone at the end of it "]
TOKENS = 24


def write_tokenizer(folder):
    """56 tokens: letters, space and line break, pairs of letters, and one that ends a text."""
    folder.mkdir()
    pieces = [*string.ascii_lowercase, "Ġ", "Ċ", *[word for word in WORDS if len(word) == 2]]
    pieces += [f"<{i}>" for i in range(SIZES["vocab_size"] - 1 - len(pieces))] + [END]
    merges = [tuple(word) for word in WORDS if len(word) == 2]
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    bpe.add_special_tokens([END])
    bpe.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "add_bos_token": False}))


def sherd(*words):
    done = subprocess.run([sys.argv[1], *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, (words, done.stderr[-600:])
    return done.stdout


def scratch_model(name):
    """The keys of a model from scratch, and the family that it is exported as."""
    keys = SIZES | CASES[name]["model"] | CHANGES.get(name, {})
    return {"model": keys}, CASES[name]["type"]


def folder_model(name, place):
    """A folder with the formula's weights (folders.py), whose texts end where the tokenizer says."""
    config = json.loads(FOLDERS[name]["config"]) | {"bos_token_id": None, "eos_token_id": SIZES["vocab_size"] - 1}
    config |= FOLDER_CHANGES.get(name, {})
    header, tensors = json.loads(FOLDERS[name]["header"]), {}
    header.pop("__metadata__")
    if name == "qwen3_moe":  # llama.cpp has no dense layers there
        config["mlp_only_layers"] = []
        header = {tensor: entry for tensor, entry in header.items() if not tensor.startswith("model.layers.0.mlp.")}
        header |= {tensor.replace("layers.1.", "layers.0."): entry for tensor, entry in header.items() if ".1.mlp." in tensor}
    for tensor, entry in header.items():
        if name in ALL_HEADS:
            config["num_key_value_heads"] = config["num_attention_heads"]
            if re.search(r"\.(k|v)_proj\." + (r"|\.k_norm\." if name == "olmoe" else ""), tensor):
                entry["shape"][0] *= 2
        i = numpy.arange(numpy.prod(entry["shape"]), dtype=numpy.int64)
        n = sum(ord(c) * p for p, c in enumerate(tensor, 1))
        k = ((i * 7919 + n * 104729) % 2**32 >> 7) % 255 - 127
        is_norm = len(entry["shape"]) == 1 and tensor.endswith(".weight")
        values = 1 + (k % 17 - 8) / 64 if is_norm else k / 512
        tensors[tensor] = values.reshape(entry["shape"]).astype(numpy.float32)
    folder = place / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return {"model": {"from": str(folder)}, "checkpoint": {"init_from": str(folder)}}, config["model_type"]


def export(name, place):
    """Trains and exports; the family's name."""
    write_tokenizer(place / "tokenizer")
    letters = random.Random(1)
    (place / "text.txt").write_text(" ".join("".join(letters.choices(string.ascii_lowercase, k=letters.randint(1, 3)))
                                             + letters.choice(WORDS) for _ in range(2000)))
    keys, family = scratch_model(name) if name in NAMES else folder_model(name, place)
    recipe = {
        "data": {"path": f"{place}/text.txt", "format": "text", "tokenizer": f"{place}/tokenizer", "validation_fraction": 0},
        "training": {"seq_length": 32, "global_batch_size": 4, "max_steps": 3},
        "optimizer": {"lr": 0.05 if name in NAMES else 0.003},
        "run": {"output_dir": f"{place}/run"},
        "metrics": {"tensorboard": False},
    } | keys
    recipe["checkpoint"] = {"interval": 3} | recipe.get("checkpoint", {})
    (place / "r.yaml").write_text(json.dumps(recipe))
    sherd("train", place / "r.yaml")
    sherd("export", place / "run", "--to-hf", place / "hf")
    assert json.loads((place / "hf" / "config.json").read_text())["model_type"] == family
    return family


def train_adapter(place):
    """On what was exported: a folder in PEFT's form, beside place/run."""
    recipe = {
        "model": {"from": f"{place}/hf"},
        "adapter": {"type": "lora", "rank": 4, "alpha": 32, "targets": ["q_proj", "v_proj", "down_proj"]},
        "data": {"path": f"{place}/text.txt", "format": "text", "validation_fraction": 0},
        "training": {"seq_length": 32, "global_batch_size": 4, "max_steps": 6},
        "optimizer": {"lr": 0.05},
        "run": {"output_dir": f"{place}/run"},
        "checkpoint": {"init_from": f"{place}/hf", "interval": 6},
        "metrics": {"tensorboard": False},
    }
    (place / "run").rename(place / "first_run")
    (place / "a.yaml").write_text(json.dumps(recipe))
    sherd("train", place / "a.yaml")
    sherd("export", place / "run", "--to-hf", place / "peft")
    return place / "peft"


def ours(place):
    questions = [{"prompt": prompt, "until": [], "max_tokens": TOKENS} for prompt in PROMPTS]
    (place / "q.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    lines = sherd("score", place / "run", "--questions", place / "q.jsonl").splitlines()
    return [json.loads(line)["text"] for line in lines]


def convert(converter, folder, to, *options):
    """In a process of its own: the converter, told which pre-tokenizer it is."""
    converter = pathlib.Path(converter)
    code = f"""
import runpy, sys
sys.path.insert(0, {str(converter.parent)!r})
sys.argv = ["convert", {str(folder)!r}, "--outfile", {str(to)!r}, "--outtype", "f32", *{list(map(str, options))!r}]
import conversion.base
conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
runpy.run_path({str(converter)!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-1500:]


def theirs(gguf, adapter=""):
    """In a process of its own: llama.cpp aborts when it dislikes a file."""
    code = f"""
import json, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = {str(gguf)!r}
adapter = {str(adapter)!r}
if adapter:
    one = xllamacpp.CommonAdapterLoraInfo()
    one.path = adapter
    params.lora_adapters = [one]
params.n_ctx, params.n_parallel, params.warmup = 64, 1, False
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
for prompt in {PROMPTS!r}:
    answer = server.handle_completions({{"prompt": prompt, "n_predict": {TOKENS}, "temperature": 0.0, "cache_prompt": False}})
    print("ANSWER " + json.dumps(answer["choices"][0]["text"] if "choices" in answer else answer), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    answers = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert len(answers) == len(PROMPTS), re.findall(".*ASSERT.*|.* E .*|.*Error.*", done.stderr)
    return answers


def check(name, place):
    family = export("llama2" if name == ADAPTER else name, place)
    convert(sys.argv[2], place / "hf", place / "model.gguf")
    expected, found = ours(place), theirs(place / "model.gguf")
    if name == ADAPTER:
        without, adapter = expected, place / "adapter.gguf"
        convert(pathlib.Path(sys.argv[2]).with_name("convert_lora_to_gguf.py"), train_adapter(place), adapter,
                "--base", place / "hf")
        expected, found = ours(place), theirs(place / "model.gguf", adapter)
        assert all(with_it != text for with_it, text in zip(expected, without)), "the adapter changes nothing"
    assert found == expected, (expected, found)
    longest = max(expected, key=lambda text: len(set(text)))
    print(f"{name}: {family}, {len(PROMPTS)} texts are the same, as {longest!r}", flush=True)


def main():
    names, failed = sys.argv[3:] or [*NAMES, *MIXTURES, ADAPTER], []
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                check(name, pathlib.Path(scratch))
            except Exception as problem:  # all of them are worth knowing
                failed.append(name)
                print(f"{name}: {type(problem).__name__} {str(problem)[-1200:]}", flush=True)
    print(f"{len(names) - len(failed)} of {len(names)} are what they should be")
    sys.exit(len(failed) > 0)


main()

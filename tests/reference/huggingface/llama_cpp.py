"""llama_cpp.py PROGRAM CONVERTER: exports of PROGRAM (sherd) say in llama.cpp what they say in PROGRAM.

For a case of tests/engine/huggingface/scratch.json of each family that llama.cpp knows: PROGRAM trains a tiny model on
words, with a tokenizer, and exports it; CONVERTER, llama.cpp's convert_hf_to_gguf.py, writes a file in f32; llama.cpp
continues prompts by the likeliest tokens. Checked: the texts are those of `sherd score` for the run's checkpoint, whose
likeliest tokens are the same.

llama.cpp knows pre-tokenizers by a hash of what large vocabularies do with a text. Ours is that of GPT-2, which is passed
to the converter; all else is as its makers ship it.

Needs, in an environment with torch and transformers 4 (5 hides a key of GPT-NeoX from this converter), `pip install xllamacpp==2026.10.11549 gguf==0.19.0`; the converter is
in the source package of llama-cpp-python 0.3.36 (tests/reference/tokenizers/prepare.py downloads it).
"""
import json
import pathlib
import random
import string
import subprocess
import sys
import tempfile

import tokenizers

HERE = pathlib.Path(__file__).resolve().parent
CASES = {case["name"]: case
         for case in json.loads((HERE.parents[1] / "engine" / "huggingface" / "scratch.json").read_text())}
# For Phi-3, Gemma 1 and 2 and Nemotron the converter needs a tokenizer.model, for GLM-4 its special tokens. Seed-OSS has
# no biases there.
NAMES = ["gpt2", "llama2", "llama31", "qwen2", "qwen3", "smollm3", "olmo2", "gemma3", "stablelm", "pythia", "starcoder2",
         "granite", "command_r", "arcee", "exaone4"]
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


def export(case, place):
    write_tokenizer(place / "tokenizer")
    letters = random.Random(1)
    (place / "text.txt").write_text(" ".join("".join(letters.choices(string.ascii_lowercase, k=letters.randint(1, 3)))
                                             + letters.choice(WORDS) for _ in range(2000)))
    keys = ", ".join(f"{key}: {json.dumps(value)}" for key, value in (SIZES | case["model"] | CHANGES.get(case["name"], {})).items())
    (place / "r.yaml").write_text(f"""
model: {{{keys}}}
data: {{path: {place}/text.txt, format: text, tokenizer: {place}/tokenizer, validation_fraction: 0}}
training: {{seq_length: 32, global_batch_size: 4, max_steps: 3}}
optimizer: {{lr: 0.05}}
run: {{output_dir: {place}/run}}
checkpoint: {{interval: 3}}
metrics: {{tensorboard: false}}
""")
    sherd("train", place / "r.yaml")
    sherd("export", place / "run", "--to-hf", place / "hf")
    assert json.loads((place / "hf" / "config.json").read_text())["model_type"] == case["type"]


def ours(place):
    questions = [{"prompt": prompt, "until": [], "max_tokens": TOKENS} for prompt in PROMPTS]
    (place / "q.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    lines = sherd("score", place / "run", "--questions", place / "q.jsonl").splitlines()
    return [json.loads(line)["text"] for line in lines]


def convert(converter, folder, to):
    """In a process of its own: the converter, told which pre-tokenizer it is."""
    code = f"""
import sys
sys.path.insert(0, {str(pathlib.Path(converter).parent)!r})
sys.argv = ["convert", {str(folder)!r}, "--outfile", {str(to)!r}, "--outtype", "f32"]
import conversion.base
conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
import convert_hf_to_gguf
convert_hf_to_gguf.main()
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-1500:]


def theirs(gguf):
    """In a process of its own: llama.cpp aborts when it dislikes a file."""
    code = f"""
import json, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = {str(gguf)!r}
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
    assert len(answers) == len(PROMPTS), done.stderr[-1500:]
    return answers


def main():
    failed = []
    for name in sys.argv[3:] or NAMES:
        with tempfile.TemporaryDirectory() as scratch:
            place = pathlib.Path(scratch)
            try:
                export(CASES[name], place)
                convert(sys.argv[2], place / "hf", place / "model.gguf")
                expected, found = ours(place), theirs(place / "model.gguf")
                assert found == expected, (expected, found)
                print(f"{name}: {CASES[name]['type']}, {len(PROMPTS)} texts are the same, as {max(expected, key=lambda text: len(set(text)))!r}", flush=True)
            except Exception as problem:  # all of them are worth knowing
                failed.append(name)
                print(f"{name}: {type(problem).__name__} {str(problem)[-1200:]}", flush=True)
    print(f"{len(sys.argv[3:] or NAMES) - len(failed)} of {len(sys.argv[3:] or NAMES)} are what they should be")
    sys.exit(len(failed) > 0)


main()

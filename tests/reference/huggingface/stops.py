"""stops.py PROGRAM: where PROGRAM's (sherd's) models stop, `transformers` stops.

Tiny Llamas with byte tokenizers learn a few conversations by heart: from a folder with and without generation_config.json, with
a chat template that ends answers with the folder's end token, with another special token that it has, or with one that the
run adds; from random weights with a tokenizer; whole and as an adapter. Each run is exported. Checked: `sherd chat` of the run
and `transformers`' generate of the export say the same and stop before the limit, at the same token.

Needs `./dev deps oracle`.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import peft
import tokenizers
import torch
import transformers

program = sys.argv[1]
CHATS = [("aa", "bc"), ("ab", "d"), ("ba", "cab"), ("bb", "")]
LIMIT = 24


def sherd(*words, text=None):
    done = subprocess.run([program, *map(str, words)], input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, (words, done.stderr[-600:])
    return done.stdout


def write_tokenizer(folder, specials, end, template):
    folder.mkdir(parents=True, exist_ok=True)
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(sorted(letters))}, []))
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    bpe.add_special_tokens(specials)
    bpe.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"eos_token": end, "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}))
    (folder / "chat_template.jinja").write_text(template)
    return bpe.get_vocab_size()


def template(stop):
    return ("{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + " + stop + " }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")


def write_model(folder, vocab, end_id, generation):
    config = transformers.LlamaConfig(vocab_size=vocab, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                      num_attention_heads=4, max_position_embeddings=64, bos_token_id=None,
                                      eos_token_id=end_id, pad_token_id=None)
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    if not generation:
        (folder / "generation_config.json").unlink()


# name: (special tokens of the tokenizer, what the template writes after a message, tokens that the run adds)
FORMS = {
    "end_token": (["<|user|>", "<|assistant|>", "</s>"], "eos_token", []),
    "other_token": (["<|user|>", "<|assistant|>", "</s>", "<|im_end|>"], "'<|im_end|>'", []),
    "added_token": (["<|user|>", "<|assistant|>", "</s>"], "'<|im_end|>'", ["<|im_end|>"]),
}


def train(place, model, tokens, adapter):
    add = f", add_special_tokens: {json.dumps(tokens)}" if tokens else ""
    if adapter:
        saved = "[embed_tokens, lm_head]" if tokens else "[lm_head]"
        adapter = f"adapter: {{type: lora, rank: 8, alpha: 32, targets: [all-linear], modules_to_save: {saved}}}"
    (place / "r.yaml").write_text(f"""
model: {{{model}{add}}}
{adapter or ''}
data: {{path: {place}/chats.jsonl, format: chat, validation_fraction: 0, tokenizer: {place}/tokenizer}}
training: {{seq_length: 32, global_batch_size: 4, max_steps: 150, train_on: assistant}}
optimizer: {{lr: 0.01}}
run: {{output_dir: {place}/run}}
checkpoint: {{interval: 150{', init_from: ' + str(place / 'base') if 'from' in model else ''}}}
metrics: {{tensorboard: false}}
""")
    sherd("train", place / "r.yaml")


def check(name, place, form, scratch, generation, adapter):
    specials, stop, tokens = FORMS[form]
    size = write_tokenizer(place / "tokenizer", specials, "</s>", template(stop))
    (place / "chats.jsonl").write_text("".join(json.dumps({"messages": [
        {"role": "user", "content": said}, {"role": "assistant", "content": answer}]}) + "\n" for said, answer in CHATS))
    if scratch:
        model = ("num_layers: 2, hidden_size: 64, num_attention_heads: 4, max_seq_length: 64, "
                 f"vocab_size: {size + len(tokens)}")
    else:
        end = specials.index("</s>") + size - len(specials)
        write_model(place / "base", size, end, generation)
        write_tokenizer(place / "base", specials, "</s>", template("eos_token"))
        model = f"from: {place}/base"
    train(place, model, tokens, adapter)
    sherd("export", place / "run", "--to-hf", place / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "hf")
    if adapter:
        base = transformers.AutoModelForCausalLM.from_pretrained(place / "base", dtype=torch.float32)
        base.resize_token_embeddings(size + len(tokens))
        served = peft.PeftModel.from_pretrained(base, place / "hf")
        served.generation_config = transformers.GenerationConfig.from_pretrained(place / "hf")
        served.base_model.model.generation_config = served.generation_config
    else:
        served = transformers.AutoModelForCausalLM.from_pretrained(place / "hf", dtype=torch.float32)
    for said, answer in CHATS:
        ours = sherd("chat", place / "run", "--temperature", 0, "--tokens", LIMIT, text=said + "\n").rstrip("\n")
        again = sherd("chat", place / "hf", "--temperature", 0, "--tokens", LIMIT, text=said + "\n").rstrip("\n")
        ids = tokenizer.apply_chat_template([{"role": "user", "content": said}], add_generation_prompt=True,
                                            return_tensors="pt", return_dict=True)["input_ids"]
        with torch.no_grad():
            out = served.eval().generate(input_ids=ids, max_new_tokens=LIMIT, do_sample=False, pad_token_id=0)
        new = out[0, ids.shape[1]:].tolist()
        theirs = tokenizer.decode(new, skip_special_tokens=True)
        last = tokenizer.convert_ids_to_tokens(new[-1])
        expected = "</s>" if stop == "eos_token" else "<|im_end|>"
        assert ours == again == theirs == answer and len(new) < LIMIT and last == expected, (
            name, said, answer, ours, again, theirs, len(new), last)
    print(f"{name}: stops at {expected}; {(place / 'hf' / 'generation_config.json').read_text().split()}", flush=True)


def main():
    failed = 0
    cases = [(form, scratch, generation, adapter) for form in FORMS for scratch, generation, adapter in
             [(False, True, False), (False, False, False), (True, False, False), (False, False, True)]
             if not (scratch and FORMS[form][2])]
    for form, scratch, generation, adapter in cases:
        name = f"{form}{' from scratch' if scratch else ''}{' with generation_config' if generation else ''}" \
               f"{' as an adapter' if adapter else ''}"
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(name, pathlib.Path(folder), form, scratch, generation, adapter)
            except Exception as problem:  # all of them are worth knowing
                failed += 1
                print(f"{name}: {type(problem).__name__} {str(problem)[:600]}", flush=True)
    print(f"{len(cases) - failed} of {len(cases)} stop where they should")
    sys.exit(failed > 0)


main()

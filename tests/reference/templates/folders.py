"""Writes tests/engine/data/chat/folders.json: small tokenizer folders, and what transformers makes of them.

    build/oracle-venv/bin/python tests/reference/templates/folders.py

Each case is a folder's files, the special tokens that transformers finds in it, and the text of two rows, one
of them with tools, or the first word of its error. The tokenizer.json of all is a few tokens; `tokens` names them.
"""

import json
import os
import pathlib
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "critical"
import transformers

ADDED = ["<s>", "</s>", "<unk>", "<pad>", "<image>", "<|endoftext|>", "<bos>", "<eos>"]
ROW = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "name": None}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
SHOWS = (
         "b={{ bos_token }} e={{ eos_token }} u={{ unk_token }} p={{ pad_token }} c={{ cls_token }} i={{ image_token }}"
         " {{ bos_token is defined }}{{ pad_token is defined }}{% for m in messages %}"
         "{{ m.content }}{{ m.name is defined }};{% endfor %}")


def named(name):
    return name + ":{{ tools | length if tools else 0 }}{% for m in messages %}{{ m.content }}{% endfor %}"


def config(**more):
    return {"tokenizer_class": "PreTrainedTokenizerFast", **more}


LIST = [{"name": "default", "template": named("D")}, {"name": "tool_use", "template": named("T")},
        {"name": "rag", "template": named("R")}]
MAP = "special_tokens_map.json"
CONFIG = "tokenizer_config.json"
DECODER = {"added_tokens_decoder": {"0": {"content": "<s>", "lstrip": False, "normalized": False, "rstrip": False,
                                          "single_word": False, "special": True}}}
CASES = {
    "nothing is named": {CONFIG: config(chat_template=SHOWS)},
    "the config names them": {CONFIG: config(chat_template=SHOWS, bos_token="<s>", eos_token="</s>", pad_token="<pad>")},
    "names as objects": {CONFIG: config(chat_template=SHOWS, eos_token={"content": "</s>", "__type": "AddedToken",
                                                                        "lstrip": False, "rstrip": False,
                                                                        "normalized": False, "single_word": False})},
    "only the map names them": {CONFIG: config(chat_template=SHOWS),
                                MAP: {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}},
    "the map overrides the config": {CONFIG: config(chat_template=SHOWS, eos_token="<s>", pad_token="<pad>"),
                                     MAP: {"eos_token": "</s>"}},
    "a null of the map takes away": {CONFIG: config(chat_template=SHOWS, eos_token="</s>"), MAP: {"eos_token": None}},
    "a null of the config is filled by the map": {CONFIG: config(chat_template=SHOWS, eos_token=None),
                                                  MAP: {"eos_token": {"content": "</s>", "lstrip": False,
                                                                      "rstrip": False, "normalized": False,
                                                                      "single_word": False}}},
    "a decoder hides the map": {CONFIG: config(chat_template=SHOWS, bos_token="<s>", **DECODER),
                                MAP: {"eos_token": "</s>", "bos_token": "<unk>"}},
    "tokens of the model's own": {CONFIG: config(chat_template=SHOWS, image_token="<image>")},
    "named extra tokens": {CONFIG: config(chat_template=SHOWS, extra_special_tokens={"image_token": "<image>"})},
    "without a config": {"config.json": {"model_type": "llama"}, MAP: {"eos_token": "</s>"}, "chat_template.jinja": SHOWS},
    **{f"the class {name}": {CONFIG: {"tokenizer_class": name, "chat_template": SHOWS}}
       for name in ("GPT2TokenizerFast", "Qwen2Tokenizer", "LlamaTokenizerFast")},
    **{f"the model's type {name}": {"config.json": {"model_type": name}, "chat_template.jinja": SHOWS}
       for name in ("gpt2", "qwen3", "phi", "llama")},
    "a class and nulls": {CONFIG: {"tokenizer_class": "GPT2Tokenizer", "eos_token": None, "chat_template": SHOWS}},
    "a text": {CONFIG: config(chat_template=named("X"))},
    "a list": {CONFIG: config(chat_template=LIST)},
    "a list without tool_use": {CONFIG: config(chat_template=LIST[:1])},
    "a list without default": {CONFIG: config(chat_template=LIST[1:])},
    "a name twice": {CONFIG: config(chat_template=LIST[:1] + [{"name": "default", "template": named("E")}])},
    "a file before the config": {CONFIG: config(chat_template=LIST), "chat_template.jinja": named("F")},
    "a file and another": {CONFIG: config(), "chat_template.jinja": named("F"),
                           "additional_chat_templates/tool_use.jinja": named("G")},
    "another file alone": {CONFIG: config(chat_template=named("X")),
                           "additional_chat_templates/tool_use.jinja": named("G")},
    "default among the others": {CONFIG: config(), "additional_chat_templates/default.jinja": named("H")},
    "both a file and default among the others": {CONFIG: config(), "chat_template.jinja": named("F"),
                                                 "additional_chat_templates/default.jinja": named("H")},
}


def tokenizer_json():
    vocabulary = {token: i for i, token in enumerate(ADDED)}
    vocabulary.update({chr(c): len(vocabulary) + i for i, c in enumerate(range(33, 127))})
    added = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, token in enumerate(ADDED)]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "vocab": vocabulary, "merges": []}}


def rendered(tokenizer, tools):
    try:
        return {"text": tokenizer.apply_chat_template(ROW, tools=tools, tokenize=False)}
    except Exception as error:
        return {"error": type(error).__name__}


def answer(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, content in {"tokenizer.json": tokenizer_json(), **files}.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        return {"files": files, "special": dict(tokenizer.special_tokens_map), "without_tools": rendered(tokenizer, None),
                "with_tools": rendered(tokenizer, TOOLS)}


if __name__ == "__main__":
    out = pathlib.Path(__file__).parents[2] / "engine/data/chat/folders.json"
    cases = {name: answer(files) for name, files in CASES.items()}
    json.dump({"transformers": transformers.__version__, "tokenizer": tokenizer_json(), "row": ROW, "tools": TOOLS,
               "cases": cases}, out.open("w"), indent=1, ensure_ascii=False)
    for name, case in cases.items():
        print(name, case["special"], case["without_tools"], case["with_tools"])

"""Writes tests/engine/data/chat/forms.json: rows of chat data, and what TRL trains on.

    build/oracle-venv/bin/python tests/reference/templates/forms.py

Each row gets the text that TRL's SFT makes of it, and the parts of it that have a loss: those that the template calls
generated, or the completion. Both with the tokenizer of folders.py, in which a token is a character.
"""

import copy
import json
import os
import pathlib
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "critical"
import transformers
import trl
from trl.data_utils import apply_chat_template, is_conversational, maybe_convert_to_chatml

import folders

TEMPLATE = ("{% for t in tools or [] %}<{{ t.function.name }}>{% endfor %}{{ mood }}"
            "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{% generation %}"
            "{{ m.content }}{% for c in m.tool_calls or [] %}({{ c.function.name }}){% endfor %};"
            "{% endgeneration %}{% else %}{{ m.content }};{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}[assistant]{% endif %}")
MESSAGES = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALL = {"type": "function", "function": {"name": "f", "arguments": {}}}
ROWS = [
    {"messages": MESSAGES},
    {"messages": [{"role": "system", "content": "S"}, *MESSAGES, *MESSAGES]},
    {"messages": MESSAGES, "tools": TOOLS},
    {"messages": MESSAGES, "tools": json.dumps(TOOLS)},
    {"messages": MESSAGES, "chat_template_kwargs": {"mood": "calm"}},
    {"messages": [{**MESSAGES[0], "name": None, "tool_calls": None}, MESSAGES[1]], "tools": None},
    {"messages": [MESSAGES[0], {"role": "assistant", "content": None, "tool_calls": [CALL]},
                  {"role": "tool", "content": "r"}, MESSAGES[1]]},
    {"conversations": MESSAGES},
    {"conversations": [{"from": "user", "value": "q"}, {"from": "assistant", "value": "a"}]},
    {"prompt": MESSAGES[:1], "completion": MESSAGES[1:]},
    {"prompt": MESSAGES[:1], "completion": MESSAGES[1:], "tools": TOOLS},
    {"prompt": "q:", "completion": "a"},
    {"text": "some-text"},
]


def answer(row, tokenizer):
    """[text, whether it has a loss] one after another."""
    example = {key: value for key, value in maybe_convert_to_chatml(copy.deepcopy(row)).items() if value is not None}
    tools = example.pop("tools", None)
    tools = json.loads(tools) if isinstance(tools, str) else tools
    if not is_conversational(example):
        prompt, completion = example.get("prompt", ""), example.get("completion", example.get("text"))
        return [[prompt, False], [completion + tokenizer.eos_token, True]]
    if "prompt" in example:
        both = apply_chat_template(example, tokenizer, tools=tools)
        return [[both["prompt"], False], [both["completion"], True]]
    encoded = tokenizer.apply_chat_template(example["messages"], tools=tools, return_dict=True,
                                            return_assistant_tokens_mask=True, **example.get("chat_template_kwargs", {}))
    parts = []
    for token, has_loss in zip(encoded["input_ids"], encoded["assistant_masks"]):
        text = tokenizer.decode([token])
        if parts and parts[-1][1] == bool(has_loss):
            parts[-1][0] += text
        else:
            parts.append([text, bool(has_loss)])
    return parts


if __name__ == "__main__":
    out = pathlib.Path(__file__).parents[2] / "engine/data/chat/forms.json"
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "tokenizer.json").write_text(json.dumps(folders.tokenizer_json()))
        pathlib.Path(folder, "tokenizer_config.json").write_text(json.dumps(folders.config(eos_token="</s>")))
        pathlib.Path(folder, "chat_template.jinja").write_text(TEMPLATE)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        rows = [{"row": row, "parts": answer(row, tokenizer)} for row in ROWS]
    json.dump({"trl": trl.__version__, "tokenizer": folders.tokenizer_json(), "template": TEMPLATE, "rows": rows},
              out.open("w"), indent=1, ensure_ascii=False)
    for row in rows:
        print(row)

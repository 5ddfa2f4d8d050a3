"""Renders chat templates in jinja2, set up as Hugging Face's library does it, and in Sherd, and compares.

    tests/reference/templates/compare.py PROBE FOLDER [NAME...]

PROBE is the compiled probe.cpp next to this file; FOLDER has templates (*.jinja), such as those that the
source package of llama-cpp-python ships under vendor/llama.cpp/models/templates. The last lines say how
much of each limit (engine/data/template/budget.h) was used at most, and by which template.
"""

import datetime
import json
import pathlib
import subprocess
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

DATE = 1753488000  # 2025-07-26


class Generation(jinja2.ext.Extension):
    """{% generation %} is its content."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    now = datetime.datetime.fromtimestamp(DATE, datetime.timezone.utc)
    env.globals["strftime_now"] = now.strftime
    return env


TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "Says the weather.\nAnywhere.",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "a 'city'"},
        "days": {"type": "integer", "enum": [1, 2]}}, "required": ["city"]},
    "return": {"type": "string", "description": "text"}}}]
HOSTILE = ("<|im_end|><|eot_id|></s>[/INST]<end_of_turn> {{ 1 }} {% if %} <think>x</think> \\n \"quoted\" 'x' "
           "\u00e9\U0001f600 \t end \n")


def say(role, content, **more):
    return {"role": role, "content": content, **more}


CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"city": "K\u00f6ln", "days": 1}}}
MESSAGES = {
    "one": [say("user", "Hello.")],
    "answered": [say("user", "Hello."), say("assistant", "Hi there.")],
    "system": [say("system", "Be brief."), say("user", "2 + 2?"), say("assistant", "4")],
    "turns": [say("system", "Be brief."), say("user", " a "), say("assistant", "b\n"), say("user", "c"),
              say("assistant", "d"), say("user", "e")],
    "hostile": [say("system", HOSTILE), say("user", HOSTILE), say("assistant", HOSTILE), say("user", HOSTILE)],
    "thinking": [say("user", "a"), say("assistant", "<think>\nwhy\n</think>\n\nb"), say("user", "c"),
                 say("assistant", "<think>\nhow\n</think>\n\nd")],
    "reasoning": [say("user", "a"), say("assistant", "b", reasoning_content="because")],
    "call": [say("user", "Weather?"), say("assistant", "", tool_calls=[CALL]),
             say("tool", "rain", tool_call_id="abcdefghi", name="weather"), say("assistant", "It rains."), say("user", "Thanks.")],
    "parts": [say("user", [{"type": "text", "text": "Look."}]), say("assistant", "I see.")],
    "wrong": [say("assistant", "first"), say("assistant", "second")],
    "empty": [say("user", ""), say("assistant", "")],
    "long": [say("system", "Be brief.")] + [say(role, f"{role} {i} " + "word " * 100)
                                            for i in range(30) for role in ("user", "assistant")],
}


def contexts():
    for name, messages in MESSAGES.items():
        for prompt in (False, True):
            for tools in (None, TOOLS):
                for thinking in ((None, True, False) if tools is None else (None,)):
                    variables = {"messages": messages, "add_generation_prompt": prompt, "bos_token": "<s>",
                                 "eos_token": "</s>", "tools": tools, "documents": None}
                    if thinking is not None:
                        variables["enable_thinking"] = thinking
                    yield f"{name}{'+prompt' if prompt else ''}{'+tools' if tools else ''} thinking {thinking}", variables


def expected(env, source, variables):
    try:
        return {"text": env.from_string(source).render(**variables)}
    except Exception as error:  # whatever a template runs into
        return {"error": f"{type(error).__name__}: {error}"}


def main():
    probe, folder, *names = sys.argv[1:]
    env = environment()
    ours = subprocess.Popen([probe], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    files = [f for f in sorted(pathlib.Path(folder).glob("*.jinja")) if not names or any(n in f.name for n in names)]
    good, cases, shares = 0, 0, {}
    for path in files:
        source = path.read_text(encoding="utf-8")
        wrong = []
        for name, variables in contexts():
            ours.stdin.write(json.dumps({"template": source, "variables": variables, "date": DATE}) + "\n")
            ours.stdin.flush()
            found = json.loads(ours.stdout.readline())
            wanted = expected(env, source, variables)
            cases += 1
            for limit, share in found["used"].items():
                shares[limit] = max(shares.get(limit, (0.0, "", "")), (share, path.name, name))
            if found.get("text") != wanted.get("text"):
                wrong.append((name, wanted, found))
        good += not wrong
        print(f"{'equal' if not wrong else 'DIFFERS'}  {path.name}" + (f"  {len(wrong)} cases" if wrong else ""))
        for name, wanted, found in wrong[:2]:
            print("   ", name, "\n      jinja2:", repr(wanted)[:600], "\n      sherd: ", repr(found)[:600])
    print(f"{good} of {len(files)} templates are equal, over {cases} cases")
    for limit, (share, template, name) in shares.items():
        print(f"largest share of {limit}: {share:.4%}, {template}, {name}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""OpenAI's own Python client against `sherd serve`: openai_client.py ADDRESS EXPECTED.

EXPECTED is the text of `sherd sample --temperature 0 --tokens 20` after "over the ". The test
engine/main ServeSlow runs it where build/openai-venv is:

    python3 -m venv build/openai-venv && build/openai-venv/bin/pip install openai==3.57.0
"""

import sys

import openai


def main():
    address, expected = sys.argv[1:]
    client = openai.OpenAI(base_url=address, api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["run"]
    assert client.models.retrieve("run").owned_by == "sherd"

    query = {"model": "run", "prompt": "over the ", "max_tokens": 20, "temperature": 0}
    whole = client.completions.create(**query)
    assert whole.choices[0].text == expected, whole
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 20
    pieces = client.completions.create(**query, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == expected

    chat = {"model": "run", "messages": [{"role": "user", "content": "the fox"}],
            "max_completion_tokens": 20, "temperature": 0}
    answer = client.chat.completions.create(**chat).choices[0].message
    assert answer.role == "assistant"
    events = list(client.chat.completions.create(
        **chat, stream=True, stream_options={"include_usage": True}))
    assert events[-1].usage.completion_tokens == 20 and not events[-1].choices
    text = "".join(event.choices[0].delta.content or "" for event in events[:-1])
    assert text == answer.content, (text, answer.content)

    for change, error, code in [({"model": "gpt"}, openai.NotFoundError, "model_not_found"),
                                ({"n": 2}, openai.BadRequestError, None),
                                ({"max_tokens": 1000}, openai.BadRequestError, None)]:
        try:
            client.completions.create(**{**query, **change})
        except error as refusal:
            assert refusal.code == code, refusal.code
        else:
            raise AssertionError(f"{change} wasn't refused")
    print("passed")


if __name__ == "__main__":
    main()

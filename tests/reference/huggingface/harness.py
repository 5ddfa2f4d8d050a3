"""harness.py PROGRAM FOLDER: lm-evaluation-harness asks sherd and transformers the same requests.

Log-likelihoods of continuations, of whole texts (some longer than the context) and texts that are generated: the
same within f32's rounding, by the harness's own code on both sides. Needs `./dev deps oracle` and
`build/oracle-venv/bin/pip install lm_eval==0.4.13`; run it with build/oracle-venv/bin/python.
"""
import pathlib
import sys

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[3] / "recipes" / "lm_eval"))
from sherd_lm import SherdLM  # noqa: E402

CONTEXT = 256
PAIRS = [
    ("The capital of France is", " Paris"),
    ("The capital of France is", " London, which lies on the Thames"),
    ("The capital of France is ", "Paris"),
    ("", "An empty context has a beginning all the same."),
    ("Question: What do bees make?\nAnswer:", " honey"),
    ("Question: What do bees make?\nAnswer:", " wax and honey"),
    ("Question: What do bees make?\nAnswer:", " milk"),
    ("long " * 400, "and so on"),
    ("naïve café —", " déjà vu €"),
]
TEXTS = ["A short text.", "It was the best of times, it was the worst of times. " * 60, "x = 1\nprint(x)\n" * 3]
PROMPTS = [
    ("1, 2, 3,", {"until": ["\n"], "max_gen_toks": 12}),
    ("Once upon a time", {"until": [".", "!"], "max_gen_toks": 30}),
]


def instances(kind, arguments):
    return [Instance(request_type=kind, doc={}, arguments=args, idx=i) for i, args in enumerate(arguments)]


def main():
    program, folder = sys.argv[1:]
    ours = SherdLM(checkpoint=folder, program=program, context=CONTEXT)
    theirs = HFLM(pretrained=folder, dtype="float32", device="cpu", max_length=CONTEXT, batch_size=1)
    worst, wrong = 0.0, 0
    answers = [model.loglikelihood(instances("loglikelihood", PAIRS)) for model in (ours, theirs)]
    for pair, (a, a_greedy), (b, b_greedy) in zip(PAIRS, *answers):
        worst = max(worst, abs(a - b))
        if abs(a - b) > 1e-3 or a_greedy != b_greedy:
            wrong += 1
            print(f"{pair[0][-40:]!r} {pair[1]!r}: {a} {a_greedy}, transformers {b} {b_greedy}")
    rolling = [model.loglikelihood_rolling(instances("loglikelihood_rolling", [(text,) for text in TEXTS]))
               for model in (ours, theirs)]
    for text, a, b in zip(TEXTS, *rolling):
        worst = max(worst, abs(a - b) / max(1.0, len(text) / 100))
        if abs(a - b) > 1e-3 * max(1.0, len(text) / 100):
            wrong += 1
            print(f"{text[:40]!r}: {a}, transformers {b}")
    texts = [model.generate_until(instances("generate_until", PROMPTS)) for model in (ours, theirs)]
    for (prompt, _), a, b in zip(PROMPTS, *texts):
        if a != b:
            wrong += 1
            print(f"{prompt!r}: {a!r}, transformers {b!r}")
    print(f"{len(PAIRS) + len(TEXTS) + len(PROMPTS) - wrong} of {len(PAIRS) + len(TEXTS) + len(PROMPTS)} equal, "
          f"log-likelihoods within {worst:.1e}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()

"""sherd as a model of lm-evaluation-harness (pip install lm_eval; torch isn't needed).

    python recipes/lm_eval/sherd_lm.py --model sherd --model_args checkpoint=runs/mine,program=build/cpu/sherd \
        --tasks arc_easy,hellaswag

takes the harness's own options, --apply_chat_template among them. checkpoint is a run, a checkpoint or a Hugging Face folder; program is sherd where it
isn't on the PATH; ranks and context are passed on. Every request is a JSON line to `sherd score`, which answers in
order; the meaning of the lines is in engine/inference/scoring.h.
"""
import json
import subprocess
import threading

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model


@register_model("sherd")
class SherdLM(LM):
    def __init__(self, checkpoint, program="sherd", ranks=None, context=None, **_):
        super().__init__()
        self._checkpoint = checkpoint
        self._command = [program, "score", str(checkpoint)]
        if ranks is not None:
            self._command += ["--ranks", str(ranks)]
        if context is not None:
            self._command += ["--context", str(context)]
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def _ask(self, questions):
        """Written by a thread of its own: a pipe holds only so much, both ways."""
        def write():
            for question in questions:
                self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        answers = []
        for _ in questions:
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError(f"{' '.join(self._command)} ended with {self._process.wait()}; its message is above")
            answers.append(json.loads(line))
        writer.join()
        return answers

    @property
    def tokenizer_name(self):
        """By which the harness tells apart what it keeps of rendered prompts."""
        return str(self._checkpoint).replace("/", "__")

    def chat_template(self, chat_template=False):
        """The model's own template is used; which of several isn't for the harness to say."""
        if isinstance(chat_template, str):
            raise ValueError("the model's own chat template is used; --apply_chat_template takes no name")
        return "the model's own" if chat_template else ""

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        question = {"messages": chat_history, "add_generation_prompt": add_generation_prompt}
        return self._ask([question])[0]["prompt"]

    def loglikelihood(self, requests, disable_tqdm=False):
        questions = [{"context": context, "continuation": continuation}
                     for context, continuation in (request.args for request in requests)]
        return [(answer["log_likelihood"], answer["is_greedy"]) for answer in self._ask(questions)]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        questions = [{"text": request.args[0]} for request in requests]
        return [answer["log_likelihood"] for answer in self._ask(questions)]

    def generate_until(self, requests, disable_tqdm=False):
        questions = []
        for prompt, options in (request.args for request in requests):
            question = {"prompt": prompt, "until": options.get("until", [])}
            if "max_gen_toks" in options:
                question["max_tokens"] = options["max_gen_toks"]
            if options.get("do_sample", False):
                question |= {key: options[key] for key in ("temperature", "top_k", "top_p") if key in options}
            questions.append(question)
        return [answer["text"] for answer in self._ask(questions)]


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()

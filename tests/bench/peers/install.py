"""Puts PyTorch for the CPU into a private virtual environment: build/peers-venv.

PyPI's wheel for Linux is linked against CUDA's libraries, 3 GB more that a CPU run never calls. They
are left out; empty libraries of the same names, made here, take their place, so that the wheel loads
and finds no CUDA device. What runs on the CPU (libtorch_cpu, oneDNN, MKL, libgomp, gloo) is the
wheel's own, untouched.
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import venv

TORCH = "2.15.0"
# Its pure-Python needs (torch.compile included) and numpy, to hand tensors over.
PACKAGES = [f"torch=={TORCH}", "typing_extensions==4.16.0", "filelock", "sympy==1.14.0", "mpmath==1.3.0",
            "networkx==3.6.1", "jinja2==3.1.6", "MarkupSafe", "fsspec", "numpy", "setuptools==81.0.0"]
SIZE = "1.4 GB on disk (a download of 0.5 GB)"

# What a stub answers: "no CUDA-capable device". Those that return text must return text.
TEXTS = ("cudaGetErrorString", "cudaGetErrorName", "ncclGetErrorString", "cudnnGetErrorString",
         "cublasGetStatusString", "cusparseGetErrorString", "ncclGetLastError", "nvrtcGetErrorString")


def text_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def make_stubs(lib):
    """Makes what the wheel's libraries need and PyPI would bring in CUDA packages: functions that answer "no device"."""
    needed, defined, wanted, home = set(), set(), {}, {}
    for library in sorted(lib.glob("*.so*")):
        needed.update(re.findall(r"NEEDED.*\[(.*)\]", text_of("readelf", "-d", library)))
        for file, names in re.findall(r"File: (\S+) .*\n((?:.*Name: .*\n)*)", text_of("readelf", "-VW", library)):
            home.update({version: file for version in re.findall(r"Name: (\S+)", names)})
        for kind, symbol in re.findall(r" (\w) (\S+)$", text_of("nm", "-D", library), re.MULTILINE):
            name, _, version = symbol.partition("@")
            if kind == "U":
                wanted[name] = version
            elif kind.isupper():
                defined.add(name)
    wanted = {n: v for n, v in wanted.items() if n not in defined and n.startswith(("cu", "__cu", "nv", "nccl"))}
    missing = [n for n in sorted(needed) if n.startswith(("libcu", "libnv", "libnccl")) and not (lib / n).exists()]
    for library in missing:
        # A symbol's version names its library; those without one may stand anywhere: in the runtime's.
        mine = sorted(n for n, v in wanted.items()
                      if home.get(v) == library or (not v and library.startswith("libcudart")))
        versions = {v: [n for n in mine if wanted[n] == v] for v, file in home.items() if file == library}
        source = "".join(
            f'const char* {n}() {{ return "no CUDA"; }}\n' if n in TEXTS else f"long {n}() {{ return 100; }}\n"
            for n in mine)
        with tempfile.NamedTemporaryFile("w", suffix=".map") as script:
            for version, names in versions.items():
                script.write(f"{version} {{ {' '.join(n + ';' for n in names)} }};\n")
            script.flush()
            scripted = [f"-Wl,--version-script={script.name}"] if versions else []
            subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-w", "-x", "c", "-", "-o", lib / library,
                            f"-Wl,-soname,{library}", *scripted], check=True, input=source, text=True)


def main():
    place = pathlib.Path(sys.argv[1])
    stamp = place / f"torch-{TORCH}.installed"
    if stamp.exists():
        return
    print(f"peers: PyTorch {TORCH} goes into {place}: {SIZE}", flush=True)
    venv.create(place, with_pip=True, clear=True)
    python = place / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", *PACKAGES], check=True)
    [lib] = place.glob("lib/python*/site-packages/torch/lib")
    make_stubs(lib)
    subprocess.run([python, "-c", "import torch; assert not torch.cuda.is_available()"], check=True)
    stamp.touch()


main()

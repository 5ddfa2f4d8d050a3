"""install.py FOLDER REQUIREMENTS: a private virtual environment with PyTorch for the CPU and what else
REQUIREMENTS lists. Every package is listed there with its version; nothing is resolved, so the same
file always gives the same environment. What can't be had is an error, and leaves no environment.

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
        # A symbol's version names its library; those without one may be in any library: in the runtime's.
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


def packages_of(requirements):
    """The file's packages, those of the files it names with -r first."""
    packages = []
    for line in requirements.read_text().splitlines():
        line = line.split("#")[0].strip()
        if line.startswith("-r "):
            packages += packages_of(requirements.parent / line[3:].strip())
        elif line and not re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.+]+", line):
            sys.exit(f"{requirements}: {line}: every package has its version (NAME==VERSION).")
        elif line:
            packages.append(line)
    return packages


def main():
    place, requirements = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    packages = packages_of(requirements)
    stamp = place / "installed.txt"
    if stamp.exists() and stamp.read_text().split() == packages:
        return
    print(f"{place}: installing {len(packages)} Python packages, PyTorch among them (a download of 0.5 GB or more)",
          flush=True)
    venv.create(place, with_pip=True, clear=True)
    python = place / "bin" / "python"
    for number, package in enumerate(packages, 1):
        print(f"  {number} of {len(packages)}: {package}", flush=True)
        if subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:",
                           package]).returncode != 0:
            sys.exit(f"{place}: {package} can't be installed; see above.")
    [lib] = place.glob("lib/python*/site-packages/torch/lib")
    make_stubs(lib)
    subprocess.run([python, "-c", "import torch; assert not torch.cuda.is_available()"], check=True)
    check = subprocess.run([python, "-m", "pip", "check"], capture_output=True, text=True).stdout
    # What the wheel of PyTorch would bring for GPUs is left out on purpose.
    amiss = [line for line in check.splitlines()
             if "requires" in line and not re.search(r"requires (nvidia|cuda|triton)", line)
             or "which you have" in line or "has requirement" in line]
    if amiss:
        sys.exit(f"{requirements}: the versions don't fit together:\n" + "\n".join(amiss))
    stamp.write_text("\n".join(packages) + "\n")


main()

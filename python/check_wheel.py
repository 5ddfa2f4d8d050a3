"""check_wheel.py WHEEL: installs a wheel into a new virtual environment, trains the quickstart recipe there for a
few steps, and runs the examples of docs/library.md and python/tests."""
import os
import pathlib
import subprocess
import sys
import tempfile

from build_wheel import NVIDIA

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
IMPORT_TIME = """
import time
begin = time.perf_counter()
import sherd
print(f"import sherd: {time.perf_counter() - begin:.3f} s")
"""
QUICKSTART = """
import sys
import sherd
recipe = sherd.Recipe.load(sys.argv[1]).set("data.path", sys.argv[2]).set("run.output_dir", sys.argv[3])
trainer = sherd.Trainer(recipe, on_message=print)
for _ in range(3):
    print(trainer.step())
print(trainer.save())
"""


def run(*command, **options):
    print("+", *["PROGRAM" if "\n" in str(word) else word for word in command], file=sys.stderr)
    subprocess.run([str(word) for word in command], check=True, **options)


def check_symbols(package):
    """A module exports its entry, and nothing of what it is made of."""
    modules = list(package.glob("_sherd*.so"))
    assert modules, package
    for module in modules:
        names = subprocess.run(["nm", "-D", "--defined-only", module], check=True, capture_output=True, text=True).stdout
        assert [line.split()[-1] for line in names.splitlines()] == ["PyInit__sherd"], (module, names)


# The program's libraries, as its loader finds them.
TRACE = """
import os
import pathlib
import subprocess
import sys
import sherd
program = pathlib.Path(sherd.__file__).parent / "bin/sherd"
lines = subprocess.run([program], env={**os.environ, "LD_TRACE_LOADED_OBJECTS": "1"}, capture_output=True, text=True)
found = {line.split()[0]: line.split()[2] for line in lines.stdout.splitlines() if "=>" in line}
for library in sys.argv[1:]:
    print(os.path.realpath(found[library]))
"""
LOADED = """
import pathlib
import sys
import sherd
files = {line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if "/" in line}
for library in sys.argv[1:]:
    print(*[file for file in files if pathlib.Path(file).name == library])
"""


def check_nvidia(folder, python, env):
    """Module and program load NVIDIA's libraries from the environment's own wheels. Without a GPU, a run on GPUs is
    refused in one line."""
    loaded, linked = (
        subprocess.run([python, "-c", program, *NVIDIA], check=True, capture_output=True, text=True, cwd=folder,
                       env=env).stdout for program in (LOADED, TRACE))
    for where in (loaded, linked):
        print(where)
        places = where.split()
        assert len(places) == len(NVIDIA) and all(place.startswith(str(folder / "venv")) for place in places), where
    if pathlib.Path("/dev/nvidiactl").exists():
        return
    refused = subprocess.run([folder / "venv/bin/sherd", "train", ROOT / "recipes/quickstart.yaml", "--set",
                              "run.device=cuda", "--set", f"data.path={ROOT / 'docs'}", "--set",
                              f"run.output_dir={folder / 'refused'}"], capture_output=True, text=True, env=env)
    print(refused.stderr)
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1, (refused.returncode, refused.stderr)


def main(wheel):
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        run(sys.executable, "-m", "venv", folder / "venv")
        python = folder / "venv/bin/python"
        run(python, "-m", "pip", "install", "--quiet", wheel, "h5py")
        check_symbols(next((folder / "venv").glob("lib/python3*/site-packages/sherd")))
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LD_"))}
        run(python, "-c", IMPORT_TIME, cwd=folder, env=clean)
        run(folder / "venv/bin/sherd", "info", cwd=folder, env=clean)
        if "+cu" in wheel.name:
            check_nvidia(folder, python, clean)
        run(python, "-c", QUICKSTART, ROOT / "recipes/quickstart.yaml", ROOT / "docs", folder / "run", cwd=folder,
            env=clean)
        page = folder / "page"
        page.mkdir()
        sys.path.insert(0, str(ROOT / "tests/consumer"))
        import examples
        examples.prepare(page)
        run(python, "-c", examples.python_program(), cwd=page, env=clean)
        run(python, "-m", "unittest", "discover", HERE / "tests", cwd=folder, env=clean)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())

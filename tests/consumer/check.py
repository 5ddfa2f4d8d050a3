"""check.py BUILD CXX VERSION: installs the library of the build folder BUILD into a temporary folder, looks at what
libsherd.so exports, builds the project next to this file with find_package and with pkg-config, and runs it.

The examples in docs/library.md are compiled with pkg-config's flags and run.
The tensors that the project reads are compared with what h5py reads from the checkpoint's index.h5, its
losses with those of the installed program.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import examples

HERE = pathlib.Path(__file__).resolve().parent
RECIPE = """run: {name: consumer, device: cpu, num_threads: 1}
model: {num_layers: 1, hidden_size: 16, num_attention_heads: 2, vocab_size: 128, max_seq_length: 8}
data: {path: %s, format: bytes, validation_fraction: 0.2}
training: {seq_length: 8, global_batch_size: 4, max_steps: 4, eval_interval: 2, eval_batches: 2}
parallelism: {data_parallel_shard_degree: 2}
zero_optimization: {stage: 3}
checkpoint: {interval: 2}
"""


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_symbols(library, version):
    exported = [line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()]
    names = run("c++filt", *exported).splitlines()
    assert any(name.startswith("sherd::v0::Trainer::Trainer(") for name in names), names
    kinds = ("", "typeinfo for ", "typeinfo name for ", "vtable for ")
    leaked = [n for n in names if not n.startswith(tuple(kind + "sherd::v0::" for kind in kinds))]
    assert not leaked, leaked
    needed = run("readelf", "-d", library)
    assert "libmpi" not in needed, needed
    soname = ".".join(version.split(".")[:2])
    assert f"[libsherd.so.{soname}]" in needed, needed


def same_tensors(printed, checkpoint):
    import h5py
    compared = 0
    with h5py.File(checkpoint / "index.h5") as index:
        for line in printed.splitlines():
            if not line.startswith("tensor "):
                continue
            name, *words = line.split()[1:]
            ours = [float.fromhex(word) for word in words]
            theirs = [float(value) for value in index[f"tensors/{name}/param"][()].ravel()]
            assert ours == theirs, name
            compared += 1
    assert compared > 5, compared


def losses_of(printed):
    return [float(line.split()[1]) for line in printed.splitlines() if line.startswith(("loss ", "val_loss "))]


def losses_in(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line.get("loss", line.get("val_loss")) for line in lines if "loss" in line or "val_loss" in line]


def run_the_pages_examples(compiler, flags, library, folder):
    folder.mkdir()
    examples.prepare(folder)
    (folder / "main.cpp").write_text(examples.cpp_program())
    run(compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", folder / "main.cpp", "-o", folder / "program", *flags,
        f"-Wl,-rpath,{library.parent}")
    printed = run(folder / "program", cwd=folder)
    assert "step 4: loss " in printed and "unknown key" in printed, printed
    assert (folder / "exported/model.safetensors").exists()


def main(build, compiler, version):
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        root = folder / "installed"
        for component in ("program", "library"):
            run("cmake", "--install", build, "--prefix", root, "--component", component)
        library = next(root.glob("lib*/**/libsherd.so"))
        check_symbols(library, version)
        (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 20)
        recipe = folder / "recipe.yaml"
        recipe.write_text(RECIPE % (folder / "text.txt"))

        run("cmake", "-S", HERE, "-B", folder / "build", "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}",
            f"-DCMAKE_PREFIX_PATH={root}", "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror")
        run("cmake", "--build", folder / "build")
        printed = run(folder / "build/consumer", recipe, folder / "runs/consumer")
        assert "planned 2\n" in printed and "generated 4\n" in printed, printed
        assert 'refused --set optimizer.learning=1: unknown key "optimizer.learning"' in printed, printed
        same_tensors(printed, folder / "runs/consumer/checkpoints/step-0000000004")
        run(root / "bin/sherd", "train", recipe, "--set", f"run.output_dir={folder / 'runs/program'}")
        assert losses_of(printed) == losses_in(folder / "runs/program/metrics.jsonl"), printed

        os.environ["PKG_CONFIG_PATH"] = str(next(root.glob("lib*/**/pkgconfig")))
        flags = run("pkg-config", "--cflags", "--libs", "sherd").split()
        assert any(f.startswith("-L") and pathlib.Path(f[2:]).samefile(library.parent) for f in flags), flags
        assert run("pkg-config", "--modversion", "sherd").strip() == version
        run_the_pages_examples(compiler, flags, library, folder / "page")


if __name__ == "__main__":
    main(*sys.argv[1:])

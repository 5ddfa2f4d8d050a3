"""resources.py LIBRARY [--write], or --stacks FATBIN... [--write]: what every kernel takes of a GPU, compared with resources.txt.

LIBRARY is libsherd_kernels.so of the `cuda` preset. Instances of one kernel share a row, with the worst of them. An error:
a kernel that uses more of its stack (spills, or arrays that registers don't hold), whose blocks fill less of a
multiprocessor, whose widest loads or stores from global memory have become narrower, or that isn't in the file, or in the
file alone. --write writes the file again. Needs NVIDIA's cuobjdump and nvdisasm (`./dev deps cuda`).

With --stacks it looks at the device code of other architectures than the library's (cmake/architectures.cmake), and only
at stacks: stacks.txt has those kernels that need one there, spills among them. One that needs more, or isn't in the file,
is an error; so is an architecture that should be there and isn't.

  registers   of a thread
  stack       bytes of a thread in local memory
  threads     of the largest block that the kernel is compiled for
  occupancy   threads that a multiprocessor holds, in percent of 2,048 (compute capability 9.0)
  loads       bits of the widest load from global memory in any instance for packs (stores alike); -: there is no such one
"""
import collections
import math
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
FILE, STACKS = HERE / "resources.txt", HERE / "stacks.txt"
DEPS = HERE.parents[1] / "build" / "deps"
CUOBJDUMP, NVDISASM = (DEPS / tool / "nvidia" / "cu13" / "bin" / tool for tool in ("cuobjdump", "nvdisasm"))
COLUMNS = ("instances", "registers", "stack", "threads", "occupancy", "loads", "stores")

ARCHITECTURE = "sm_90"
# Of compute capability 9.0 (CUDA C++ Programming Guide, technical specifications).
REGISTERS, THREADS, BLOCKS, SHARED = 65536, 2048, 32, 228 << 10
# Dynamic shared memory of attention's kernels: tiles, scores, rows (kernels/cuda/attention_tiles.cu, shared_bytes).
TILE, PITCH, LANES = 32, 33, 8
DYNAMIC = {"forward_tile": (3, 1, 0), "backward_keys": (4, 2, 2), "backward_queries": (4, 1, 0)}


def output_of(*command, **options):
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True, **options).stdout


def dynamic_shared(kernel, name):
    if kernel not in DYNAMIC:
        return 0
    tiles, scores, rows = DYNAMIC[kernel]
    head = LANES * int(re.search(r"<(\d+)", name).group(1))
    return (tiles * TILE * (head + 1) + scores * TILE * PITCH + rows * TILE) * 4


def occupancy(registers, threads, shared):
    warps = math.ceil(threads / 32)
    of_a_warp = math.ceil(registers * 32 / 256) * 256  # registers are given out so
    by_registers = REGISTERS // 4 // of_a_warp * 4 // warps
    by_shared = SHARED // shared if shared else BLOCKS
    blocks = min(by_registers, by_shared, THREADS // (warps * 32), BLOCKS)
    return 100 * blocks * warps * 32 // THREADS


def most_threads(library):
    """By mangled name, from the attributes that the compiler left in each cubin (EIATTR_MAX_THREADS)."""
    threads = {}
    with tempfile.TemporaryDirectory() as folder:
        output_of(CUOBJDUMP, "-arch", ARCHITECTURE, "-xelf", "all", library, cwd=folder)
        for cubin in pathlib.Path(folder).glob("*.cubin"):
            data = cubin.read_bytes()
            begin, size, count, names = (struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HHH", data, 58))
            sections = [struct.unpack_from("<IIQQQQ", data, begin + i * size) for i in range(count)]
            strings = sections[names][4]
            for section in sections:
                at = strings + section[0]
                name = data[at:data.index(b"\0", at)].decode()
                if not name.startswith(".nv.info."):
                    continue
                at, end = section[4], section[4] + section[5]
                while at < end:
                    form, attribute, value = struct.unpack_from("<BBH", data, at)
                    if form == 4 and attribute == 5:
                        threads[name[len(".nv.info."):]] = struct.unpack_from("<I", data, at + 4)[0]
                    at += 4 + (value if form == 4 else 0)
    return threads


def widest_accesses(library):
    """By mangled name: the widest load and store of global memory, in bits."""
    widest = collections.defaultdict(lambda: [0, 0])
    access = re.compile(r"\b(LDG|STG)\.E(?:\.[A-Z][A-Z0-9]*?)*?(?:\.[US]?(\d+))?(?:\.[A-Z]\w*)* ")
    name = None
    with subprocess.Popen([str(CUOBJDUMP), "-arch", ARCHITECTURE, "-sass", library], stdout=subprocess.PIPE, text=True) as tool:
        for line in tool.stdout:
            if "Function :" in line:
                name = line.split()[-1]
            elif "LDG" in line or "STG" in line:
                found = access.search(line)
                if found:
                    index = 0 if found[1] == "LDG" else 1
                    widest[name][index] = max(widest[name][index], int(found[2] or 32))
    return widest


def kernel_of(name):
    """The kernel's name, and for kernels over flat buffers and segments that of their work."""
    name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    kernel = re.search(r"sherd::kernels::cuda::(\w+)", name).group(1)
    work = re.search(r"cuda::(?:device_common::)?(\w+)|device_common::(\w+)", name[name.index(kernel) + len(kernel):])
    if kernel in ("flat_kernel", "segment_kernel", "segment_sums_kernel"):
        return f"{kernel} {work[1] or work[2]}"
    return kernel


def is_packed(name):
    """An instance that takes several elements at a time."""
    pack = re.search(r"\w+<(\d+)[,>]", name)
    return pack is not None and int(pack[1]) > 1


def measured(library):
    usage = re.findall(r"Function (\S+):\s*\n\s*(.*)", output_of(CUOBJDUMP, "-arch", ARCHITECTURE, "--dump-resource-usage", library))
    demangled = output_of("c++filt", input="\n".join(name for name, _ in usage)).split("\n")
    threads, accesses = most_threads(library), widest_accesses(library)
    rows = {}
    for (mangled, text), name in zip(usage, demangled):
        values = {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", text)}
        kernel = kernel_of(name)
        block = threads.get(mangled, 256)
        shared = values["SHARED"] + dynamic_shared(kernel, name)
        row = rows.setdefault(kernel, dict(instances=0, registers=0, stack=0, threads=block, occupancy=100, loads=None,
                                           stores=None))
        row["instances"] += 1
        row["registers"] = max(row["registers"], values["REG"])
        row["stack"] = max(row["stack"], values["STACK"] + values["LOCAL"])
        row["threads"] = max(row["threads"], block)
        row["occupancy"] = min(row["occupancy"], occupancy(values["REG"], block, shared))
        if is_packed(name):
            for key, bits in zip(("loads", "stores"), accesses[mangled]):
                row[key] = bits if row[key] is None else min(row[key], bits)
    return rows


def written():
    rows = {}
    for line in FILE.read_text().splitlines():
        if line and not line.startswith("#"):
            *name, a, b, c, d, e, f, g = line.split()
            rows[" ".join(name)] = dict(zip(COLUMNS, [None if x == "-" else int(x) for x in (a, b, c, d, e, f, g)]))
    return rows


def write(rows):
    lines = ["# What kernels take of an H100: made by resources.py, which says what the columns are.",
             "# " + f"{'kernel':<42}" + "".join(f"{column:>10}" for column in COLUMNS)]
    for kernel, row in sorted(rows.items()):
        cells = "".join(f"{'-' if row[column] is None else row[column]:>10}" for column in COLUMNS)
        lines.append(f"{kernel:<44}{cells}")
    FILE.write_text("\n".join(lines) + "\n")


def differences(now, before):
    for kernel in sorted(now.keys() | before.keys()):
        if kernel not in now or kernel not in before:
            yield f"{kernel}: only in {'resources.txt' if kernel in before else 'the library'}"
            continue
        a, b = now[kernel], before[kernel]
        if a["stack"] > b["stack"]:
            yield f"{kernel}: {a['stack']} bytes of stack, {b['stack']} before"
        for key in ("occupancy", "loads", "stores"):
            if (a[key] or 0) < (b[key] or 0):
                yield f"{kernel}: {key} {a[key]}, {b[key]} before"


def stacks_of(fatbins):
    """By (architecture, kernel): bytes of a thread, where it needs any. And every architecture's number of kernels."""
    stacks, counts = {}, collections.Counter()
    for fatbin in fatbins:
        # One part for each architecture, "arch = sm_80" at its head.
        parts = re.split(r"^arch = (sm_\w+)$", output_of(CUOBJDUMP, "--dump-resource-usage", fatbin), flags=re.MULTILINE)
        for architecture, text in zip(parts[1::2], parts[2::2]):
            usage = re.findall(r"Function (\S+):\s*\n\s*(.*)", text)
            names = output_of("c++filt", input="\n".join(name for name, _ in usage)).split("\n")
            for (_, values), name in zip(usage, names):
                counts[architecture] += 1
                taken = sum(int(value) for value in re.findall(r"(?:STACK|LOCAL):(\d+)", values))
                key = (architecture, kernel_of(name))
                if taken > 0:
                    stacks[key] = max(stacks.get(key, 0), taken)
    return stacks, counts


def look_at_stacks(fatbins, write_file):
    now, counts = stacks_of(fatbins)
    if write_file:
        lines = ["# Bytes of stack of a thread where a kernel needs one, made by resources.py --stacks. Kernels in all:",
                 "# " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))]
        lines += [f"{architecture:<8}{kernel:<44}{taken:>6}" for (architecture, kernel), taken in sorted(now.items())]
        STACKS.write_text("\n".join(lines) + "\n")
        return 0
    before, architectures = {}, set()
    for line in STACKS.read_text().splitlines():
        if line.startswith("# sm_"):
            architectures = set(re.findall(r"sm_\w+", line))
        elif not line.startswith("#"):
            architecture, *name, taken = line.split()
            before[architecture, " ".join(name)] = int(taken)
    found = [f"{architecture}: no device code" for architecture in sorted(architectures - counts.keys())]
    found += [f"{architecture} {kernel}: {taken} bytes of stack, {before.get((architecture, kernel), 0)} before"
              for (architecture, kernel), taken in sorted(now.items()) if taken > before.get((architecture, kernel), 0)]
    for line in found:
        print(line)
    print(f"{sum(counts.values())} kernels of {', '.join(sorted(counts))}: "
          f"{'as in stacks.txt' if not found else f'{len(found)} differences'}")
    return 1 if found else 0


def main():
    library = pathlib.Path(sys.argv[1]).resolve()
    if not CUOBJDUMP.exists() or not NVDISASM.exists():
        sys.exit("resources.py: cuobjdump and nvdisasm aren't in build/deps; ./dev deps cuda brings them")
    os.environ["PATH"] = f"{NVDISASM.parent}:{os.environ['PATH']}"  # cuobjdump calls it
    if sys.argv[1] == "--stacks":
        return look_at_stacks([path for path in sys.argv[2:] if path != "--write"], "--write" in sys.argv)
    rows = measured(library)
    if "--write" in sys.argv[2:]:
        return write(rows)
    found = list(differences(rows, written()))
    for line in found:
        print(line)
    print(f"{len(rows)} kernels: {'as in resources.txt' if not found else f'{len(found)} differences'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

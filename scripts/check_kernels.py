#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the compiled CUDA kernels to what their design asks for.

    check_kernels.py LIBRARY

LIBRARY is a shared library, an object or a fatbin. For each architecture in it:

- no kernel spills registers, has a stack frame or touches local memory;
- as many blocks fit on a multiprocessor as DESIGN says, by the formula of
  NVIDIA's occupancy calculator from registers, threads and shared memory;
- the loops over packs move 16 bytes an instruction where DESIGN asks for it,
  and nothing narrower than it allows: the compiler splits packs without a word.

Prints a table and what is wrong. cuobjdump and nvdisasm come from PATH, from the
CUDA toolkit, or from scripts/requirements/cuda-tools.txt.
"""

import dataclasses
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


@dataclasses.dataclass(frozen=True)
class Processor:
    """What a multiprocessor of an architecture has (CUDA C++ Programming Guide,
    technical specifications per compute capability)."""

    threads: int
    blocks: int
    shared_bytes: int
    reserved_bytes: int  # shared memory that the system takes of each block
    registers: int = 65536


PROCESSORS = {
    75: Processor(1024, 16, 64 << 10, 0),
    80: Processor(2048, 32, 164 << 10, 1 << 10),
    86: Processor(1536, 16, 100 << 10, 1 << 10),
    87: Processor(1536, 16, 164 << 10, 1 << 10),
    89: Processor(1536, 24, 100 << 10, 1 << 10),
    90: Processor(2048, 32, 228 << 10, 1 << 10),
    100: Processor(2048, 32, 228 << 10, 1 << 10),
    103: Processor(2048, 32, 228 << 10, 1 << 10),
    120: Processor(1536, 24, 100 << 10, 1 << 10),
}
WARP = 32
# Registers are allocated to a warp by this many for each of its threads.
REGISTER_UNIT = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Design:
    """What a kernel must be."""

    pattern: str  # of the kernel's name, without namespaces
    threads: int  # in a block
    # Architecture -> blocks that must fit on a multiprocessor. Others of
    # PROCESSORS are held to the rest.
    blocks: dict[int, int]
    reason: str  # of `blocks`
    shared_bytes: int = 0  # at most, besides Processor.reserved_bytes
    # A loop with an access to global memory of `packed` bytes is one over packs;
    # 0: there are none. The kernel has at least so many loads and stores of them,
    # and such a loop has no access narrower than `narrowest` bytes.
    packed: int = 0
    loads: int = 0
    stores: int = 0
    narrowest: int = 0


def update(rule, width, arrays, states, blocks, reason):
    """An update kernel whose run has `arrays` of master type, in packs of 16
    bytes; 16-bit arrays move in packs of the same number of elements.
    Written are the master and the states."""
    return Design(
        rf"update_kernel<UpdateShard<{rule}>>",
        256,
        {75: 4, 90: blocks},
        reason,
        packed=16,
        loads=arrays,
        stores=1 + states,
        narrowest=width * 2,
    )


def norm(name, blocks, loads, stores):
    """A norm of rows that are read several times."""
    return Design(
        rf"{name}<(__half|__nv_bfloat16), 4>",
        256,
        {75: 4, 90: blocks},
        BARRIERS,
        shared_bytes=128,
        packed=8,
        loads=loads,
        stores=stores,
        narrowest=4,  # parameters of several elements, and a row's mean
    )


def norm_rows(name, packs, arrays):
    """A norm of rows in registers, of so many packs a thread. `arrays` are what
    a pack loads 16 bytes of: float32 parameters count twice."""
    return Design(
        rf"{name}<(__half|__nv_bfloat16), {packs}>",
        256,  # or as many in smaller blocks
        {75: 4, 90: 4},
        f"{packs} loads of 16 bytes a thread: {16 * packs} KiB in flight",
        shared_bytes=128,
        packed=16,
        loads=packs * arrays,
        stores=packs,
        narrowest=4,  # a row's mean and scale
    )


def layer(pattern, loads, stores, reason):
    """A kernel of layers in packs of 16 bytes."""
    return Design(
        pattern.format("(float|__half|__nv_bfloat16)", "(4|8)"),
        256,
        {75: 4, 90: 4},
        reason,
        packed=16,
        loads=loads,
        stores=stores,
        narrowest=16,
    )


# What keeps memory busy: an H100 reads and writes 3.35 TB/s, of which the loads of
# 0.8 us are 10 KiB in flight on each of its 132 multiprocessors. 4 blocks of 256
# threads that load 16 bytes of 3 arrays have 48 KiB: enough also where arithmetic
# takes half of the time. More blocks are asked for where the kernels reach them.
MEMORY = "16 bytes of 3 arrays or more a thread: 48 KiB in flight with 4 blocks"
ARITHMETIC = MEMORY + ", one more for exact division and roots"
SHORT = MEMORY + "; little arithmetic, few registers"
WIDE = MEMORY + "; float64 is for tests"
BARRIERS = "the threads of a block wait at its barriers: others fill in"
WIDE_PACKS = "16 bytes of 2 arrays or more a thread: 32 KiB in flight with 4 blocks"
ELEMENTWISE = "for what is not aligned"

DESIGN = [
    update("float, AdamWRule<float>", 4, 4, 2, 5, ARITHMETIC),
    update("float, AdanRule<float>", 4, 6, 4, 4, MEMORY),
    update("float, LionRule<float>", 4, 3, 1, 8, SHORT),
    update("float, SgdRule<float>", 4, 3, 1, 6, SHORT),
    update("float, LambRule<float>", 4, 3, 0, 6, SHORT),
    update("double, AdamWRule<double>", 2, 4, 2, 4, WIDE),
    update("double, AdanRule<double>", 2, 6, 4, 4, WIDE),
    update("double, LionRule<double>", 2, 3, 1, 4, WIDE),
    update("double, SgdRule<double>", 2, 3, 1, 4, WIDE),
    update("double, LambRule<double>", 2, 3, 0, 4, WIDE),
    Design(
        "lamb_moments_kernel<float>",
        256,
        {75: 4, 90: 5},
        ARITHMETIC,
        shared_bytes=4096,
        packed=16,
        loads=4,
        stores=2,
        narrowest=8,
    ),
    Design(
        "lamb_moments_kernel<double>",
        256,
        {75: 4, 90: 4},
        WIDE,
        shared_bytes=4096,
        packed=16,
        loads=4,
        stores=2,
        narrowest=4,
    ),
    Design(
        r"pack_kernel<(float|double|__half|__nv_bfloat16)>",
        256,
        {75: 4, 90: 6},
        "16 bytes a thread: 24 KiB in flight",
        packed=16,
        loads=8,  # of each type of source, and of the target where it is added
        stores=4,
        narrowest=16,
    ),
    Design(
        r"add_bias_kernel<(float|__half|__nv_bfloat16), (4|8)>",
        256,
        {75: 4, 90: 6},
        "64 bytes a thread in flight",
        packed=16,
        loads=4,
        stores=4,
        narrowest=16,
    ),
    Design(
        r"add_bias_kernel<(float|__half|__nv_bfloat16), 1>",
        256,
        {75: 4, 90: 6},
        "few bytes a thread: many threads",
    ),
    Design(
        r"column_sums_kernel<.*, (4|8)>",
        256,
        {75: 4, 90: 4},
        "64 bytes a thread in flight",
        shared_bytes=8192,
        packed=16,
        loads=4,
        narrowest=16,
    ),
    Design(
        r"column_sums_kernel<.*, 1>",
        256,
        {75: 4, 90: 6},
        "few bytes a thread: many threads",
        shared_bytes=1024,
    ),
    Design(
        r"copy_packs_kernel",
        256,
        {75: 4, 90: 6},
        "64 bytes a thread in flight",
        packed=16,
        loads=4,
        stores=4,
        narrowest=16,
    ),
    Design(
        r"copy_rows_kernel",
        256,
        {75: 4, 90: 6},
        "32 bytes a thread in flight, in any alignment",
    ),
    layer("gated_kernel<[^,]*, {}, {}>", 2, 1, WIDE_PACKS),
    layer("gated_backward_kernel<[^,]*, {}, {}>", 3, 2, WIDE_PACKS),
    layer("rotary_kernel<{}, {}, (true|false|0|1)>", 4, 2, WIDE_PACKS),
    Design(
        r"(gated_kernel|gated_backward_kernel)<[^,]*, (float|__half|__nv_bfloat16), 1>",
        256,
        {75: 4, 90: 4},
        ELEMENTWISE,
    ),
    Design(
        r"rotary_kernel<(float|__half|__nv_bfloat16), 1, (true|false|0|1)>",
        256,
        {75: 4, 90: 4},
        ELEMENTWISE,
    ),
    norm("norm_kernel", 6, 3, 1),
    norm("norm_backward_x_kernel", 6, 4, 1),
    norm("norm_backward_channels_kernel", 8, 2, 0),
    *(norm_rows("norm_row_kernel", packs, 5) for packs in (1, 2, 3, 4)),
    *(norm_rows("norm_backward_row_kernel", packs, 6) for packs in (1, 2, 3, 4)),
    Design(
        r"norm_backward_parameters_kernel<(__half|__nv_bfloat16), 8>",
        256,
        {75: 4, 90: 5},
        "4 loads of 16 bytes a thread: 64 KiB in flight with 4 blocks",
        shared_bytes=8192,
        packed=16,
        loads=4,
        stores=0,
        narrowest=4,  # a row's mean and scale
    ),
    Design(
        r"norm_backward_parameters_kernel<(__half|__nv_bfloat16), 4>",
        256,
        {75: 4, 90: 6},
        "4 loads of 8 bytes a thread: 48 KiB in flight",
        shared_bytes=8192,
        packed=8,
        loads=4,
        stores=0,
        narrowest=4,  # a row's mean and scale
    ),
    Design(
        r"norm_backward_parameters_kernel<(__half|__nv_bfloat16), 1>",
        256,
        {75: 4, 90: 4},
        ELEMENTWISE,
        shared_bytes=8192,
    ),
    Design(
        r"norm_(kernel|backward_(x|channels)_kernel)<(__half|__nv_bfloat16), 1>",
        256,
        {75: 4, 90: 4},
        ELEMENTWISE,
        shared_bytes=128,
    ),
    *(
        Design(
            rf"softmax_loss_kernel<{types}>",
            512,
            {75: 2, 90: 2},
            "4 loads of 16 bytes a thread: 64 KiB in flight",
            shared_bytes=512,
            packed=16,
            loads=8,  # in two passes
            stores=4,
            narrowest=2,  # the ends of rows, in the loop over rows
        )
        for types in ("(__half|__nv_bfloat16), 8", "float, 4")
    ),
    Design(
        r"softmax_loss_kernel<(float|__half|__nv_bfloat16), 1>",
        512,
        {75: 2, 90: 2},
        ELEMENTWISE,
        shared_bytes=512,
    ),
    Design(
        r"blocks_kernel<(float|__half|__nv_bfloat16)>",
        128,
        {75: 8, 90: 8},
        "1024 threads: all that an sm_75 has, half of an sm_90",
        shared_bytes=1536,
    ),
    Design(
        r"encode_nf4_kernel<(float|__half|__nv_bfloat16)>",
        128,
        {75: 8, 90: 8},
        "as blocks_kernel; weights are encoded once",
        shared_bytes=1536,
    ),
    Design(
        r"expand_nf4_kernel<(float|__half|__nv_bfloat16)>",
        256,
        {75: 4, 90: 6},
        "1024 threads: all that an sm_75 has; 34 registers on an sm_90",
        shared_bytes=64,
    ),
]


# --- what the compiler made ----------------------------------------------


@dataclasses.dataclass
class Kernel:
    name: str
    architecture: int
    registers: int = 0
    stack_bytes: int = 0
    local_bytes: int = 0
    shared_bytes: int = 0
    # (address, instruction) in the order of addresses
    code: list[tuple[int, str]] = dataclasses.field(default_factory=list)


def tool(name):
    """@return the path of a program of the CUDA toolkit."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/local/cuda/bin"]
    for site in (ROOT / ".venv", pathlib.Path(sys.prefix)):
        folders += map(str, site.glob("lib/python3*/site-packages/nvidia/cu*/bin"))
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        sys.exit(
            f"check_kernels: no {name} on PATH, in /usr/local/cuda/bin or .venv; "
            "run 'make setup', or 'pip install --no-deps -r "
            "scripts/requirements/cuda-tools.txt'"
        )
    return found


def dump(option, library):
    # cuobjdump starts nvdisasm.
    path = os.pathsep.join(
        [str(pathlib.Path(tool("nvdisasm")).parent), os.environ.get("PATH", "")]
    )
    done = subprocess.run(
        [tool("cuobjdump"), option, str(library)],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
    )
    if done.returncode != 0:
        sys.exit(f"check_kernels: cuobjdump {option} {library}: {done.stderr}")
    return done.stdout


def plain_names(names):
    """Demangles; leaves out namespaces and arguments."""
    done = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    )
    result = []
    for name in done.stdout.splitlines():
        name = re.sub(r"\(anonymous namespace\)::|\b\w+::", "", name)
        name = re.sub(r"^void |\(.*$", "", name)
        result.append(re.sub(r">\s+(?=>)", ">", name))
    return dict(zip(names, result))


def read_kernels(library):
    """@return the kernels of all architectures in a file."""
    kernels = {}
    architecture = 0
    function = None

    def kernel(name):
        return kernels.setdefault((architecture, name), Kernel(name, architecture))

    for line in dump("-res-usage", library).splitlines():
        if found := re.search(r"arch = sm_(\d+)", line):
            architecture = int(found[1])
        elif found := re.search(r"Function (\S+):", line):
            function = found[1]
        elif found := re.search(
            r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", line
        ):
            one = kernel(function)
            one.registers, one.stack_bytes, one.shared_bytes, one.local_bytes = map(
                int, found.groups()
            )
    if not kernels:
        sys.exit(f"check_kernels: {library} has no machine code of a GPU")
    function = None
    for line in dump("-sass", library).splitlines():
        if found := re.search(r"code for sm_(\d+)", line):
            architecture = int(found[1])
        elif found := re.search(r"Function : (\S+)", line):
            function = found[1]
        elif function and (
            found := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", line)
        ):
            kernel(function).code.append((int(found[1], 16), found[2]))
    names = plain_names(sorted({name for _, name in kernels}))
    for one in kernels.values():
        one.name = names[one.name]
    return sorted(kernels.values(), key=lambda k: (k.name, k.architecture))


# --- loops ---------------------------------------------------------------


def opcode(instruction):
    """The name of an instruction without its predicate, e.g. LDG.E.128."""
    return re.sub(r"^@!?U?P\w+\s+", "", instruction).split()[0]


def successors(code):
    """Indices of the instructions that may follow each one, in its function.

    Jumps by a register (a switch) have none here, and BSYNC is where the paths
    that BSSY named meet: the instruction after it.
    """
    index_of = {address: i for i, (address, _) in enumerate(code)}
    result = []
    for i, (_, instruction) in enumerate(code):
        name = opcode(instruction).split(".")[0]
        always = not instruction.startswith("@")
        after = []
        if name == "BRA":
            target = int(re.findall(r"0x([0-9a-f]+)", instruction)[-1], 16)
            after.append(index_of[target])
            # A second predicate stands before the target.
            always = always and re.search(r"BRA(\.\w+)* 0x", instruction) is not None
        ends = name in ("BRA", "EXIT", "RET", "BRX", "BRXU", "JMP", "JMX")
        if i + 1 < len(code) and not (ends and always):
            after.append(i + 1)
        result.append(after)
    return result


def loops(code):
    """The sets of instructions from each of which there is a way to itself:
    Tarjan's strongly connected components, without recursion."""
    after = successors(code)
    order, low, result = {}, {}, []
    stack, on_stack = [], set()
    for root in range(len(code)):
        if root in order:
            continue
        work = [(root, iter(after[root]))]
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, rest = work[-1]
            for following in rest:
                if following not in order:
                    order[following] = low[following] = len(order)
                    stack.append(following)
                    on_stack.add(following)
                    work.append((following, iter(after[following])))
                    break
                if following in on_stack:
                    low[node] = min(low[node], order[following])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    members = []
                    while not members or members[-1] != node:
                        members.append(stack.pop())
                        on_stack.discard(members[-1])
                    if len(members) > 1 or node in after[node]:
                        result.append([code[i][1] for i in sorted(members)])
    return result


def access(instruction):
    """@return ("LDG" or "STG", bytes) of an access to global memory, or None."""
    parts = opcode(instruction).split(".")
    # LD and ST would be accesses by an address of any kind of memory.
    if parts[0] not in ("LDG", "STG", "LD", "ST"):
        return None
    for part in parts[1:]:
        if part in ("64", "128", "256"):
            return parts[0], int(part) // 8
        if found := re.fullmatch(r"[US](8|16)", part):
            return parts[0], int(found[1]) // 8
    return parts[0], 4


# --- the rules -----------------------------------------------------------


def round_up(value, unit):
    return -(-value // unit) * unit


def blocks_per_processor(processor, threads, registers, shared_bytes):
    """Blocks that are resident on a multiprocessor at a time."""
    per_warp = WARP * round_up(max(registers, 1), REGISTER_UNIT)
    warps = round_up(threads, WARP) // WARP
    fits = [
        processor.blocks,
        processor.threads // threads,
        processor.registers // per_warp // warps,
    ]
    if shared_bytes > 0:
        fits.append(processor.shared_bytes // shared_bytes)
    return min(fits)


def most_registers(processor, threads, blocks):
    """The most registers of a thread with which so many blocks fit."""
    warps = round_up(threads, WARP) // WARP
    return min(255, processor.registers // (blocks * warps) // WARP // 8 * 8)


def check_kernel(kernel, design):
    """@return what is wrong with a kernel."""
    wrong = []
    if kernel.stack_bytes > 0 or kernel.local_bytes > 0:
        wrong.append(
            f"a stack frame of {kernel.stack_bytes} bytes and {kernel.local_bytes} "
            "of local memory: registers are spilled, or an array is indexed by "
            "what the compiler does not know"
        )
    local = [i for _, i in kernel.code if re.match(r"(LDL|STL)\b", opcode(i))]
    if local:
        wrong.append(f"{len(local)} accesses to local memory, such as '{local[0]}'")
    processor = PROCESSORS.get(kernel.architecture)
    if processor is None:
        return wrong + [f"PROCESSORS has no sm_{kernel.architecture}"]
    if kernel.shared_bytes > design.shared_bytes + processor.reserved_bytes:
        wrong.append(
            f"{kernel.shared_bytes} bytes of shared memory, more than "
            f"{design.shared_bytes} and the {processor.reserved_bytes} reserved"
        )
    wanted = design.blocks.get(kernel.architecture, 0)
    blocks = blocks_per_processor(
        processor, design.threads, kernel.registers, kernel.shared_bytes
    )
    if blocks < wanted:
        wrong.append(
            f"{kernel.registers} registers and {kernel.shared_bytes} bytes of shared "
            f"memory: {blocks} blocks of {design.threads} threads fit, not {wanted} "
            f"({design.reason}); at most "
            f"{most_registers(processor, design.threads, wanted)} registers do"
        )
    return wrong + check_packs(kernel, design)


def check_packs(kernel, design):
    if design.packed == 0:
        return []
    wrong = []
    counts = {"LDG": 0, "STG": 0}
    for loop in loops(kernel.code):
        found = [(a, i) for i in loop if (a := access(i)) is not None]
        if not any(size >= design.packed for (_, size), _ in found):
            continue
        for (name, size), instruction in found:
            if size >= design.packed:
                counts[name] = counts.get(name, 0) + 1
            elif size < design.narrowest:
                wrong.append(
                    f"a loop over packs of {design.packed} bytes moves {size}: "
                    f"'{instruction}'"
                )
    for name, least in (("LDG", design.loads), ("STG", design.stores)):
        if counts[name] < least:
            wrong.append(
                f"{counts[name]} {name} of {design.packed} bytes or more in loops, "
                f"not {least}: packs are split"
            )
    return wrong


def check(kernels, designs=None):
    """@return (rows of the table, what is wrong)."""
    designs = DESIGN if designs is None else designs
    rows, wrong = [], []
    matched = set()
    for kernel in kernels:
        found = [d for d in designs if re.fullmatch(d.pattern, kernel.name)]
        label = f"{kernel.name} on sm_{kernel.architecture}"
        if len(found) != 1:
            wrong.append(f"{label}: {len(found)} rows of DESIGN name it, not one")
            continue
        design = found[0]
        matched.add(design)
        wrong += [f"{label}: {w}" for w in check_kernel(kernel, design)]
        processor = PROCESSORS.get(kernel.architecture)
        if processor is not None:
            blocks = blocks_per_processor(
                processor, design.threads, kernel.registers, kernel.shared_bytes
            )
            wanted = design.blocks.get(kernel.architecture)
            most = most_registers(processor, design.threads, wanted) if wanted else ""
            occupancy = 100 * blocks * design.threads // processor.threads
            rows.append(
                (
                    kernel.name,
                    f"sm_{kernel.architecture}",
                    design.threads,
                    kernel.registers,
                    most,
                    kernel.shared_bytes,
                    blocks,
                    wanted or "",
                    f"{occupancy} %",
                    design.reason if wanted else "",
                )
            )
    for design in designs:
        if design not in matched:
            wrong.append(f"no kernel is named as DESIGN's {design.pattern}")
    return rows, wrong


HEAD = (
    "kernel",
    "arch",
    "threads",
    "registers",
    "most",
    "shared",
    "blocks",
    "least",
    "occupancy",
    "reason",
)


def print_table(rows):
    widths = [max(len(str(cell)) for cell in column) for column in zip(HEAD, *rows)]
    for row in itertools.chain([HEAD], rows):
        print(
            "  ".join(str(c).ljust(w) for c, w in zip(row, widths)).rstrip()
        )


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    rows, wrong = check(read_kernels(sys.argv[1]))
    print_table(rows)
    for line in wrong:
        print(f"check_kernels: {line}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

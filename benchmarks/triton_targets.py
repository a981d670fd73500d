"""Compile the Triton kernels for accelerators that are not there; report what a program of each takes.

    python benchmarks/triton_targets.py          # the table
    python benchmarks/triton_targets.py --store  # also into docs/speed.md
    python benchmarks/triton_targets.py --quick  # one head size

Registers of a thread, bytes that do not fit into registers (spilled), and shared memory of a program. What a card has: 64 KB
of shared memory on gfx942, 99 KB on sm_86, 163 KB on sm_80, 227 KB on sm_90; 255 registers a thread on CUDA, 512 on gfx942.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from inline_attention.ops import triton_kernels

PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_86": GPUTarget("cuda", 86, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED = {"sm_80": 163, "sm_86": 99, "sm_90": 227, "gfx942": 64}
"""KB that a program can have."""
KERNELS = {"sums": triton_kernels.sums_kernel, "map": triton_kernels.map_kernel}
TYPES = {"fp32": "*fp32", "fp16": "*fp16", "bf16": "*bf16"}
TOKENS, FP32 = ("k", "v", "x", "out"), ("key_sum", "value_sum", "outer_sum", "matrix", "base")
OPTIONS = ("num_warps", "num_stages")


class Usage(NamedTuple):
    """What a program takes."""

    registers: int
    spilled: int
    shared: int


def compiled(target: GPUTarget, kernel: triton.JITFunction, dtype: str, head: int, masked: bool = False) -> Usage:
    """Compile for heads of this size."""
    fp32 = dtype == "fp32" or kernel is triton_kernels.map_kernel
    constants = triton_kernels.constants_for(head, head, masked=masked, fp32=fp32, backend=target.backend)
    options = {name: constants.pop(name) for name in OPTIONS}
    types = {**dict.fromkeys(TOKENS, TYPES[dtype]), **dict.fromkeys(FP32, "*fp32"), "mask": "*u8"}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    result = triton.compile(ASTSource(kernel, signature, constexprs=constants), target=target, options=options)
    return Usage(*registers(result.asm), result.metadata.shared)


def registers(asm: dict[str, str | bytes]) -> tuple[int, int]:
    """Registers of a thread, and bytes spilled."""
    if "amdgcn" in asm:
        found = [re.search(rf"\.vgpr_{what}:\s+(\d+)", asm["amdgcn"]) for what in ("count", "spill_count")]
        return int(found[0][1]), 4 * int(found[1][1])
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(asm["cubin"])
        text = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"REG:(\d+)", text)[1]), int(re.search(r"STACK:(\d+)", text)[1])


def main() -> None:
    """Compile everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    lines = ["| target | kernel | type | head | registers | spilled, bytes | shared, KB |", "|---|---|---|---:|---:|---:|---:|"]
    failed = []
    for target_name, target in TARGETS.items():
        for kernel_name, kernel in KERNELS.items():
            for dtype in TYPES:
                for head in (32,) if args.quick else (16, 32, 64, 128):
                    used = compiled(target, kernel, dtype, head)
                    row = (target_name, kernel_name, dtype, head, used.registers, used.spilled, f"{used.shared / 1024:.0f}")
                    lines.append(f"| {' | '.join(map(str, row))} |")
                    if used.shared > 1024 * SHARED[target_name]:
                        failed.append(lines[-1])
    print("\n".join(lines))
    if args.store:
        mark = r"(<!-- triton -->\n).*?(<!-- /triton -->)"
        text = "\n".join(lines) + "\n"
        PAGE.write_text(re.sub(mark, lambda match: match[1] + text + match[2], PAGE.read_text(), flags=re.DOTALL))
    if failed:
        sys.exit("\n".join(["more shared memory than there is:", *failed]))


if __name__ == "__main__":
    main()

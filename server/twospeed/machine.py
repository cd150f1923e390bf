"""What this machine gives this process: cores, memory and CPU features, as affinity and cgroups allow.

Knows nothing of models. Every function takes the root of the file system, so that tests can give it another machine's.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

_ROOT = Path("/")

# name in /proc/cpuinfo or macOS's sysctl -> name llama.cpp uses; only what its kernels care about
_FEATURES = {
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx_vnni": "AVX_VNNI",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
    "amx_int8": "AMX_INT8",
    "asimd": "NEON",
    "asimddp": "DOTPROD",
    "i8mm": "MATMUL_INT8",
    "sve": "SVE",
    "hw.optional.avx2_0": "AVX2",
    "hw.optional.fma": "FMA",
    "hw.optional.f16c": "F16C",
    "hw.optional.avx512f": "AVX512",
    "hw.optional.AdvSIMD": "NEON",
    "hw.optional.arm.FEAT_DotProd": "DOTPROD",
    "hw.optional.arm.FEAT_I8MM": "MATMUL_INT8",
}


class Machine(NamedTuple):
    system: str  # Linux, Darwin
    arch: str  # x86_64, arm64, aarch64
    cpu: str
    features: tuple[str, ...]
    cores: int  # physical cores this process may use
    cpus: int  # hardware threads of the whole machine
    memory_total: int  # bytes this process may use
    memory_available: int
    load: float  # mean number of busy threads in the last minute, whole machine


def look(root: Path = _ROOT) -> Machine:
    cpu, features = _cpu(root)
    total, available = memory(root)
    return Machine(
        system=platform.system(),
        arch=platform.machine(),
        cpu=cpu,
        features=features,
        cores=usable_cores(root),
        cpus=os.cpu_count() or 1,
        memory_total=total,
        memory_available=available,
        load=os.getloadavg()[0],
    )


def usable_cores(root: Path = _ROOT) -> int:
    """Physical cores for compute threads: two hardware threads of one core count once, a CPU quota caps them.

    On Apple silicon only the performance cores count: a thread on a slow core makes all others wait.
    """
    if platform.system() == "Darwin":
        fast = _sysctl("hw.perflevel0.physicalcpu").get("hw.perflevel0.physicalcpu")
        return int(fast) if fast else psutil.cpu_count(logical=False) or 1
    cores = {_core(cpu, root) for cpu in os.sched_getaffinity(0)}
    quota = min((q for folder in _cgroups("cpu", root) if (q := _quota(folder)) is not None), default=len(cores))
    return max(1, min(len(cores), int(quota)))


def _core(cpu: int, root: Path) -> tuple[str, str]:
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    package, core = _text(topology / "physical_package_id"), _text(topology / "core_id")
    return (package, core) if core else ("", f"cpu{cpu}")


def _quota(folder: Path) -> float | None:
    """CPUs that one cgroup may use, version 2 or 1; None: no limit."""
    words = _text(folder / "cpu.max").split() or [
        _text(folder / "cpu.cfs_quota_us"),
        _text(folder / "cpu.cfs_period_us"),
    ]
    if len(words) != 2 or not all(word.isdigit() for word in words):  # "max", "-1", no such file
        return None
    return int(words[0]) / int(words[1])


def memory(root: Path = _ROOT) -> tuple[int, int]:
    """Bytes in all and bytes to be had now, the tightest cgroup counted."""
    machine = psutil.virtual_memory()
    total, available = machine.total, machine.available
    for folder in _cgroups("memory", root):
        limit = _text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes")
        if not limit.isdigit() or int(limit) >= machine.total:
            continue
        used = _text(folder / "memory.current") or _text(folder / "memory.usage_in_bytes") or "0"
        stat = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
        files = sum(int(stat.get(f"total_{kind}", stat.get(kind, 0))) for kind in ("active_file", "inactive_file"))
        total = min(total, int(limit))
        available = min(available, int(limit) - int(used) + files)  # cached files make room when asked to
    return total, max(0, available)


def _cgroups(controller: str, root: Path) -> Iterator[Path]:
    """The folders that limit this process, its own first: a limit of any of them holds."""
    mount = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            base = mount
        elif controller in controllers.split(","):
            base = mount / controller
        else:
            continue
        parts = Path(path.lstrip("/")).parts
        # inside a container the path may be the host's, and only the mount's root is there: missing files say nothing
        yield from (base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))


def _cpu(root: Path) -> tuple[str, tuple[str, ...]]:
    if platform.system() == "Darwin":
        found = _sysctl("hw.optional", "machdep.cpu.brand_string")
        flags = {name for name, value in found.items() if value == "1"}
        model = found.get("machdep.cpu.brand_string", "")
    else:
        info: dict[str, str] = {}
        for line in _text(root / "proc/cpuinfo").splitlines():
            name, _, value = line.partition(":")
            info.setdefault(name.strip(), value.strip())
        flags = set((info.get("flags") or info.get("Features") or "").split())
        model = info.get("model name", "")
    features = tuple(dict.fromkeys(name for flag, name in _FEATURES.items() if flag in flags))
    return model or platform.machine(), features


def _sysctl(*names: str) -> dict[str, str]:
    """What macOS says of `names`; those it does not know are missing."""
    answer = subprocess.run(["sysctl", *names], capture_output=True, text=True, check=False, timeout=10)
    pairs = (line.partition(":") for line in answer.stdout.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _text(path: Path) -> str:
    """A file of the kernel's, or nothing: which of them exist differs from machine to machine."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""

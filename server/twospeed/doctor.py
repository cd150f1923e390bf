"""Can this machine run this configuration? Each check takes what was seen and says what is wrong and how to fix it.

Prints nothing. Asks llama.cpp about itself only through a child process, as everybody does.
"""

from __future__ import annotations

import errno
import importlib.metadata
import json
import math
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from .config import Config, Model, Server
from .configfile import ConfigError, find_config, load_config
from .gateway.auth import is_loopback
from .machine import Machine, look
from .models.job import size_text
from .models.store import Entry, Store

BUILD_INFO = (sys.executable, "-m", "twospeed.engine.runner.llama_jobs", "--build-info")
PACKAGES = (
    "llama-cpp-python",
    "fastapi",
    "uvicorn",
    "pydantic",
    "msgspec",
    "pyzmq",
    "httpx",
    "huggingface-hub",
    "numpy",
)

Status = Literal["ok", "warn", "fail"]
Which = Callable[[str], str | None]


class Check(NamedTuple):
    """`warn` works, but worse than it could; `fail` does not work."""

    name: str
    status: Status
    detail: str
    fix: str = ""


def reinstall(flag: str) -> str:
    """How to get llama.cpp built in another way."""
    name = "llama-cpp-python"
    pip = f"pip install --force-reinstall --no-deps --no-cache-dir --no-binary {name}"
    uv = f"uv pip install --reinstall-package {name} --no-deps --no-cache --no-binary {name}"
    return "\n".join(f'CMAKE_ARGS="{flag}" {tool} "{name}{_pin()}"' for tool in (pip, uv))


def _pin() -> str:
    """`==` and the llama-cpp-python that twospeed is written for; nothing when it runs without being installed."""
    try:
        requirements = importlib.metadata.requires("twospeed") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    return next((r.removeprefix("llama-cpp-python") for r in requirements if r.startswith("llama-cpp-python==")), "")


def check_python(version: tuple[int, int, int] = sys.version_info[:3]) -> Check:
    text = ".".join(str(part) for part in version)
    if version < (3, 11, 0):
        return Check("python", "fail", f"{text} is too old", "install Python 3.11 or later")
    return Check("python", "ok", f"{text} on {platform.platform(terse=True)}")


def check_packages(version_of: Callable[[str], str] = importlib.metadata.version) -> Check:
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version_of(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Check("packages", "fail", f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    if (pin := _pin().removeprefix("==")) and found[0].split()[1] != pin:
        fix = f"pip install llama-cpp-python=={pin}"
        return Check("packages", "warn", f"{found[0]} is not the {pin} that twospeed was tested with", fix)
    return Check("packages", "ok", ", ".join(found))


def check_cpu(machine: Machine) -> Check:
    cores = f"{machine.cores} usable core{'s' if machine.cores != 1 else ''}"
    detail = f"{machine.cpu}, {cores}, {' '.join(machine.features) or 'no vector extensions'}"
    if machine.arch in ("x86_64", "AMD64") and "AVX2" not in machine.features:
        return Check(
            "cpu",
            "warn",
            f"{detail}; without AVX2 it is several times slower",
            "choose smaller models, or another machine",
        )
    return Check("cpu", "ok", detail)


def check_load(machine: Machine) -> Check:
    """Compute threads meet at a barrier many times a token; one that has to wait for its core holds up all others."""
    free = machine.cpus - machine.load
    detail = f"{machine.load:.1f} of {machine.cpus} hardware threads busy in the last minute"
    if free < machine.cores - 0.5:
        why = f"{detail}: {machine.cores} compute threads wait for each other and lose far more than half their speed"
        return Check("load", "warn", why, f"stop other work, or set defaults.threads: {max(1, int(free))}")
    return Check("load", "ok", detail)


def check_memory(machine: Machine) -> Check:
    detail = f"{size_text(machine.memory_available)} available of {size_text(machine.memory_total)}"
    return Check("memory", "ok", detail)


def check_compiler(which: Which = shutil.which) -> Check:
    """Only needed to build llama.cpp anew, and pip brings its own cmake for that."""
    found = next((path for name in ("cc", "gcc", "clang") if (path := which(name))), None)
    if found is None:
        fix = "apt install build-essential, dnf install gcc-c++, or xcode-select --install"
        return Check("compiler", "warn", "none; llama.cpp cannot be built anew for this machine", fix)
    return Check("compiler", "ok", f"{found}, cmake: {which('cmake') or 'comes with pip'}")


def ask_build(command: Sequence[str] = BUILD_INFO, timeout_s: float = 60) -> dict[str, Any] | str:
    """What llama.cpp says of itself, or why it says nothing."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
        if answer.returncode < 0:
            return f"ended by signal {-answer.returncode}"
        if answer.returncode > 0:
            return (answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"])[-1]
        info: dict[str, Any] = json.loads(answer.stdout)
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        return str(error)
    return info


def check_build(info: dict[str, Any] | str, machine: Machine, config: Config | None, which: Which) -> Check:
    if isinstance(info, str):
        # signal 4: an instruction this CPU does not have
        return Check("llama.cpp", "fail", f"does not start: {info}", f"build it anew:\n{reinstall('-DGGML_NATIVE=on')}")
    detail = f"llama-cpp-python {info['llama_cpp_python']}: {', '.join(info['backends'])}"
    wants_gpu = [name for name, model in config.models.items() if model.device == "gpu"] if config else []
    flag = "-DGGML_METAL=on" if machine.system == "Darwin" else "-DGGML_CUDA=on"
    if wants_gpu and not info["gpu_offload"]:
        fix = f"set device: auto, or build it for the GPU:\n{reinstall(flag)}"
        return Check("llama.cpp", "fail", f"{detail}; {', '.join(wants_gpu)} wants a GPU, this build has none", fix)
    if not info["gpu_offload"] and (machine.system, machine.arch) == ("Darwin", "arm64"):
        return Check("llama.cpp", "warn", f"{detail}; the GPU is not used", reinstall("-DGGML_METAL=on"))
    for tool, gpu, gpu_flag in (("nvidia-smi", "NVIDIA", "-DGGML_CUDA=on"), ("rocminfo", "AMD", "-DGGML_VULKAN=on")):
        if not info["gpu_offload"] and which(tool):
            fix = f"with its toolkit installed:\n{reinstall(gpu_flag)}"
            return Check("llama.cpp", "warn", f"{detail}; an {gpu} GPU seems to be here, not used", fix)
    built = dict(pair.split(" = ", 1) for pair in re.findall(r"\w+ = \d", info["system_info"]))
    unused = [name for name in machine.features if name in ("AVX2", "AVX512", "NEON") and built.get(name) != "1"]
    if unused:
        return Check("llama.cpp", "warn", f"{detail}; built without {' '.join(unused)}", reinstall("-DGGML_NATIVE=on"))
    return Check("llama.cpp", "ok", detail)


def check_disk(root: Path, config: Config, entries: Sequence[Entry]) -> Check:
    folder = next(path for path in (root, *root.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    absent = [e.name for e in entries if e.state != "present" and config.models[e.name].backend == "llama"]
    needs = sum(_disk_needed(config.models[name]) for name in absent)
    detail = f"{size_text(free)} free in {root}"
    if needs > free:
        fix = "free some, or set TWOSPEED_HOME to a folder on a larger disk"
        return Check("disk", "fail", f"{detail}; {size_text(needs)} needed for {', '.join(absent)}", fix)
    return Check("disk", "ok", detail)


def _disk_needed(model: Model) -> int:
    """Requantising needs the original and the result at the same time; a file of one's own is used where it lies."""
    return (model.size or 0) * ((not _own_files(model)) + (model.quantize is not None))


def _own_files(model: Model) -> list[Path]:
    """The files a model is made of, if all of them are the user's own."""
    own = [Path(source.removeprefix("file:")) for source in model.sources if source.startswith("file:")]
    return own if len(own) == len(model.sources) else []


_KV_BITS: Mapping[str, float] = {"f16": 16, "q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_1": 5, "q4_0": 4.5}
_BUFFERS = 300 * 10**6  # logits and work space


def memory_needed(model: Model, file_bytes: int) -> int:
    """A guess without reading the GGUF: a token's f16 KV is about the root of the file's bytes, give or take half."""
    tokens = next((n for n in (model.kv_tokens, model.context) if n != "auto"), 32768)
    return int(file_bytes + tokens * math.sqrt(file_bytes) * _KV_BITS[model.kv_type] / 16) + _BUFFERS


def _needs(model: Model, entry: Entry) -> int:
    """Bytes of memory; 0: nobody knows before the file is here."""
    own = next((path for path in _own_files(model) if path.is_file()), None)
    size = entry.size if entry.state == "present" else own.stat().st_size if own else model.size
    return memory_needed(model, size) if size else 0


def _check_model(entry: Entry, model: Model, needs: int, machine: Machine, gpu: bool) -> Check:
    name, own = f"model {entry.name}", _own_files(model)
    if own and not any(path.is_file() for path in own):
        return Check(name, "fail", f"no such file: {own[0]}", f"put it there, or change models.{entry.name}.sources")
    memory = f"about {size_text(needs)} of memory" if needs else "size unknown"
    if needs > machine.memory_total and not (gpu and model.device != "cpu"):
        fix = f"in models.{entry.name}: a smaller context, kv_type: q8_0, or a smaller file"
        return Check(name, "fail", f"needs {memory}, {size_text(machine.memory_total)} is all there is", fix)
    if entry.state == "changed":
        fix = f"twospeed verify {entry.name}, or fetch it again: twospeed pull {entry.name}"
        return Check(name, "warn", "the file is not as it was when it was verified", fix)
    if entry.state != "present" and not own:
        return Check(name, "warn", f"not here ({entry.state}), needs {memory}", f"twospeed pull {entry.name}")
    return Check(name, "ok", f"here, needs {memory}")


def check_models(config: Config, entries: Sequence[Entry], machine: Machine, gpu: bool) -> list[Check]:
    checks, together, by_name = [], 0, {entry.name: entry for entry in entries}
    for entry in entries:
        model = config.models[entry.name]
        if model.backend == "llama":
            needs = _needs(model, entry)
            if (draft := config.draft_of(entry.name)) in by_name:
                room = {"context": model.context, "kv_tokens": model.kv_tokens}  # as many tokens as its model's cache
                needs += _needs(config.models[draft].model_copy(update=room), by_name[draft]) if needs else 0
            checks.append(_check_model(entry, model, needs, machine, gpu))
            together += needs if model.preload else 0
    if together > machine.memory_available and not gpu:
        detail = f"loaded together about {size_text(together)}, {size_text(machine.memory_available)} available now"
        fix = "stop other programs, set preload: false for one of them, or a smaller context"
        checks.append(Check("models", "warn", detail, fix))
    return checks


def check_address(server: Server) -> Check:
    where = f"{server.host}:{server.port}"
    if not server.api_keys and not is_loopback(server.host):
        fix = "add server.api_keys, or set server.host: 127.0.0.1"
        return Check("address", "fail", f"{where} is open to other machines and has no API keys", fix)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:  # UnicodeError: no host name can look like that
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            detail = f"{where} is taken, perhaps by a twospeed that already runs"
            return Check("address", "warn", detail, "stop what listens there, or set another server.port")
        return Check("address", "fail", f"{where}: {error}", "set another server.host or server.port")
    return Check("address", "ok", f"{where} is free")


def examine(path: Path | None = None, which: Which = shutil.which) -> list[Check]:
    """Every check, on this machine, for the configuration at `path` or the one that would be found."""
    machine, info = look(), ask_build()
    checks = [check_python(), check_packages(), check_cpu(machine), check_memory(machine), check_load(machine)]
    checks.append(check_compiler(which))
    try:
        file = find_config(path)
        config = load_config(file)
    except ConfigError as error:
        fix = "correct it; what depends on it was not looked at"
        return [*checks, check_build(info, machine, None, which), Check("config", "fail", str(error), fix)]
    store = Store()
    entries = store.entries(config.models)
    gpu = isinstance(info, dict) and bool(info["gpu_offload"])
    return [
        *checks,
        check_build(info, machine, config, which),
        Check("config", "ok", f"{file}: {', '.join(config.models)}"),
        check_disk(store.root, config, entries),
        *check_models(config, entries, machine, gpu),
        check_address(config.server),
    ]

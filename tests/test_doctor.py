from __future__ import annotations

import importlib.metadata
import os
import socket
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from twospeed import doctor, machine
from twospeed.config import Config, Model, Server
from twospeed.doctor import Check
from twospeed.machine import Machine
from twospeed.models.store import Entry

GB = 10**9
PC = Machine("Linux", "x86_64", "A CPU", ("AVX2", "FMA"), 4, 8, 16 * GB, 12 * GB, 0.5)
BUILD: dict[str, Any] = {
    "llama_cpp_python": "0.3.36",
    "system_info": "CPU : AVX2 = 1 | FMA = 1 |",
    "gpu_offload": False,
    "backends": ["CPU (A CPU)"],
}


def nothing(_: str) -> None:
    return None


def config(**models: dict[str, Any]) -> Config:
    return Config.model_validate({"version": 1, "models": models})


def entry(name: str, state: str, size: int = 0) -> Entry:
    return Entry(name, name, state, size, None, None, None, None)


HUB: dict[str, Any] = {"sources": ["hf:o/r/f.gguf"], "size": GB, "context": 4096}


# --- checks -----------------------------------------------------------------------------------------------------


def test_a_machine_in_order_passes_every_check() -> None:
    models = config(fast=HUB)
    checks = [
        doctor.check_python(),
        doctor.check_packages(),
        doctor.check_cpu(PC),
        doctor.check_load(PC),
        doctor.check_memory(PC),
        doctor.check_compiler(lambda name: f"/bin/{name}"),
        doctor.check_build(BUILD, PC, models, nothing),
        *doctor.check_models(models, [entry("fast", "present", GB)], PC, gpu=False),
        doctor.check_address(Server(port=0)),
    ]
    assert [check for check in checks if check.status != "ok" or check.fix] == []


def test_an_old_python_is_refused() -> None:
    assert doctor.check_python((3, 10, 9)).status == "fail"


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    def version_of(name: str) -> str:
        if name == "pyzmq":
            raise importlib.metadata.PackageNotFoundError
        return "1"

    assert doctor.check_packages(version_of) == Check("packages", "fail", "missing: pyzmq", "pip install pyzmq")


def test_another_llama_cpp_python_than_the_tested_one_is_a_warning() -> None:
    check = doctor.check_packages(lambda _: "0.0.1")
    assert check.status == "warn"
    assert "pip install llama-cpp-python==" in check.fix


def test_a_cpu_without_avx2_is_a_warning_but_arm_needs_none() -> None:
    assert doctor.check_cpu(PC._replace(features=("AVX",))).status == "warn"
    assert doctor.check_cpu(PC._replace(arch="aarch64", features=("NEON",))).status == "ok"


@pytest.mark.parametrize(("load", "status"), [(0.0, "ok"), (4.4, "ok"), (4.6, "warn"), (30.0, "warn")])
def test_load_is_a_warning_when_compute_threads_would_not_all_find_a_core(load: float, status: str) -> None:
    check = doctor.check_load(PC._replace(load=load))
    assert check.status == status
    assert ("wait for each other" in check.detail) == (status == "warn")


def test_the_thread_count_to_use_under_load_is_at_least_one() -> None:
    assert "defaults.threads: 2" in doctor.check_load(PC._replace(load=5.2)).fix
    assert "defaults.threads: 1" in doctor.check_load(PC._replace(load=30)).fix


def test_no_compiler_is_a_warning() -> None:
    assert doctor.check_compiler(nothing).status == "warn"


# --- llama.cpp --------------------------------------------------------------------------------------------------


def test_a_build_that_does_not_start_fails_and_says_how_to_build_anew() -> None:
    check = doctor.check_build("ended by signal 4", PC, None, nothing)
    assert check.status == "fail"
    assert "ended by signal 4" in check.detail
    assert 'CMAKE_ARGS="-DGGML_NATIVE=on" pip install' in check.fix


def test_a_model_that_wants_a_gpu_fails_on_a_build_without_one() -> None:
    models = config(fast=HUB, smart=HUB | {"device": "gpu"})
    check = doctor.check_build(BUILD, PC, models, nothing)
    assert (check.status, "smart wants a GPU" in check.detail) == ("fail", True)
    assert "-DGGML_CUDA=on" in check.fix
    assert doctor.check_build(BUILD | {"gpu_offload": True}, PC, models, nothing).status == "ok"


@pytest.mark.parametrize(
    ("machine", "tool", "flag"),
    [
        (PC, "nvidia-smi", "-DGGML_CUDA=on"),
        (PC, "rocminfo", "-DGGML_VULKAN=on"),
        (PC._replace(system="Darwin", arch="arm64"), "", "-DGGML_METAL=on"),
    ],
)
def test_a_gpu_that_the_build_cannot_use_is_a_warning(machine: Machine, tool: str, flag: str) -> None:
    def which(name: str) -> str | None:
        return f"/bin/{name}" if name == tool else None

    check = doctor.check_build(BUILD, machine, None, which)
    assert (check.status, flag in check.fix) == ("warn", True)
    assert doctor.check_build(BUILD | {"gpu_offload": True}, machine, None, which).status == "ok"


def test_a_build_without_the_cpus_extensions_is_a_warning() -> None:
    check = doctor.check_build(BUILD | {"system_info": "CPU : SSE3 = 1 |"}, PC, None, nothing)
    assert (check.status, "built without AVX2" in check.detail) == ("warn", True)


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("print('{\"gpu_offload\": true}')", {"gpu_offload": True}),
        ("import sys; sys.exit('a\\nno library')", "no library"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "ended by signal 9"),
    ],
)
def test_the_build_is_asked_in_a_child_process(code: str, answer: object) -> None:
    assert doctor.ask_build((sys.executable, "-c", code)) == answer


def test_a_child_that_talks_nonsense_or_never_ends_is_reported() -> None:
    assert "Expecting value" in str(doctor.ask_build((sys.executable, "-c", "print('hello')")))
    assert "timed out" in str(doctor.ask_build((sys.executable, "-c", "import time; time.sleep(60)"), timeout_s=0.2))
    assert "No such file" in str(doctor.ask_build(("/nowhere/python",)))


# --- models and disk --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "kv_bytes_a_token"),  # of real models: Qwen2.5-Coder 0.5B, 1.5B and 7B, Llama 8B, all Q4_K_M
    [(491_400_064, 12_288), (1_117_320_768, 28_672), (4_683_073_536, 57_344), (4_920_734_272, 131_072)],
)
def test_the_memory_guess_is_near_real_models(size: int, kv_bytes_a_token: int) -> None:
    model = Model(sources=["file:/x"], context=8192)
    guess = doctor.memory_needed(model, size) - doctor.memory_needed(model, 0) - size
    assert 0.5 < guess / (8192 * kv_bytes_a_token) < 2


def test_a_smaller_cache_needs_less_memory() -> None:
    def needed(**knobs: Any) -> int:
        return doctor.memory_needed(Model.model_validate({"sources": ["file:/x"]} | knobs), GB)

    assert needed() == needed(context=32768) > needed(kv_type="q8_0") > needed(kv_type="q4_0")
    assert needed(context=4096) == needed(context=2048, kv_tokens=4096) < needed()


def test_a_model_larger_than_memory_fails_unless_a_gpu_may_take_it() -> None:
    models, entries = config(fast=HUB | {"size": 40 * GB, "preload": False}), [entry("fast", "absent")]
    (check,) = doctor.check_models(models, entries, PC, gpu=False)
    assert (check.status, "16 GB is all there is" in check.detail) == ("fail", True)
    (check,) = doctor.check_models(models, entries, PC, gpu=True)
    assert check.status == "warn"  # not here yet


def test_models_that_do_not_fit_together_are_a_warning() -> None:
    models = config(a=HUB | {"size": 7 * GB}, b=HUB | {"size": 7 * GB})
    entries = [entry("a", "present", 7 * GB), entry("b", "present", 7 * GB)]
    checks = doctor.check_models(models, entries, PC, gpu=False)
    assert [(check.name, check.status) for check in checks] == [
        ("model a", "ok"),
        ("model b", "ok"),
        ("models", "warn"),
    ]
    later = config(a=HUB | {"size": 7 * GB}, b=HUB | {"size": 7 * GB, "preload": False})
    assert all(check.status == "ok" for check in doctor.check_models(later, entries, PC, gpu=False))


@pytest.mark.parametrize(
    ("state", "fix"),
    [("absent", "twospeed pull fast"), ("partial", "twospeed pull fast"), ("changed", "twospeed verify")],
)
def test_a_model_that_is_not_ready_is_a_warning_with_the_command_to_run(state: str, fix: str) -> None:
    (check,) = doctor.check_models(config(fast=HUB), [entry("fast", state)], PC, gpu=False)
    assert (check.status, fix in check.fix) == ("warn", True)


def test_a_file_of_ones_own_must_be_there(tmp_path: Path) -> None:
    file = tmp_path / "own.gguf"
    models = config(mine={"sources": [f"file:{file}"]})
    (check,) = doctor.check_models(models, [entry("mine", "absent")], PC, gpu=False)
    assert (check.status, check.detail) == ("fail", f"no such file: {file}")
    file.write_bytes(b"GGUF")
    (check,) = doctor.check_models(models, [entry("mine", "absent")], PC, gpu=False)
    assert check.status == "ok"


def test_stand_ins_without_weights_are_not_looked_for() -> None:
    assert doctor.check_models(config(m={"backend": "fake"}), [entry("m", "absent")], PC, gpu=False) == []


def test_a_disk_too_small_for_what_is_absent_fails(tmp_path: Path) -> None:
    models = config(fast=HUB | {"size": 10**18})
    check = doctor.check_disk(tmp_path / "not" / "yet", models, [entry("fast", "absent")])
    assert (check.status, "TWOSPEED_HOME" in check.fix) == ("fail", True)
    assert doctor.check_disk(tmp_path, models, [entry("fast", "present")]).status == "ok"
    own = config(fast=HUB | {"size": 10**18, "sources": ["file:/x.gguf"]})
    assert doctor.check_disk(tmp_path, own, [entry("fast", "absent")]).status == "ok"


# --- the address ------------------------------------------------------------------------------------------------


def test_a_taken_port_is_a_warning() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        check = doctor.check_address(Server(port=taken.getsockname()[1]))
    assert (check.status, "is taken" in check.detail) == ("warn", True)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a" * 70, "203.0.113.1"])
def test_a_host_that_is_not_this_machine_fails(host: str) -> None:
    keyed = Server.model_validate({"host": host, "port": 0, "api_keys": [{"name": "k", "sha256": "0" * 64}]})
    assert doctor.check_address(keyed).status == "fail"


@pytest.mark.parametrize(
    ("host", "status"),
    [("0.0.0.0", "fail"), ("127.0.0.1", "ok"), ("localhost", "ok"), ("127.8.9.1", "ok")],  # noqa: S104
)
def test_an_address_open_to_others_needs_api_keys(host: str, status: str) -> None:
    if sys.platform == "darwin" and host == "127.8.9.1":
        pytest.skip("macOS gives loopback one address only")
    assert doctor.check_address(Server(host=host, port=0)).status == status


# --- all together -----------------------------------------------------------------------------------------------


def test_a_broken_configuration_is_one_failed_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ask_build", lambda: BUILD)
    monkeypatch.setenv("TWOSPEED_HOME", str(tmp_path / "home"))
    file = tmp_path / "models.yaml"
    file.write_text("version: 1\nmodels: {m: {backend: fake}}\nserver: {port: 0}\n")
    assert [c.name for c in doctor.examine(file) if c.status == "fail"] == []
    file.write_text("version: 1\n")
    failed = [c for c in doctor.examine(file) if c.status == "fail"]
    assert [(c.name, c.detail) for c in failed] == [("config", f"{file}:1: models: missing")]


# --- the machine ------------------------------------------------------------------------------------------------


def tree(root: Path, **files: str) -> Path:
    """Files of another machine's /proc and /sys; `__` stands for a slash in a name, `_` for itself."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc and /sys")


@linux
def test_two_hardware_threads_of_one_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 9})
    for cpu, core in enumerate("0011"):
        folder = f"sys__devices__system__cpu__cpu{cpu}__topology__"
        tree(tmp_path, **{f"{folder}core_id": core, f"{folder}physical_package_id": "0"})
    assert machine.usable_cores(tmp_path) == 3  # nothing is known of cpu 9: it counts for itself


@linux
@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/a/b", {"a__b__cpu.max": "250000 100000"}, 2),
        ("0::/a/b", {"a__b__cpu.max": "max 100000", "a__cpu.max": "300000 100000"}, 3),
        ("0::/a/b", {"cpu.max": "50000 100000"}, 1),
        ("0::/a/b", {}, 8),
        ("4:cpu:/a", {"cpu__a__cpu.cfs_quota_us": "200000\n", "cpu__a__cpu.cfs_period_us": "100000\n"}, 2),
        ("4:cpu:/a", {"cpu__a__cpu.cfs_quota_us": "-1\n", "cpu__a__cpu.cfs_period_us": "100000\n"}, 8),
    ],
)
def test_a_cpu_quota_caps_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    tree(tmp_path, proc__self__cgroup=groups, **{f"sys__fs__cgroup__{name}": text for name, text in files.items()})
    assert machine.usable_cores(tmp_path) == cores


@pytest.mark.parametrize(
    ("groups", "folder", "names"),
    [
        ("0::/a", "a__", ("memory.max", "memory.current", "")),
        ("0::/elsewhere", "", ("memory.max", "memory.current", "")),
        ("5:memory:/a", "memory__a__", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")),
    ],
)
def test_a_memory_limit_counts_and_cached_files_make_room(
    tmp_path: Path, groups: str, folder: str, names: tuple[str, str, str]
) -> None:
    limit, used, prefix = names
    base = f"sys__fs__cgroup__{folder}"
    stat = f"anon 5\n{prefix}active_file 100\n{prefix}inactive_file 200\n"
    files = {f"{base}{limit}": "1000000", f"{base}{used}": "900000", f"{base}memory.stat": stat}
    tree(tmp_path, proc__self__cgroup=groups, **files)
    assert machine.memory(tmp_path) == (1_000_000, 100_300)


def test_no_memory_limit_leaves_the_whole_machine(tmp_path: Path) -> None:
    tree(tmp_path, proc__self__cgroup="0::/a", **{"sys__fs__cgroup__a__memory.max": "max"})
    assert machine.memory(tmp_path)[0] == psutil.virtual_memory().total


@linux
@pytest.mark.parametrize(
    ("cpuinfo", "cpu", "features"),
    [
        ("model name\t: Some CPU\nflags\t\t: fpu avx2 avx512f\n\nmodel name\t: x\n", "Some CPU", ("AVX2", "AVX512")),
        ("Features\t: fp asimd asimddp i8mm\n", None, ("NEON", "DOTPROD", "MATMUL_INT8")),
    ],
)
def test_cpu_features_are_named_as_llama_cpp_does(
    tmp_path: Path, cpuinfo: str, cpu: str | None, features: tuple[str, ...]
) -> None:
    seen = machine.look(tree(tmp_path, proc__cpuinfo=cpuinfo))
    assert seen.features == features
    assert seen.cpu == (cpu or seen.arch)


def test_a_draft_needs_memory_of_its_own() -> None:
    entries = [entry("a", "present", 7 * GB), entry("b", "present", GB)]
    alone = config(a=HUB | {"size": 7 * GB}, b=HUB | {"size": GB, "preload": False})
    drafting = config(a=HUB | {"size": 7 * GB, "draft": {"model": "b"}}, b=HUB | {"size": GB, "preload": False})
    assert doctor.check_models(alone, entries, PC, gpu=False)[0].detail != (
        doctor.check_models(drafting, entries, PC, gpu=False)[0].detail
    )

"""What `doctor`, the model store and `bench` ask of llama.cpp, each in a process of its own:

python -m twospeed.engine.runner.llama_jobs --build-info
python -m twospeed.engine.runner.llama_jobs --quantize SOURCE TARGET TYPE
python -m twospeed.engine.runner.llama_jobs --bare-decode SPEC
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

from ...config import Model
from ...machine import usable_cores
from .base import Row, RunnerError
from .llama import MAX_ROWS, C, LlamaRunner, failure, libggml, start_backend, version


def build_info() -> dict[str, Any]:
    """Which llama.cpp this is, for `doctor`: versions, CPU features, devices it can use."""
    start_backend()
    ggml = libggml()
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    for function in (ggml.ggml_backend_dev_name, ggml.ggml_backend_dev_description):
        function.restype = ctypes.c_char_p
        function.argtypes = [ctypes.c_void_p]
    devices = [ggml.ggml_backend_dev_get(i) for i in range(ggml.ggml_backend_dev_count())]
    return {
        "llama_cpp_python": version(),
        "system_info": C.llama_print_system_info().decode("utf-8", "replace").strip(),
        "gpu_offload": bool(C.llama_supports_gpu_offload()),
        "backends": [
            f"{ggml.ggml_backend_dev_name(d).decode()} ({ggml.ggml_backend_dev_description(d).decode()})"
            for d in devices
        ],
    }


def quantize(source: Path, target: Path, kind: str) -> None:
    """Write `source` to `target` with weights of `kind` (Q4_0, ...). Raises RunnerError."""
    start_backend()
    params = C.llama_model_quantize_default_params()
    params.ftype = getattr(C, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.nthread = usable_cores()
    params.allow_requantize = True
    if C.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)) != 0:
        raise failure(f"cannot requantise {source.name} to {kind}")


def bare_decode(path: Path, model: Model, prompt: str, tokens: int) -> dict[str, float]:
    """The speed to be measured against: a plain greedy llama_decode loop, one sequence, nothing else.

    Returns seconds for `tokens` decode steps, and for the prompt's prefill in one batch.
    """
    runner = LlamaRunner(path, model, max_seqs=1)
    ids = runner.vocab.tokenize(prompt, bos=True)[:MAX_ROWS]
    start = time.perf_counter()
    logits = runner.run([Row(0, t, i, i == len(ids) - 1) for i, t in enumerate(ids)])
    token = int(logits[0].argmax())
    prefilled = time.perf_counter()
    for pos in range(len(ids), len(ids) + tokens):
        token = int(runner.run([Row(0, token, pos, True)])[0].argmax())
    done = time.perf_counter()
    runner.close()
    return {"prompt_tokens": len(ids), "prefill_s": prefilled - start, "tokens": tokens, "decode_s": done - prefilled}


def main(arguments: list[str]) -> int:
    match arguments:
        case ["--build-info"]:
            print(json.dumps(build_info()))  # noqa: T201 - this is the answer
        case ["--quantize", source, target, kind]:
            quantize(Path(source), Path(target), kind)
        case ["--bare-decode", spec]:
            job = json.loads(spec)
            model = Model.model_validate(job["model"])
            print(json.dumps(bare_decode(Path(job["path"]), model, job["prompt"], job["tokens"])))  # noqa: T201
        case _:
            sys.stderr.write(f"{__doc__}\n")
            return 2
    return 0


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        try:
            sys.exit(main(sys.argv[1:]))
        except RunnerError as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(1)

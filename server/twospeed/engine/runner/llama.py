"""llama.cpp through llama-cpp-python's ctypes API: the only file that imports it, and only child processes do."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import sys
import types
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...config import Model
from ...machine import usable_cores
from .base import Logits, Row, RunnerError, RunnerInfo


def _import_llama() -> Any:
    """llama_cpp.llama_cpp without the package's __init__, which would also import a pickle-based disk
    cache, a tokenizer and half a server that nothing here uses."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.submodule_search_locations is None:
        raise RunnerError("llama-cpp-python is not installed")
    package = types.ModuleType("llama_cpp")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules.setdefault("llama_cpp", package)
    return importlib.import_module("llama_cpp.llama_cpp")


C = _import_llama()

_ERROR = 4  # GGML_LOG_LEVEL_ERROR
_KV_TYPES = {
    "f16": C.GGML_TYPE_F16,
    "q8_0": C.GGML_TYPE_Q8_0,
    "q5_1": C.GGML_TYPE_Q5_1,
    "q5_0": C.GGML_TYPE_Q5_0,
    "q4_1": C.GGML_TYPE_Q4_1,
    "q4_0": C.GGML_TYPE_Q4_0,
}
_FLASH = {
    "auto": C.LLAMA_FLASH_ATTN_TYPE_AUTO,
    True: C.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    False: C.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}
_MAX_CONTEXT = 32768  # what `context: auto` takes at most: memory for the cache grows with it
MAX_ROWS = 512  # llama.cpp's own default batch; larger ones are no faster on a CPU

_log_tail: deque[str] = deque(maxlen=20)


@C.llama_log_callback  # type: ignore[untyped-decorator]
def _keep_log(level: int, text: bytes, _data: object) -> None:
    if level == _ERROR:
        _log_tail.append(text.decode("utf-8", "replace").strip())


@functools.cache
def start_backend() -> None:
    C.llama_log_set(_keep_log, None)
    C.llama_backend_init()


def libggml() -> Any:
    """The library below llama.cpp, which knows the devices."""
    return importlib.import_module("llama_cpp._ggml").libggml


def failure(what: str) -> RunnerError:
    reasons = [line for line in _log_tail if line]
    return RunnerError(f"{what}: {reasons[0]}" if reasons else what)


class LlamaVocab:
    """The tokenizer inside a GGUF. llama.cpp never changes it after loading, hence its thread safety."""

    def __init__(self, model: Any) -> None:
        self._vocab = vocab = C.llama_model_get_vocab(model)
        self.size: int = C.llama_vocab_n_tokens(vocab)
        self.eog = frozenset(t for t in range(self.size) if C.llama_vocab_is_eog(vocab, t))
        self._bos = C.llama_vocab_bos(vocab) if C.llama_vocab_get_add_bos(vocab) else None
        self.bos_text = self._text(C.llama_vocab_bos(vocab))
        self.eos_text = self._text(C.llama_vocab_eos(vocab))
        template = C.llama_model_chat_template(model, None)
        self.chat_template = template.decode("utf-8") if template else None
        fim = (C.llama_vocab_fim_pre(vocab), C.llama_vocab_fim_suf(vocab), C.llama_vocab_fim_mid(vocab))
        self.fim = fim if min(fim) >= 0 else None
        self._piece = functools.lru_cache(maxsize=1 << 16)(self._read_piece)

    def _text(self, token: int) -> str:
        if token < 0:
            return ""
        text: bytes = C.llama_vocab_get_text(self._vocab, token)
        return text.decode("utf-8", "replace")

    def tokenize(self, text: str, *, bos: bool) -> list[int]:
        data = text.encode("utf-8", "replace")  # C++ throws on what is not UTF-8
        room = len(data) + 8
        buffer = (C.llama_token * room)()
        n = C.llama_tokenize(self._vocab, data, len(data), buffer, room, False, True)
        if n < 0:  # more tokens than bytes: possible with byte-fallback prefixes, so ask again
            room = -n
            buffer = (C.llama_token * room)()
            n = C.llama_tokenize(self._vocab, data, len(data), buffer, room, False, True)
        tokens: list[int] = buffer[:n]
        if bos and self._bos is not None and tokens[:1] != [self._bos]:
            tokens.insert(0, self._bos)
        return tokens

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return self._piece(token, special)

    def _read_piece(self, token: int, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        n = C.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = C.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        return buffer.raw[:n]

    def is_special(self, token: int) -> bool:
        attributes: int = C.llama_vocab_get_attr(self._vocab, token)
        return bool(attributes & (C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_USER_DEFINED))


class LlamaRunner:
    """One GGUF with one context: a unified KV cache that `max_seqs` sequences share."""

    def __init__(self, path: Path | None, model: Model, *, max_seqs: int) -> None:
        if path is None:
            raise RunnerError("a llama model needs a file")
        start_backend()
        _log_tail.clear()
        self._ctx: Any = None
        self._model = C.llama_model_load_from_file(str(path).encode(), _model_params(model))
        if not self._model:
            raise failure(f"cannot load {path.name}")
        try:
            if not C.llama_model_has_decoder(self._model) or C.llama_model_has_encoder(self._model):
                raise RunnerError(f"{path.name} is not a model that writes text")
            trained: int = C.llama_model_n_ctx_train(self._model)
            context = min(trained, _MAX_CONTEXT) if model.context == "auto" else model.context
            kv_tokens = context if model.kv_tokens == "auto" else model.kv_tokens
            self._ctx = C.llama_init_from_model(self._model, _context_params(model, kv_tokens, max_seqs))
            if not self._ctx:
                raise failure(f"cannot make a context of {kv_tokens} tokens for {path.name}")
        except BaseException:
            self.close()
            raise
        self._memory = C.llama_get_memory(self._ctx)
        self.vocab = LlamaVocab(self._model)
        size: int = C.llama_model_size(self._model)
        recurrent = C.llama_model_is_recurrent(self._model) or C.llama_model_is_hybrid(self._model)
        kv_tokens = min(kv_tokens, C.llama_n_ctx(self._ctx))
        self.info = RunnerInfo(
            description=_description(self._model),
            context=min(context, kv_tokens),
            kv_tokens=kv_tokens,
            max_rows=MAX_ROWS,
            parameters=C.llama_model_n_params(self._model),
            size_bytes=size,
            partial_prefix=not recurrent,
            token_bytes=_token_bytes(self._model, model.kv_type),
            fingerprint=_fingerprint(path, model),
        )
        self._make_batch()

    def _make_batch(self) -> None:
        """Our own arrays behind a llama_batch, so that a step fills them with whole-array writes."""
        self._tokens = np.zeros(MAX_ROWS, np.int32)
        self._pos = np.zeros(MAX_ROWS, np.int32)
        self._counts = np.ones(MAX_ROWS, np.int32)
        self._seqs = np.zeros(MAX_ROWS, np.int32)
        self._wanted = np.zeros(MAX_ROWS, np.int8)
        first = self._seqs.ctypes.data
        self._seq_pointers = np.arange(first, first + 4 * MAX_ROWS, 4, dtype=np.uintp)
        batch = C.llama_batch()
        batch.embd = None
        for field, array in (
            ("token", self._tokens),
            ("pos", self._pos),
            ("n_seq_id", self._counts),
            ("seq_id", self._seq_pointers),
            ("logits", self._wanted),
        ):
            setattr(batch, field, ctypes.cast(array.ctypes.data, type(getattr(batch, field))))
        self._batch = batch

    def run(self, rows: Sequence[Row]) -> Logits:
        n = len(rows)
        columns = np.array(rows, np.int32)
        self._seqs[:n] = columns[:, 0]
        self._tokens[:n] = columns[:, 1]
        self._pos[:n] = columns[:, 2]
        self._wanted[:n] = columns[:, 3]
        self._batch.n_tokens = n
        code = C.llama_decode(self._ctx, self._batch)
        if code != 0:
            raise failure(f"llama_decode of {n} rows returned {code}")
        outputs = int(columns[:, 3].sum())
        if outputs == 0:
            C.llama_synchronize(self._ctx)
            return np.empty((0, self.vocab.size), np.float32)
        pointer = C.llama_get_logits(self._ctx)
        return np.ctypeslib.as_array(pointer, (outputs, self.vocab.size))

    def copy(self, source: int, target: int, length: int) -> None:
        C.llama_memory_seq_cp(self._memory, source, target, 0, length)

    def trim(self, seq: int, length: int) -> None:
        if not C.llama_memory_seq_rm(self._memory, seq, length, -1):
            raise RunnerError(f"this model's memory cannot be cut back to {length} tokens")

    def save(self, seq: int) -> bytes:
        size = C.llama_state_seq_get_size(self._ctx, seq)
        buffer = (ctypes.c_uint8 * size)()
        written = C.llama_state_seq_get_data(self._ctx, buffer, size, seq)
        return bytes(memoryview(buffer)[:written])

    def restore(self, seq: int, state: bytes) -> None:
        buffer = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        if C.llama_state_seq_set_data(self._ctx, buffer, len(state), seq) == 0:
            raise RunnerError("the saved sequence does not fit in the KV cache")

    def close(self) -> None:
        if self._ctx:
            C.llama_free(self._ctx)
            self._ctx = None
        if self._model:
            C.llama_model_free(self._model)
            self._model = None


def _model_params(model: Model) -> Any:
    params = C.llama_model_default_params()
    if model.device == "cpu":
        params.n_gpu_layers = 0
    elif model.gpu_layers != "auto":
        params.n_gpu_layers = model.gpu_layers
    else:
        params.n_gpu_layers = 999 if C.llama_supports_gpu_offload() else 0
    if model.device == "gpu" and not C.llama_supports_gpu_offload():
        raise RunnerError("device: gpu, but this llama.cpp was built for the CPU alone; see `twospeed doctor`")
    params.load_mode = (
        (C.LLAMA_LOAD_MODE_MMAP_MLOCK if model.mlock else C.LLAMA_LOAD_MODE_MMAP)
        if model.mmap
        else (C.LLAMA_LOAD_MODE_MLOCK if model.mlock else C.LLAMA_LOAD_MODE_NONE)
    )
    params.use_extra_bufts = model.weights != "plain"
    return params


def _context_params(model: Model, kv_tokens: int, max_seqs: int) -> Any:
    params = C.llama_context_default_params()
    params.n_ctx = kv_tokens
    params.n_batch = params.n_ubatch = MAX_ROWS
    params.n_seq_max = max_seqs
    params.n_threads = params.n_threads_batch = usable_cores() if model.threads == "auto" else model.threads
    params.type_k = params.type_v = _KV_TYPES[model.kv_type]
    params.flash_attn_type = _FLASH[model.flash_attention]
    params.kv_unified = True
    params.swa_full = True  # a sliding window that forgets could not take up a conversation again
    params.no_perf = True
    return params


def _token_bytes(model: Any, kv_type: str) -> int:
    """Keys and values of one token, in all layers."""
    head = C.llama_model_n_embd(model) // max(C.llama_model_n_head(model), 1)
    values: int = 2 * C.llama_model_n_layer(model) * C.llama_model_n_head_kv(model) * head
    return int(values * {"f16": 2.0, "q8_0": 1.07, "q5_1": 0.75, "q5_0": 0.69, "q4_1": 0.63, "q4_0": 0.57}[kv_type])


def _description(model: Any) -> str:
    buffer = ctypes.create_string_buffer(128)
    C.llama_model_desc(model, buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")


def _fingerprint(path: Path, model: Model) -> str:
    """What decides a greedy text besides the prompt: the file, the library and the knobs."""
    stat = path.stat()
    facts = [model.sha256, stat.st_size, model.quantize, model.kv_type, model.weights, model.threads, version()]
    return "fp_" + hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


def version() -> str:
    return importlib.metadata.version("llama-cpp-python")

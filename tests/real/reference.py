"""A plain one-sequence llama.cpp greedy loop, to compare the server with. Nothing of twospeed is in here.

    python reference.py < job.json > answer.json

The job: {"path", "threads", "prompts": [text, ..], "tokens": n}; prompts are rendered chat prompts. For each the answer
has, step by step, the text of all tokens so far (`texts`), and what it would be with another token that was nearly as
good (`others`): by how much its logit is below the best one, the text, and whether the answer would end there.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import llama_cpp
import numpy as np

NEAR = 1.0


def main() -> None:
    job = json.load(sys.stdin)
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(job["path"].encode(), params)
    vocab = llama_cpp.llama_model_get_vocab(model)
    context = llama_cpp.llama_context_default_params()
    context.n_ctx = 4096
    context.n_batch = context.n_ubatch = 512
    context.n_threads = context.n_threads_batch = job["threads"]
    ctx = llama_cpp.llama_init_from_model(model, context)
    answers = [greedy(ctx, vocab, prompt, job["tokens"]) for prompt in job["prompts"]]
    json.dump(answers, sys.stdout)


def piece_of(vocab: Any, token: int) -> bytes:
    piece = ctypes.create_string_buffer(256)
    length = llama_cpp.llama_token_to_piece(vocab, token, piece, len(piece), 0, False)
    return piece.raw[:length]


def after(vocab: Any, written: bytes, token: int) -> tuple[str, bool]:
    """The text with `token`, but for half a character at its end, and whether it ends there."""
    ends = bool(llama_cpp.llama_vocab_is_eog(vocab, token))
    return (written if ends else written + piece_of(vocab, token)).decode("utf-8", "ignore"), ends


def greedy(ctx: Any, vocab: Any, prompt: str, count: int) -> dict[str, Any]:
    data = prompt.encode()
    buffer = (llama_cpp.llama_token * (len(data) + 8))()
    n = llama_cpp.llama_tokenize(vocab, data, len(data), buffer, len(buffer), True, True)
    others: list[list[tuple[float, str, bool]]] = []
    texts: list[str] = []
    written = b""
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(ctx), True)
    pending = list(buffer[:n])
    size = llama_cpp.llama_vocab_n_tokens(vocab)
    while len(texts) < count:
        array = (llama_cpp.llama_token * len(pending))(*pending)  # kept: the batch only points at it
        assert llama_cpp.llama_decode(ctx, llama_cpp.llama_batch_get_one(array, len(pending))) == 0
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(ctx, -1), (size,))
        token = int(logits.argmax())
        near = [int(other) for other in np.flatnonzero(logits > logits[token] - NEAR) if other != token]
        others.append([(float(logits[token] - logits[other]), *after(vocab, written, other)) for other in near])
        text, ends = after(vocab, written, token)
        texts.append(text)
        if ends:
            break
        written += piece_of(vocab, token)
        pending = [token]
    return {"others": others, "texts": texts}


if __name__ == "__main__":
    main()

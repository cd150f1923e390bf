"""From a request to tokens: template, tokenizer, and the checks that need them. Runs off the compute thread."""

from __future__ import annotations

from typing import NamedTuple

from ..types import ChatPrompt, GenerateRequest, InfillPrompt, TextPrompt, TokenPrompt
from .memo import TokenMemo
from .runner.base import Vocab
from .template import ChatTemplate, TemplateError

_PIECE = 1 << 14  # characters of a long text that are counted at a time
_LONGEST_TOKEN = 16  # characters of one, but for rare ones
_LONGEST_WORD = 16  # a cut inside a word adds fewer tokens than that


class RejectedError(Exception):
    """The request cannot be run; `code` is a key of errors.TABLE."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class Prepared(NamedTuple):
    """A request with its prompt's tokens and text, how many tokens each sequence may add, and the tokens it is
    predicted to write."""

    request: GenerateRequest
    tokens: list[int]
    text: str
    max_new: int
    prediction: list[int]


class Preparer:
    """Prepares requests for one model."""

    def __init__(self, vocab: Vocab, context: int, template: ChatTemplate | None, memo: TokenMemo) -> None:
        self._vocab = vocab
        self._context = context
        self._template = template
        self._memo = memo

    def prepare(self, request: GenerateRequest) -> Prepared:
        """Raises RejectedError."""
        too_large = [t for t in request.sampling.logit_bias if not 0 <= t < self._vocab.size]
        if too_large:
            message = f"{too_large[0]} is not a token of this model, which has {self._vocab.size}"
            raise RejectedError("invalid_value", message, "logit_bias")
        param = "messages" if isinstance(request.prompt, ChatPrompt) else "prompt"
        context = min(self._context, request.max_context or self._context)
        tokens, text = self._tokens(request, param, context)
        if not tokens:
            raise RejectedError("invalid_value", "the prompt has no tokens", param)
        asked = request.max_tokens or 1
        if len(tokens) + asked > context:
            raise self._too_long(context, f"{len(tokens) + asked} tokens", f"{len(tokens)}", asked, param)
        max_new = request.max_tokens
        if max_new is None:
            max_new = min(context - len(tokens), request.output_cap or context)
        # More of it than fits could never be written, and its tokenizing holds others up.
        prediction = self._vocab.tokenize(request.prediction[: _LONGEST_TOKEN * max_new], bos=False)[:max_new]
        return Prepared(request, tokens, text, max_new, prediction)

    def _too_long(self, context: int, total: str, prompt: str, asked: int, param: str) -> RejectedError:
        whose = "This model's" if context == self._context else "This service tier's"
        message = (
            f"{whose} maximum context length is {context} tokens. However, you requested "
            f"{total} ({prompt} in the {param}, {asked} in the completion)."
        )
        return RejectedError("context_length_exceeded", message, param)

    def _check_length(self, text: str, context: int, asked: int, param: str) -> None:
        """Refuse what is far too long without tokenizing all of it: megabytes take seconds, and others wait.

        Pieces are counted until they exceed the context by more than the cuts between them can have added.
        """
        if len(text) <= 2 * context:
            return
        count = 0
        for pieces, start in enumerate(range(0, len(text), _PIECE)):
            count += len(self._vocab.tokenize(text[start : start + _PIECE], bos=False))
            sure = count - _LONGEST_WORD * pieces
            if sure + asked > context:
                raise self._too_long(context, f"more than {sure + asked} tokens", f"more than {sure}", asked, param)

    def _tokens(self, request: GenerateRequest, param: str, context: int) -> tuple[list[int], str]:
        vocab = self._vocab
        match request.prompt:
            case ChatPrompt(messages, template_kwargs):
                if self._template is None:
                    message = "this model has no chat template; set chat_template in models.yaml or use completions"
                    raise RejectedError("invalid_template", message, "messages")
                try:
                    text = self._template.render(messages, **template_kwargs)
                except TemplateError as error:
                    raise RejectedError("invalid_template", str(error), "messages") from error
                self._check_length(text, context, request.max_tokens or 1, param)
                if not request.cache_prompt:
                    return vocab.tokenize(text, bos=True), text
                return self._with_memo(text, request.namespace), text
            case TextPrompt(text):
                self._check_length(text, context, request.max_tokens or 1, param)
                return vocab.tokenize(text, bos=True), text
            case TokenPrompt(tokens):
                wrong = [t for t in tokens if not 0 <= t < vocab.size]
                if wrong:
                    message = f"{wrong[0]} is not a token of this model, which has {vocab.size}"
                    raise RejectedError("invalid_value", message, "prompt")
                text = b"".join(vocab.piece(t, special=True) for t in tokens).decode("utf-8", "replace")
                return tokens, text if request.echo else ""
            case InfillPrompt(prefix, suffix):
                if vocab.fim is None:
                    message = "this model was not trained to fill in the middle"
                    raise RejectedError("unsupported_parameter", message, "suffix")
                before, after, middle = vocab.fim
                self._check_length(prefix + suffix, context, request.max_tokens or 1, param)
                head = vocab.tokenize(prefix, bos=False)
                tail = vocab.tokenize(suffix, bos=False)
                return [before, *head, after, *tail, middle], prefix

    def _with_memo(self, text: str, namespace: str) -> list[int]:
        known, tokens = self._memo.longest(namespace, text)
        if known:
            rest = self._vocab.tokenize(text[known:], bos=False)
            # Only where a special token follows: plain text might have merged with what came before it.
            if not rest or self._vocab.is_special(rest[0]):
                return tokens + rest
        return self._vocab.tokenize(text, bos=True)

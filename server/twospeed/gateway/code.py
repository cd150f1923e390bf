"""Does a text hold code? A small heuristic for routing, pure and in linear time.

Certain signs decide alone: a code fence, a stack trace, a compiler's error, a diff, or an order to write code
("write a function that", "fix this SQL"). Else it takes two different weaker signs, such as a line that ends in `{`
or `;`, a definition, an import, or an operator that prose has no use for. Talk about code has none of these.
"""

from __future__ import annotations

import re

LOOKED_AT = 16_000
"""Characters that are looked at: half of them from the head, half from the end."""

_CERTAIN = [
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^ {0,3}(```|~~~)",  # a fence
        r"^Traceback \(most recent call last\):",  # Python
        r'^ *File "[^"\n]{1,300}", line \d+',
        r"^[ \t]{1,16}at [^\n]{1,300}:(line )?\d+",  # Java, JavaScript, C#
        r"^thread '[^'\n]{1,100}' panicked at",  # Rust
        r"^goroutine \d+ \[",  # Go
        r"^error(\[E\d{4}\])?: .{1,300}\n +--> ",  # rustc
        r"^[\w./\\-]{1,200}:\d+(:\d+)?: (fatal )?(error|warning): ",  # gcc, clang
        r"^@@ -\d+(,\d+)? \+\d+(,\d+)? @@",  # a diff
    )
]
_CERTAIN.append(
    re.compile(
        r"\b(write|implement|develop|create|build|generate|fix|debug|refactor|optimi[sz]e|port|complete)\b[^.?!\n]{0,60}"
        r"\b(functions?|unit tests?|regex|SQL|HTML|CSS|Python|JavaScript|TypeScript|Java|Rust|Golang|Bash|Dockerfile)\b"
        r"|\b(C\+\+|C#) (code|program|class)\b",
        re.IGNORECASE,
    )
)
_WEAK = [
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"[;{}]\s*$",  # how lines end in C's family
        r"^\s{0,40}(async )?(def|fn|func|function)\s+\w{1,80}\s*[(<]",
        r"^\s{0,40}(export |public |private |abstract |final )*(class|struct|enum|trait|interface)\s+[A-Z]\w*\s*[{(:<]",
        r"^\s{0,40}(import\s+[\w.{*'\"]+|from\s+[\w.]+\s+import\s|#include\s*[<\"]|using\s+[\w.]+;|package\s+\w+;?$)",
        r"^\s{0,40}(const|let|var|val|auto|int|float|double|bool|char|string|void)\s+\w{1,80}\s*(=|\(|;|:)",
        r"^\s{0,40}(if|for|while|switch|elif|else if)\b.{0,200}[:{]\s*$",
        r"^\s{0,40}return\b.{0,200}[;)\]\w]$",
        r"=>|->|::|===|!==|!=|&&|\|\||\+=|:=|==",
        r"\w\.\w{1,80}\(|\w\[\w{1,40}\]|\b\w{1,80}\(\)",  # a method's call, an index, an empty call
        r"\b[a-z]{1,40}_[a-z_]{1,80}\b|\b[a-z]{2,40}[A-Z][a-z]\w{0,80}\(",  # snake_case; camelCase that is called
        r"\b(SELECT|DELETE)\b[^;]{1,300}\bFROM\b|\bINSERT INTO\b|\bCREATE (TABLE|INDEX)\b",
        r"^\s{0,40}</?[a-zA-Z][\w-]{0,40}(\s[^<>\n]{0,300})?>",  # markup at the head of a line
        r"^\$ \w+|^#!/",  # a shell
    )
]
_ENOUGH = 2


def holds_code(text: str) -> bool:
    """Whether there seems to be code in `text`."""
    if len(text) > LOOKED_AT:
        half = LOOKED_AT // 2
        text = f"{text[:half]}\n{text[-half:]}"
    if any(sign.search(text) for sign in _CERTAIN):
        return True
    found = 0
    for sign in _WEAK:
        found += sign.search(text) is not None
        if found == _ENOUGH:
            return True
    return False

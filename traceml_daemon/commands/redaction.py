"""Takes out of a text what names people, machines and secrets; the same thing always becomes the same word. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

_Struct = TypeVar("_Struct", bound=msgspec.Struct)

_TOKEN: Final = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA|AIza|wandb_v1_)[A-Za-z0-9_-]{8,}"
    r"|(?i:(?:token|api[_-]?key|password|passwd|secret|authorization|bearer)['\"]?\s*[:= ]\s*['\"]?)([^\s'\",;]{6,})"
)
_EMAIL: Final = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
_IPV4: Final = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
_IPV6: Final = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}(?![\w:])")
_HOST_FIELD: Final = re.compile(r"(?:\bhost\s*: |srun: error: |\bon node )([A-Za-z][\w.-]*)")
_DOMAIN: Final = re.compile(r"\b(?:[a-zA-Z][\w-]*\.){2,}(?:com|org|net|edu|gov|io|ai|local|internal|lan|cluster)\b")
_PUBLIC: Final = re.compile(r"(?:^|\.)(?:pytorch\.org|huggingface\.co|github\.com|nvidia\.com|python\.org)$")
_PATH: Final = re.compile(r"(?<![\w:/.<>])(?:[A-Za-z]:\\|/|~/)(?:[\w.@+~ -]*[\w.@+~-][/\\])+(?=[\w.@+<-])")
_SYSTEM: Final = re.compile(r"^/(?:usr|lib|lib64|bin|sbin|etc|proc|sys|dev)/")
_PACKAGES: Final = re.compile(r"^.*?/(?=(?:site|dist)-packages/|lib/python\d)")


class Redactor:
    """One for all texts of a ticket, so that they stay consistent with one another."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """`names`: users and hosts that are known, of two characters or more."""
        self._words: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        known = sorted({name for name in names if len(name) > 1}, key=len, reverse=True)
        self._known = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in known)) if known else None

    def learn(self, text: str) -> None:
        """Note the hosts that a log names where it names one, for they stand elsewhere without a sign."""
        for found in _HOST_FIELD.finditer(text):
            self._word("host", found[1])

    def text(self, text: str) -> str:
        self.learn(text)
        text = _TOKEN.sub(self._token, text)
        text = _EMAIL.sub(lambda found: self._word("email", found[0]), text)
        text = _PATH.sub(self._path, text)
        text = _IPV4.sub(lambda found: found[0] if found[0].startswith("127.") else self._word("ip", found[0]), text)
        text = _IPV6.sub(lambda found: self._word("ip", found[0]), text)
        text = _DOMAIN.sub(self._domain, text)
        if self._known is not None:
            text = self._known.sub(lambda found: self._word("name", found[0]), text)
        hosts = [original for original, word in self._words.items() if word.startswith("<host")]
        for host in sorted(hosts, key=len, reverse=True):
            text = re.sub(rf"(?<![\w<]){re.escape(host)}(?![\w>])", self._words[host], text)
        return text

    def value(self, value: object) -> object:
        """The same of every string in plain lists and maps; keys stay."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self.value(one) for one in value]
        return {key: self.value(one) for key, one in value.items()} if isinstance(value, dict) else value

    def struct(self, struct: _Struct) -> _Struct:
        return msgspec.convert(self.value(msgspec.to_builtins(struct)), type=type(struct))

    def _word(self, kind: str, original: str) -> str:
        if original not in self._words:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._words[original] = f"<{kind}{self._counts[kind]}>"
        return self._words[original]

    def _token(self, found: re.Match[str]) -> str:
        if found[1] is None:
            return self._word("secret", found[0])
        return found[0][: found.start(1) - found.start()] + self._word("secret", found[1])

    def _domain(self, found: re.Match[str]) -> str:
        return found[0] if _PUBLIC.search(found[0]) else self._word("host", found[0])

    def _path(self, found: re.Match[str]) -> str:
        """Folders go; what a package or the system calls its own stays, for it tells a reader where he is."""
        folder = found[0]
        if _SYSTEM.match(folder):
            return folder
        package = _PACKAGES.match(folder)
        if package is not None:
            return self._word("env", package[0]) + "/" + folder[package.end() :]
        return self._word("path", folder) + "/"

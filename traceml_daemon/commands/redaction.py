"""Takes out of a text what names people, machines and secrets; the same thing always becomes the same word. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

_Struct = TypeVar("_Struct", bound=msgspec.Struct)

_TOKEN: Final = re.compile(
    r"\b(?:hf_|sk[-_]|gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|A[KS]IA|AIza|ya29\.|wandb_v1_|npm_|pypi-|nvapi-|gsk_)"
    r"[A-Za-z0-9_-]{8,}"
    r"|\beyJ[\w-]{8,}(?:\.[\w-]+)*|\b[0-9a-f]{40}\b"  # a JSON web token; a key of Weights & Biases
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_NAMED: Final = re.compile(
    r"(?:token|(?:api|access|account|private)[_-]?key(?![_-]?id)|passw(?:or)?d|passphrase|secret|signature|credentials?"
    r"|authorization|bearer)(?:\\?['\"])?"
    r"(?:\s*[:=]\s*(?:(?:bearer|basic|token)\s+)?|\s+)"
    r"(?:\\?(?P<quote>['\"])(?P<quoted>[^'\"]{3,}?)\\?(?P=quote)|(?P<plain>(?<=[:=])[^\s'\",;&<]{3,}|[^\s'\",;&<]{6,}))",
    re.IGNORECASE,
)
_LOGIN: Final = re.compile(r"(?<=://)[^\s/@'\"<]+(?=@)")
_EMAIL: Final = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
_IPV4: Final = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
_COLONS: Final = re.compile(
    r"(?<![\w:.])[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}(?:(?<=:)(?:\d+\.){3}\d+)?(?![\w:]|\.\d)"
)
_HARDWARE: Final = re.compile(r"[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5}")
_HOST_FIELD: Final = re.compile(
    r"(?:\bhost(?:name)?\s*: |srun: error: |\bon node |\b(?:HOSTNAME|MASTER_ADDR|SLURMD_NODENAME)=|://(?:[^\s/@]+@|(?=[^\s/@]+:\d)))"
    r"([A-Za-z][\w.-]*)|\[([A-Za-z][\w.-]*)\]:\d"
)
_USER_FIELD: Final = re.compile(r"(?:/(?:home|Users)/|\b[A-Za-z]:\\Users\\|\b(?:USER|LOGNAME)=)([A-Za-z][\w.-]+\w)")
_NOBODY: Final = frozenset(("root", "user", "users", "data", "shared", "public", "home", "work", "localhost"))
_DOMAIN: Final = re.compile(r"\b(?:[a-zA-Z][\w-]*\.){2,}(?:com|org|net|edu|gov|io|ai|local|internal|lan|cluster)\b")
_PUBLIC: Final = re.compile(
    r"(?:^|\.)(?:pytorch\.org|huggingface\.co|github\.com|nvidia\.com|python\.org|schemastore\.org)$"
)
_STORE: Final = re.compile(r"\b(?:s3a?|gc?s|az|abfss?|wasbs?|hdfs|nfs|dbfs)://[^\s'\"<>,)]+")
_PATH: Final = re.compile(
    r"(?:(?<![\w/.<>])|(?<=file://))(?:"
    r"(?:[A-Za-z]:\\|/|~/)(?:[\w.@+~%= -]*[\w.@+~%=-][/\\])+(?=[\w.@+<-])|/(?:home|Users)/[\w.-]*\w)"
)
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
        """Note the hosts and users that a log names where it names one, for they stand elsewhere without a sign."""
        for kind, pattern in (("host", _HOST_FIELD), ("user", _USER_FIELD)):
            for found in pattern.finditer(text):
                name = found[found.lastindex or 0]
                if name.lower() not in _NOBODY:
                    self._word(kind, name)

    def text(self, text: str) -> str:
        self.learn(text)
        text = _TOKEN.sub(lambda found: self._word("secret", found[0]), text)
        text = _LOGIN.sub(lambda found: self._word("secret", found[0]), text)
        text = _NAMED.sub(self._named, text)
        text = _EMAIL.sub(lambda found: self._word("email", found[0]), text)
        text = _STORE.sub(lambda found: self._word("path", found[0]), text)
        text = _PATH.sub(self._path, text)
        text = _COLONS.sub(self._colons, text)
        text = _IPV4.sub(lambda found: found[0] if found[0].startswith("127.") else self._word("ip", found[0]), text)
        text = _DOMAIN.sub(self._domain, text)
        if self._known is not None:
            text = self._known.sub(lambda found: self._word("name", found[0]), text)
        learned = [original for original, word in self._words.items() if word.startswith(("<host", "<user"))]
        for name in sorted(learned, key=len, reverse=True):
            text = re.sub(rf"(?<![\w<]){re.escape(name)}(?![\w>])", self._words[name], text)
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

    def _named(self, found: re.Match[str]) -> str:
        """The value behind the name of a secret."""
        group = "plain" if found["quoted"] is None else "quoted"
        start, end = found.start(group) - found.start(), found.end(group) - found.start()
        return found[0][:start] + self._word("secret", found[group]) + found[0][end:]

    def _colons(self, found: re.Match[str]) -> str:
        """An IPv6 or hardware address; a time of day and a slice of Python have colons too."""
        text = found[0]
        is_telling = "." in text or any(len(group) > 2 for group in text.split(":"))
        try:
            is_address = is_telling and not ipaddress.IPv6Address(text).is_loopback
        except ValueError:
            is_address = False
        return self._word("ip", text) if is_address or _HARDWARE.fullmatch(text) else text

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
        return self._word("path", folder.rstrip("/")) + ("/" if folder[-1] in "/\\" else "")

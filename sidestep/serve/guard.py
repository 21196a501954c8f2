"""Who is let in, from where, how often and with how much: an outer layer around the page's addresses.

- The name in `Host` must be ours: a page of another site that had its name point to this machine would be refused.
- What changes anything must come from a page of ours (`Origin`), as JSON, and must be small.
- Nobody may ask too often; who has no good link may hardly ask at all.
- Answers say to the browser what it may do with them: run our own scripts and styles, and nothing else.
"""

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_BODY = 64 * 1024  # bytes
LOOPBACK = ("localhost", "127.0.0.1", "::1")
PER_ADDRESS = (400.0, 800.0)  # requests a second in the long run, and at once: a whole team behind one address
PER_PERSON = (20.0, 80.0)
PER_STRANGER = (2.0, 40.0)  # without a good link
MOST_BUCKETS = 10_000

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


@dataclass
class Buckets:
    """For each key a bucket of requests that refills at `rate` a second up to `most`."""

    rate: float
    most: float
    clock: Callable[[], float] = time.monotonic
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def take(self, key: str) -> bool:
        """Whether one more request is allowed."""
        now = self.clock()
        left, since = self._left.pop(key, (self.most, now))
        left = min(self.most, left + (now - since) * self.rate)
        self._left[key] = (max(left - 1.0, 0.0), now)
        while len(self._left) > MOST_BUCKETS:
            self._left.popitem(last=False)
        return left >= 1.0


@dataclass(frozen=True)
class Names:
    """The names by which this server may be called."""

    port: int
    anywhere: bool = (
        False  # listens beyond this machine: any bare IP address is us, since it cannot be made to point here
    )
    address: str = ""  # the public address, where there is one (behind a proxy)
    hosts: tuple[str, ...] = ()  # further names of this machine

    @property
    def public(self) -> str:
        return urlsplit(self.address).netloc.lower()

    def is_ours(self, host: str) -> bool:
        host = host.lower()
        if self.public and host == self.public:
            return True
        try:
            parts = urlsplit(f"//{host}")
            name, port = parts.hostname or "", parts.port
        except ValueError:
            return False
        if (port or 80) != self.port or parts.username is not None or parts.path:
            return False
        return name in LOOPBACK or name in self.hosts or (self.anywhere and _is_address(name))

    def is_own_origin(self, origin: str, host: str) -> bool:
        """Whether a page of ours sent this: the same host that it asks, or the public address."""
        if self.address and origin == self.address.rstrip("/"):
            return True
        return origin.lower() == f"http://{host.lower()}"


class Guard:
    """The outermost layer."""

    def __init__(self, app: ASGIApp, names: Names) -> None:
        self.app, self.names = app, names
        self.addresses = Buckets(*PER_ADDRESS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if refusal := self._refusal(scope):
            status, reason = refusal
            await JSONResponse({"error": reason}, status)(scope, receive, send_guarded)
            return
        await self.app(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        client = (scope.get("client") or ("?", 0))[0]
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self.names.is_ours(hosts[0]):
            return 421, "this server does not go by that name"
        if not self.addresses.take(client):
            return 429, "too many requests; wait a moment"
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return 405, "only GET and POST are known here"
        if scope["method"] == "POST":
            if not self.names.is_own_origin(headers.get("origin", ""), hosts[0]):
                return 403, "this request does not come from a page of this server"
            if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                return 415, "expected JSON"
            length = headers.get("content-length", "")
            if not length.isdigit():
                return 411, "the length of the request is missing"
            if int(length) > LARGEST_BODY:
                return 413, f"a request has at most {LARGEST_BODY:,} bytes"
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

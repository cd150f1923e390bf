"""Run as a process by the tests: pull ROOT URL SHA256, print the path."""

import logging
import sys
from pathlib import Path

import httpx

from twospeed.config import Model
from twospeed.models.store import Store


class PlainHTTP(httpx.HTTPTransport):
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.url = request.url.copy_with(scheme="http")
        return super().handle_request(request)


logging.basicConfig(level=logging.INFO, format="%(message)s")
root, url, sha256 = sys.argv[1:]
store = Store(Path(root), transport=PlainHTTP())
print(store.ensure("m", Model(sources=[url], sha256=sha256), lambda _: None))

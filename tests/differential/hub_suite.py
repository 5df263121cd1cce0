# SPDX-License-Identifier: Apache-2.0
"""The cache of the Hub beside huggingface_hub: what one has fetched from a server
on this host, the other finds without another request for a file."""
import hashlib
import http.server
import json
import os
import shutil
import threading
from pathlib import Path

from suite import LiveSuite, run_program

COMMIT = "0123456789abcdef" * 2 + "01234567"
TEXTS = ["config.json", "tokenizer.json", "merges.txt", "chat_template.jinja"]
WEIGHTS = [["model.safetensors"], ["pytorch_model.bin"],
           ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
            "model.safetensors.index.json"]]
OTHERS = ["flax_model.msgpack", "tf_model.h5", "README.md", "onnx/model.onnx"]


class Server(http.server.ThreadingHTTPServer):
    """A Hub with one repository, as far as both clients ask it."""

    def __init__(self, repository, files):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repository = repository
        self.files = files
        self.sent = []
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def entry(self, path):
        """What a listing has of a file, and the name of its content."""
        content = self.files[path].encode()
        entry = {"rfilename": path, "size": len(content)}
        blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
        if path.endswith((".safetensors", ".bin")):
            blob = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"sha256": blob, "size": len(content), "pointerSize": 100}
        entry["blobId"] = blob[:40]
        return entry, blob

    def tree_entry(self, path):
        """The same as huggingface_hub asks for it."""
        entry, blob = self.entry(path)
        tree = {"type": "file", "path": path, "size": entry["size"], "oid": entry["blobId"]}
        if "lfs" in entry:
            tree["lfs"] = {"oid": blob, "size": entry["size"], "pointerSize": 100}
        return tree


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def answer(self, with_body):
        hub = self.server
        path = self.path.split("?")[0]
        listing = f"/api/models/{hub.repository}/revision/"
        files = f"/{hub.repository}/resolve/"
        name = path[len(files):].partition("/")[2] if path.startswith(files) else ""
        if path.startswith(listing):
            body = json.dumps({
                "id": hub.repository, "sha": COMMIT, "private": False, "tags": [],
                "siblings": [hub.entry(file)[0] for file in hub.files]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
        elif path.startswith(f"/api/models/{hub.repository}/tree/"):
            body = json.dumps([hub.tree_entry(file) for file in hub.files]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
        elif name in hub.files:
            body = hub.files[name].encode()
            self.send_response(200)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hub.entry(name)[1]}"')
            if with_body:
                hub.sent.append(name)
        else:
            body = b"Entry not found"
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def do_GET(self):
        self.answer(True)

    def do_HEAD(self):
        self.answer(False)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_text()
            for path in Path(folder).rglob("*") if path.is_file()}


class Hub(LiveSuite):
    name = "hub"
    needs = ("huggingface_hub",)

    def cases(self, random, count):
        return [self.case(random) for _ in range(count)]

    def case(self, random):
        names = TEXTS[:random.randrange(1, len(TEXTS) + 1)] + random.choice(WEIGHTS)
        others = random.sample(OTHERS, random.randrange(len(OTHERS) + 1))
        return {"repository": random.choice(["org/name", "a-b/c_d.e-1.5B"]),
                "revision": random.choice(["main", "v1.0", "refs/pr/1", COMMIT]),
                "wanted": names, "others": others,
                "fill": random.randrange(1, 5000)}

    def write(self, case, folder):
        folder.mkdir(parents=True, exist_ok=True)

    def differences(self, case, folder, program):
        files = {name: name * case["fill"] for name in case["wanted"] + case["others"]}
        server = Server(case["repository"], files)
        cache = folder / "cache"
        name = f"hf://{case['repository']}@{case['revision'].replace('/', '%2F')}"
        wanted = {name: files[name] for name in case["wanted"]}
        found = []

        def fetched():
            answer, error = run_program(program, "fetch", name)
            if answer is None:
                found.append(f"tessera fetch: {error}")
                return {}
            return contents(answer.strip())

        def by_python(**options):
            return contents(hub.snapshot_download(
                case["repository"], revision=case["revision"], cache_dir=cache,
                endpoint=server.url, allow_patterns=case["wanted"], **options))

        saved = dict(os.environ)
        os.environ.update(HF_ENDPOINT=server.url, HF_HUB_CACHE=str(cache),
                          HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_DISABLE_XET="1")
        os.environ.pop("HF_HUB_OFFLINE", None)
        import huggingface_hub as hub  # reads them now
        try:
            if fetched() != wanted:
                found.append("tessera fetch: other files than a model is loaded from")
            if by_python(local_files_only=True) != wanted:
                found.append("huggingface_hub does not find what was fetched here")
            sent = len(server.sent)
            by_python()
            if len(server.sent) != sent:
                found.append(f"huggingface_hub fetches again: {server.sent[sent:]}")
            shutil.rmtree(cache)
            by_python()
            sent = len(server.sent)
            if fetched() != wanted:
                found.append("what huggingface_hub has fetched is not found here")
            if len(server.sent) != sent:
                found.append(f"tessera fetches again: {server.sent[sent:]}")
        finally:
            os.environ.clear()
            os.environ.update(saved)
            server.shutdown()
            server.server_close()
        return found


SUITE = Hub()

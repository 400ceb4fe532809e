"""A stand-in for the Hub: what the unmodified `huggingface_hub` needs of it to share a model, over real HTTP, on this machine.

    hub = Hub({"a-token": Account("ann")})
    with serving(hub) as url:
        subprocess.run(command, env=client_environment(url, home, token="a-token"))  # of hub_clients.py

It holds repositories with branches, tags and commits in memory, stores large files by git-lfs (whole or in parts), asks for
tokens as the Hub does, and fails where a test says so: see `Fault`. Models only, and no Xet storage: where the package hf_xet is
installed, the client uploads by it whatever a server offers, so that its variable HF_HUB_DISABLE_XET must be set; downloads
follow what the server says.
"""

import base64
import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote

import uvicorn
import yaml

GITATTRIBUTES = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"
REPO = r"(?P<repo>[^/]+/[^/]+)"
ISO_639 = "[a-z]{2,3}|code|multilingual"
REVISION = r"(?P<revision>[^/?]+)"


@dataclass(frozen=True)
class Account:
    """Whose a token is."""

    name: str
    organisations: tuple[str, ...] = ()
    writes: bool = True
    """False: a token that may only read."""


@dataclass
class Fault:
    """A request that goes wrong, `times` times: it gets an error or no answer, or its connection is dropped on the way."""

    method: str
    path: str
    """A regular expression that is searched for in the path."""
    status: int | None = None
    message: str = "told to fail"
    drop_after: int = 0
    """Without a status: how many bytes of the upload are read, or of the download sent, before the connection is dropped."""
    silent: bool = False
    """Nothing is answered until the client gives up."""
    times: int = 1


@dataclass(frozen=True)
class Blob:
    """A file's content."""

    content: bytes
    lfs: bool = False

    @property
    def git_oid(self) -> str:
        content = self.content if not self.lfs else f"pointer to {self.sha256}".encode()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.git_oid


@dataclass
class Repository:
    private: bool
    commits: dict[str, dict[str, Blob]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: Mapping[str, Blob]) -> str:
        oid = hashlib.sha1(f"{branch} {len(self.commits)} {sorted(files)}".encode()).hexdigest()
        self.commits[oid], self.branches[branch] = dict(files), oid
        return oid

    def files(self, revision: str = "main") -> dict[str, Blob]:
        return self.commits[self.branches.get(revision) or self.tags.get(revision) or revision]


@dataclass
class Request:
    method: str
    path: str
    """As it came, with its percent signs."""
    query: dict[str, str]
    headers: dict[str, str]
    received: int = 0
    """Bytes of its body that arrived."""
    body: bytes = b""
    values: dict[str, str] = field(default_factory=dict)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Response:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class Refused(Exception):
    """An answer other than what was asked for, with the headers that the client reads."""

    def __init__(self, status: int, message: str, code: str | None = None, **headers: str):
        super().__init__(message)
        named = {"X-Error-Message": message} | ({} if code is None else {"X-Error-Code": code})
        self.response = answer({"error": message}, status, **named, **headers)


def answer(value: Any, status: int = 200, **headers: str) -> Response:
    return Response(status, json.dumps(value).encode(), {"Content-Type": "application/json", **headers})


ROUTES: list[tuple[str, re.Pattern, Callable[["Hub", Request], Response]]] = []


def route(methods: str, path: str) -> Callable:
    def register(handler: Callable[["Hub", Request], Response]) -> Callable:
        ROUTES.extend((method, re.compile(path), handler) for method in methods.split())
        return handler

    return register


class Hub:
    """The application.

    Args:
        accounts: by their tokens.
        lfs_size: bytes from which on a file is large.
        part_size: bytes of one part of a large file that is uploaded in parts; None: each is uploaded whole.
    """

    def __init__(self, accounts: Mapping[str, Account], lfs_size: int = 4096, part_size: int | None = None):
        self.accounts, self.lfs_size, self.part_size = dict(accounts), lfs_size, part_size
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        """Large files by their SHA-256."""
        self.parts: dict[tuple[str, int], bytes] = {}
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        """All that came, in order."""
        self.unknown: list[str] = []
        """Requests that no route is for."""

    def seen(self, method: str, path: str) -> list[Request]:
        """The requests of this method whose path has a match of this expression."""
        return [request for request in self.requests if request.method == method and re.search(path, request.path)]

    # ---- ASGI -----------------------------------------------------------------------------------------------------
    async def __call__(self, scope: dict[str, Any], receive: Callable, send: Callable) -> None:
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        query = {name: values[-1] for name, values in parse_qs(scope["query_string"].decode()).items()}
        request = Request(scope["method"], scope["raw_path"].decode(), query, headers)
        self.requests.append(request)
        fault = self._fault(request)
        while fault is not None and fault.silent:
            if (await receive())["type"] == "http.disconnect":
                return
        drops = fault is not None and fault.status is None
        more = True
        while more and not (drops and request.received > fault.drop_after):
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            request.body += message.get("body", b"")
            request.received = len(request.body)
            more = message.get("more_body", False)
        if drops and request.body:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
            return  # an answer that is not complete: the server drops the connection
        response = self._respond(request) if fault is None or drops else Refused(fault.status, fault.message).response
        given = {"Content-Length": str(len(response.body)), **response.headers}
        lines = [(name.lower().encode(), value.encode()) for name, value in given.items()]
        await send({"type": "http.response.start", "status": response.status, "headers": lines})
        body = b"" if request.method == "HEAD" else response.body[: fault.drop_after if drops else None]
        await send({"type": "http.response.body", "body": body, "more_body": drops})

    def _fault(self, request: Request) -> Fault | None:
        for fault in self.faults:
            if fault.times and fault.method == request.method and re.search(fault.path, request.path):
                fault.times -= 1
                return fault
        return None

    def _respond(self, request: Request) -> Response:
        for method, path, handler in ROUTES:
            found = path.fullmatch(request.path)
            if method == request.method and found:
                request.values = {name: unquote(value) for name, value in found.groupdict().items() if value is not None}
                try:
                    return handler(self, request)
                except Refused as refused:
                    return refused.response
        self.unknown.append(f"{request.method} {request.path}")
        return Refused(404, "no such page").response

    # ---- who may what ---------------------------------------------------------------------------------------------
    def account(self, request: Request) -> Account | None:
        given = request.headers.get("authorization")
        if given is None:
            return None
        account = self.accounts.get(given.removeprefix("Bearer "))
        if account is None:
            raise Refused(401, "Invalid credentials in Authorization header")
        return account

    def may_write(self, request: Request, namespace: str) -> None:
        account = self.account(request)
        if account is None:
            raise Refused(401, "Invalid username or password.")
        if not account.writes or namespace not in (account.name, *account.organisations):
            raise Refused(403, f"You don't have the rights to create or change a model under the namespace {namespace}")

    def repository(self, request: Request, writes: bool = False) -> Repository:
        account, name = self.account(request), request.values["repo"]
        found, namespace = self.repositories.get(name), name.split("/")[0]
        hidden = found is not None and found.private
        if found is None or (hidden and (account is None or namespace not in (account.name, *account.organisations))):
            raise Refused(401 if account is None else 404, "Repository not found", "RepoNotFound")
        if writes:
            self.may_write(request, namespace)
        return found

    def revision(self, request: Request, repository: Repository) -> str:
        """The commit of the request's branch, tag or commit."""
        name = request.values.get("revision", "main")
        oid = repository.branches.get(name) or repository.tags.get(name) or (name if name in repository.commits else None)
        if oid is None:
            raise Refused(404, f"Invalid rev id: {name}", "RevisionNotFound")
        return oid

    def branch(self, request: Request, repository: Repository) -> str:
        name = request.values["revision"]
        if name not in repository.branches:
            raise Refused(404, f"Invalid rev id: {name}", "RevisionNotFound")
        return name

    def url(self, request: Request) -> str:
        return f"http://{request.headers['host']}"

    # ---- accounts and repositories --------------------------------------------------------------------------------
    @route("GET", "/api/whoami-v2")
    def whoami(self, request: Request) -> Response:
        account = self.account(request)
        if account is None:
            raise Refused(401, "Invalid username or password.")
        role = "write" if account.writes else "read"
        orgs = [{"name": name} for name in account.organisations]
        return answer({"type": "user", "name": account.name, "orgs": orgs, "auth": {"accessToken": {"role": role}}})

    @route("POST", "/api/repos/create")
    def create(self, request: Request) -> Response:
        wanted, account = request.json, self.account(request)
        namespace = wanted.get("organization") or (account.name if account else "")
        self.may_write(request, namespace)
        name = f"{namespace}/{wanted['name']}"
        found = {"url": f"{self.url(request)}/{name}", "name": name, "type": wanted.get("type", "model")}
        if name in self.repositories:
            return answer({"error": "You already created this model repo", **found}, 409)
        self.repositories[name] = repository = Repository(wanted.get("visibility") == "private")
        repository.commit("main", {".gitattributes": Blob(GITATTRIBUTES)})
        return answer(found)

    @route("POST", "/api/validate-yaml")
    def validate(self, request: Request) -> Response:
        """As the Hub looks at the languages of a card; the rest of its metadata pass."""
        found = re.match(r"---\n(.*?)\n---", request.json["content"], re.DOTALL)
        languages = (yaml.safe_load(found[1]) or {}).get("language") or [] if found else []
        wrong = [code for code in ([languages] if isinstance(languages, str) else languages) if not re.fullmatch(ISO_639, code)]
        errors = [{"message": f'"language" must be of ISO 639, but is {code}'} for code in wrong]
        return answer({"errors": errors, "warnings": []}, 400 if errors else 200)

    @route("GET", f"/api/models/{REPO}(/revision/{REVISION})?")
    def info(self, request: Request) -> Response:
        repository = self.repository(request)
        oid = self.revision(request, repository)
        siblings = [{"rfilename": path} for path in sorted(repository.commits[oid])]
        name = request.values["repo"]
        return answer({"id": name, "sha": oid, "private": repository.private, "siblings": siblings, "tags": []})

    @route("GET", f"/api/models/{REPO}/refs")
    def refs(self, request: Request) -> Response:
        repository = self.repository(request)
        kinds = {"branches": ("heads", repository.branches), "tags": ("tags", repository.tags)}
        named = {
            kind: [{"name": name, "ref": f"refs/{prefix}/{name}", "targetCommit": oid} for name, oid in refs.items()]
            for kind, (prefix, refs) in kinds.items()
        }
        return answer({**named, "converts": []})

    @route("POST", f"/api/models/{REPO}/branch/{REVISION}")
    def create_branch(self, request: Request) -> Response:
        repository = self.repository(request, writes=True)
        if request.values["revision"] in repository.branches:
            raise Refused(409, "Reference already exists")
        name = request.values.pop("revision")
        request.values["revision"] = request.json.get("startingPoint", "main")
        repository.branches[name] = self.revision(request, repository)
        return answer({})

    @route("POST", f"/api/models/{REPO}/tag/{REVISION}")
    def create_tag(self, request: Request) -> Response:
        repository = self.repository(request, writes=True)
        if request.json["tag"] in repository.tags:
            raise Refused(409, "Tag reference exists already")
        repository.tags[request.json["tag"]] = self.revision(request, repository)
        return answer({})

    @route("GET", rf"/api/models/{REPO}/tree/{REVISION}(/(?P<folder>.+))?")
    def tree(self, request: Request) -> Response:
        repository = self.repository(request)
        files, folder = repository.commits[self.revision(request, repository)], request.values.get("folder")
        inside = {path: blob for path, blob in files.items() if folder is None or path.startswith(f"{folder}/")}
        if not inside:
            raise Refused(404, f"{folder} does not exist on {request.values['revision']}", "EntryNotFound")
        return answer([described(path, blob) for path, blob in sorted(inside.items())])

    @route("POST", f"/api/models/{REPO}/paths-info/{REVISION}")
    def paths_info(self, request: Request) -> Response:
        repository = self.repository(request)
        files = repository.commits[self.revision(request, repository)]
        body = request.body.decode()
        wanted = json.loads(body)["paths"] if body.startswith("{") else parse_qs(body).get("paths", [])
        return answer([described(path, files[path]) for path in wanted if path in files])

    # ---- uploads --------------------------------------------------------------------------------------------------
    @route("POST", f"/api/models/{REPO}/preupload/{REVISION}")
    def preupload(self, request: Request) -> Response:
        repository = self.repository(request, writes=True)
        files = repository.files(self.branch(request, repository))
        answers = []
        for file in request.json["files"]:
            lfs = file["size"] >= self.lfs_size or file["path"].endswith(".safetensors")
            known = files.get(file["path"])
            oid = {} if known is None else {"oid": known.etag}
            answers.append({"path": file["path"], "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False, **oid})
        return answer({"files": answers})

    @route("POST", rf"/{REPO}\.git/info/lfs/objects/batch")
    def batch(self, request: Request) -> Response:
        self.repository(request, writes=True)
        assert request.json["operation"] == "upload"
        actions = [self._lfs_actions(self.url(request), **wanted) for wanted in request.json["objects"]]
        return answer({"transfer": "basic" if self.part_size is None else "multipart", "objects": actions})

    def _lfs_actions(self, url: str, oid: str, size: int) -> dict[str, Any]:
        known = {"oid": oid, "size": size}
        if oid in self.objects:
            return known
        upload: dict[str, Any] = {"href": f"{url}/lfs/whole/{oid}"}
        if self.part_size is not None and size > self.part_size:
            parts = range(1, -(-size // self.part_size) + 1)
            header = {str(part): f"{url}/lfs/part/{oid}/{part}" for part in parts}
            upload = {"href": f"{url}/lfs/complete/{oid}", "header": {"chunk_size": str(self.part_size), **header}}
        return {**known, "actions": {"upload": upload, "verify": {"href": f"{url}/lfs/verify"}}}

    def _store(self, oid: str, content: bytes) -> Response:
        if hashlib.sha256(content).hexdigest() != oid:
            raise Refused(400, f"the content is not that of {oid}")
        self.objects[oid] = content
        return Response()

    @route("PUT", "/lfs/whole/(?P<oid>[0-9a-f]{64})")
    def put_whole(self, request: Request) -> Response:
        return self._store(request.values["oid"], request.body)

    @route("PUT", "/lfs/part/(?P<oid>[0-9a-f]{64})/(?P<part>[0-9]+)")
    def put_part(self, request: Request) -> Response:
        self.parts[request.values["oid"], int(request.values["part"])] = request.body
        return Response(headers={"ETag": hashlib.md5(request.body).hexdigest()})

    @route("POST", "/lfs/complete/(?P<oid>[0-9a-f]{64})")
    def complete(self, request: Request) -> Response:
        named = request.json["parts"]
        parts = [self.parts.pop((request.values["oid"], part["partNumber"])) for part in named]
        if [hashlib.md5(part).hexdigest() for part in parts] != [part["etag"] for part in named]:
            raise Refused(400, "the parts are not those that were uploaded")
        return self._store(request.values["oid"], b"".join(parts))

    @route("POST", "/lfs/verify")
    def verify(self, request: Request) -> Response:
        if len(self.objects.get(request.json["oid"], b"")) != request.json["size"]:
            raise Refused(404, "no such object")
        return answer({})

    @route("POST", f"/api/models/{REPO}/commit/{REVISION}")
    def commit(self, request: Request) -> Response:
        repository = self.repository(request, writes=True)
        branch = self.branch(request, repository)
        header, *operations = map(json.loads, request.body.splitlines())
        if header["value"].get("parentCommit", repository.branches[branch]) != repository.branches[branch]:
            raise Refused(412, "A commit has happened since. Please refresh and try again.")
        files = dict(repository.files(branch))
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "file":
                files[value["path"]] = Blob(base64.b64decode(value["content"]))
            elif operation["key"] == "lfsFile":
                if value["oid"] not in self.objects:
                    raise Refused(400, f"{value['path']}: its content was never uploaded")
                files[value["path"]] = Blob(self.objects[value["oid"]], lfs=True)
            elif files.pop(value["path"], None) is None:
                raise Refused(404, "A file with this name doesn't exist", "EntryNotFound")
        oid = repository.commit(branch, files)
        url = f"{self.url(request)}/{request.values['repo']}/commit/{oid}"
        return answer({"success": True, "commitOid": oid, "commitUrl": url, "hookOutput": ""})

    # ---- downloads ------------------------------------------------------------------------------------------------
    @route("GET HEAD", rf"/{REPO}/resolve/{REVISION}/(?P<file>.+)")
    def resolve(self, request: Request) -> Response:
        repository = self.repository(request)
        oid = self.revision(request, repository)
        blob = repository.commits[oid].get(request.values["file"])
        commit = {"X-Repo-Commit": oid}
        if blob is None:
            raise Refused(404, "Entry not found", "EntryNotFound", **commit)
        if blob.lfs:
            linked = {"X-Linked-Etag": f'"{blob.etag}"', "X-Linked-Size": str(len(blob.content))}
            return Response(302, b"", {"Location": f"{self.url(request)}/cdn/{oid}/{blob.sha256}", **linked, **commit})
        return ranged(request, blob.content, {"ETag": f'"{blob.etag}"', **commit})

    @route("GET HEAD", "/cdn/(?P<commit>[0-9a-f]{40})/(?P<oid>[0-9a-f]{64})")
    def cdn(self, request: Request) -> Response:
        values = request.values
        return ranged(request, self.objects[values["oid"]], {"ETag": f'"{values["oid"]}"', "X-Repo-Commit": values["commit"]})


def described(path: str, blob: Blob) -> dict[str, Any]:
    lfs = {"lfs": {"oid": blob.sha256, "size": len(blob.content), "pointerSize": 134}} if blob.lfs else {}
    return {"type": "file", "path": path, "size": len(blob.content), "oid": blob.git_oid, **lfs}


def ranged(request: Request, content: bytes, headers: dict[str, str]) -> Response:
    """All of it, or what the header `Range` asks for."""
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
    if found is None:
        return Response(200, content, headers)
    first, last = int(found[1]), min(int(found[2] or len(content)), len(content) - 1)
    return Response(206, content[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{len(content)}", **headers})


# ---- serving ------------------------------------------------------------------------------------------------------------------
@contextmanager
def serving(hub: Hub) -> Iterator[str]:
    """Inside, the application answers at the address that this gives."""
    server = uvicorn.Server(uvicorn.Config(hub, log_level="critical", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [door]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{door.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()

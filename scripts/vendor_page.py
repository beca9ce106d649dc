"""Fetch the libraries of the page by npm, cut them into the files that it serves, and check them.

python scripts/vendor_page.py            fetch what MANIFEST.json names, and write the files anew
python scripts/vendor_page.py --check    hold the files that are here against MANIFEST.json; fetches nothing
python scripts/vendor_page.py --update   take the newest version of each library, and write MANIFEST.json too

Nothing of a library is changed but what `FILES` says: a bare import becomes an address, a script becomes a module.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).parents[1] / "src/chorus/api/page/static/vendor"
MANIFEST = VENDOR / "MANIFEST.json"
LICENCES = VENDOR / "LICENCES.txt"
SECONDS = 60
_SOURCE_MAP = re.compile(rb"\n?//# sourceMappingURL=.*\n?")
_APACHE = b"Apache License"
"""Its text is the project's own LICENSE, too, and stands there."""
_MIT = re.compile(rb"Permission is hereby granted, free of charge.*?DEALINGS\s+IN\s+THE\s+SOFTWARE\.", re.DOTALL)
"""The words that all MIT licences share: they stand once, at the end."""


@dataclass(frozen=True)
class Cut:
    """How one of the page's files is made of a package's."""

    package: str
    parts: tuple[str, ...]
    before: bytes = b""
    after: bytes = b""
    instead: dict[bytes, bytes] = field(default_factory=dict)


_LANGUAGES = (
    *("markup", "css", "clike", "javascript", "typescript", "json", "python", "bash", "yaml"),
    *("rust", "go", "c", "diff"),
)

FILES = {
    "preact.js": Cut("preact", ("dist/preact.mjs",)),
    "hooks.js": Cut("preact", ("hooks/dist/hooks.mjs",), instead={b'"preact"': b'"./preact.js"'}),
    "htm.js": Cut("htm", ("dist/htm.mjs",)),
    "marked.js": Cut("marked", ("lib/marked.esm.js",)),
    "uplot.js": Cut("uplot", ("dist/uPlot.iife.min.js",), after=b"export default uPlot;\n"),
    "prism.js": Cut(
        "prismjs",
        tuple(f"components/prism-{name}.min.js" for name in ("core", *_LANGUAGES)),
        # It is asked for tokens alone, and must not look for code in the page by itself.
        before=b"globalThis.Prism={manual:true,disableWorkerMessageHandler:true};\n",
        after=b"export default Prism;\n",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="look at the files that are here, and fetch nothing")
    parser.add_argument("--update", action="store_true", help="take the newest versions")
    arguments = parser.parse_args()
    if arguments.check:
        wrong = differences()
        print("\n".join(wrong) or "as the manifest says")
        return 1 if wrong else 0
    manifest = {"packages": {}, "files": {}} if arguments.update else json.loads(MANIFEST.read_text())
    fetched = {name: fetch(name, manifest["packages"].get(name)) for name in packages()}
    manifest["packages"] = {name: facts for name, (facts, _) in fetched.items()}
    contents = {name: cut(how, fetched[how.package][1]) for name, how in FILES.items()}
    found = {name: facts_of(content) for name, content in contents.items()}
    if not arguments.update and (wrong := [name for name in FILES if found[name] != manifest["files"].get(name)]):
        print(f"not what the manifest says: {', '.join(wrong)}; nothing was written", file=sys.stderr)
        return 1
    VENDOR.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (VENDOR / name).write_bytes(content)
    LICENCES.write_bytes(licences({name: files for name, (_, files) in fetched.items()}))
    MANIFEST.write_text(json.dumps({**manifest, "files": found}, indent=2) + "\n")
    for name, content in contents.items():
        package = FILES[name].package
        print(f"{name:<12} {len(content):>7} bytes  {package} {manifest['packages'][package]['version']}")
    return 0


def packages() -> list[str]:
    return sorted({how.package for how in FILES.values()})


def facts_of(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def differences() -> list[str]:
    """What is not as the manifest says, in words."""
    manifest = json.loads(MANIFEST.read_text())
    here = {path.name for path in VENDOR.iterdir()} - {MANIFEST.name, LICENCES.name}
    wrong = [f"{name}: not in the manifest" for name in sorted(here - set(manifest["files"]))]
    for name, facts in manifest["files"].items():
        path = VENDOR / name
        if not path.is_file():
            wrong.append(f"{name}: missing")
        elif facts_of(path.read_bytes()) != facts:
            wrong.append(f"{name}: changed")
    return wrong


def fetch(name: str, pinned: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The facts of one package and its files; the archive must have the checksum that was pinned, or that npm tells."""
    version = pinned["version"] if pinned else "latest"
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", f"{name}@{version}", "--json", "--ignore-scripts", "--pack-destination", folder]
        told = json.loads(subprocess.run(command, check=True, timeout=SECONDS, stdout=subprocess.PIPE).stdout)[0]
        archive = (Path(folder) / told["filename"]).read_bytes()
    digest = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    wanted = pinned["integrity"] if pinned else told["integrity"]
    if digest != wanted:
        raise SystemExit(f"{name} {told['version']}: the archive is {digest}, not {wanted}")
    files = unpacked(archive)
    license_ = json.loads(files["package.json"])["license"]
    return {"version": told["version"], "license": license_, "integrity": digest}, files


def unpacked(archive: bytes) -> dict[str, bytes]:
    """Read, never extracted: a name in an archive is somebody else's."""
    files = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as opened:
        for member in opened:
            if member.isfile() and (content := opened.extractfile(member)):
                files[member.name.partition("/")[2]] = content.read()
    return files


def cut(how: Cut, files: dict[str, bytes]) -> bytes:
    body = b"\n".join(_SOURCE_MAP.sub(b"", files[part]).rstrip() for part in how.parts) + b"\n"
    for old, new in how.instead.items():
        if body.count(old) != 1:
            raise SystemExit(f"{how.package}: {old.decode()} stands there {body.count(old)} times, not once")
        body = body.replace(old, new)
    return how.before + body + how.after


def licences(files: dict[str, dict[str, bytes]]) -> bytes:
    texts, shared = [], {}
    for name in packages():
        text = files[name]["LICENSE"].strip()
        if _APACHE in text:
            text = b"Apache License 2.0, as in LICENSE of this project"
        shared |= {b" ".join(words.split()): words for words in _MIT.findall(text)}
        text = _MIT.sub(b"Permission is granted as under MIT at the end of this file.", text)
        texts.append(_titled(name, text))
    if len(shared) > 1:
        raise SystemExit("not all MIT licences have the same words any more")
    return b"\n\n".join([*texts, *(_titled("MIT", words) for words in shared.values())])


def _titled(name: str, text: bytes) -> bytes:
    return b"%b\n%b\n\n%b\n" % (name.encode(), b"-" * len(name), text)


if __name__ == "__main__":
    sys.exit(main())

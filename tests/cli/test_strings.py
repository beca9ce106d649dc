"""Modules and files of ours that a string names: when they move, no import fails, so the strings are read here."""

from __future__ import annotations

import ast
import fnmatch
import re
import symtable
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
CODE = ("src", "tests", "benchmarks", "scripts")
TEXTS = ("Dockerfile", "Makefile", "pyproject.toml", "README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md")
TEXTS += (".ci/*", "backends/*/*", "scripts/*", "src/**/*.proto")
# They tell of names that are no more (CHANGELOG.md, which is not in the list above, the script of the move, this file)
# or that are of other projects.
HISTORY = (ROOT / "scripts/reshape.py", Path(__file__), ROOT / "docs/coming-from.md")

OURS = "(?:chorus|tests|benchmarks)"
NAME = re.compile(rf"""(?P<run>-m[\s"',]+)?(?<![\w./-])(?P<name>{OURS}(?:\.\w++)++)(?::(?P<inside>\w+))?(?![\w/-])""")
IMPORT = re.compile(rf"\bfrom (?P<module>{OURS}[\w.]*) import (?:\((?P<many>[^)]*)\)|(?P<few>\w[\w, ]*))")
PATH = re.compile(r"(?<![\w./~$}-])(?:src|tests|benchmarks|scripts|docs|backends)/[\w./*-]*[\w*/]")
SOURCE_FILE = re.compile(r"(?<![\w./~$}*-])[\w/*]+\.(?:py|proto)\b(?!\.[\w*])")
# A dotted name that ends like this is a file's: chorus.yaml.
FILE_ENDING = re.compile(r"\.(?:json|log|md|sock|toml|txt|ya?ml)$")
# Names on the wire carry the version of their protocol: chorus.rank.v1.Rank.
VERSION = re.compile(r"\.v\d+\b")
# A word in capitals stands for any other: benchmarks/results/NAME.json.
PLACEHOLDER = re.compile(r"\b[A-Z]+\b")


class Said(NamedTuple):
    """A text that may name modules and files."""

    file: str
    line: int
    text: str
    label: bool = False
    """Whether the program uses it as the name of a logger, of a group of entry points, or as a key of an ASGI scope."""
    prose: bool = True
    """Whether there may be words around a name; else it is a string of a program."""


def test_every_module_and_file_that_a_string_names_is_there() -> None:
    left_behind = unresolved(ROOT)
    assert not left_behind, "\n".join(["Named, and not there:", *left_behind])


def test_a_string_that_a_move_left_behind_is_found(tmp_path: Path) -> None:
    files = {
        "src/chorus/old/__init__.py": "",
        "src/chorus/old/work.py": "def main(): ...\n",
        "src/chorus/start.py": STARTER,
        "Dockerfile": 'CMD ["python", "-m", "chorus.old.work"]\n',
        "pyproject.toml": 'chorus = "chorus.old.work:main"\n',
        "docs/a.md": "The logger chorus.old, `old/w*.py`, src/chorus/old:\nfrom chorus.old.work import main\n",
    }
    write(tmp_path, files)
    assert unresolved(tmp_path) == []

    (tmp_path / "src/chorus/old").rename(tmp_path / "src/chorus/new")
    assert unresolved(tmp_path) == [
        "Dockerfile:1: chorus.old.work",
        "docs/a.md:1: old/w*.py",
        "docs/a.md:1: src/chorus/old",
        "docs/a.md:2: chorus.old.work",
        "docs/a.md:2: chorus.old.work.main",
        "pyproject.toml:1: chorus.old.work.main",
        "src/chorus/start.py:5: chorus.old",
        "src/chorus/start.py:6: chorus.old.work",
        "src/chorus/start.py:7: chorus.old.work.main",
        "src/chorus/start.py:8: chorus.old",
        "src/chorus/start.py:9: chorus.old",
    ]


STARTER = """\
KEY = "chorus.connection"
log = logging.getLogger("chorus.old")
found = entry_points(group="chorus.plugins"), scope[KEY]
others = "chorus.yaml", "chorus.rank.v1.Rank", "dev.chorus.agent", "_chorus._tcp.local."
command = [python, "-m", "chorus.old"]
remote("chorus.old.work")
raise TooLate("call chorus.old.work.main() before; the logger chorus.old says more")
"`python -m chorus.old`"
importlib.import_module(f"chorus.old.{name}")
"""


def test_a_name_that_a_module_does_not_have_is_found(tmp_path: Path) -> None:
    text = "chorus.work.main, chorus.work.x\nfrom chorus.work import (\n    main as run,\n    more,\n)\n"
    write(tmp_path, {"src/chorus/work.py": "def main(): ...\n", "docs/a.md": text})
    assert unresolved(tmp_path) == ["docs/a.md:1: chorus.work.x", "docs/a.md:2: chorus.work.more"]


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def unresolved(root: Path) -> list[str]:
    """What is named and not there, each with the place that names it."""
    said = [*said_in_code(root), *said_in_texts(root)]
    labels = {each.text for each in said if each.label}
    tree = Tree(root)
    return sorted({f"{each.file}:{each.line}: {name}" for each in said for name in missing(each, labels, tree)})


def missing(said: Said, labels: set[str], tree: Tree) -> Iterator[str]:
    if said.label:
        return
    for found in NAME.finditer(said.text):
        name = f"{found['name']}.{found['inside']}" if found["inside"] else found["name"]
        spoken_of = said.prose and not found["run"] and name in labels
        if not (spoken_of or FILE_ENDING.search(name) or VERSION.search(name) or tree.has_name(name)):
            yield name
    for found in IMPORT.finditer(said.text):
        imported = (part.split(" as ")[0].strip() for part in (found["many"] or found["few"]).split(","))
        yield from (name for part in imported if part and not tree.has_name(name := f"{found['module']}.{part}"))
    for found in PATH.finditer(said.text):
        if not tree.has_path(found[0]):
            yield found[0]
    # A test may write files of its own, and may speak of them; one page speaks of what was typed in other projects.
    if not said.file.startswith(("tests/", "benchmarks/", "docs/coming-from.md")):
        yield from (found[0] for found in SOURCE_FILE.finditer(said.text) if not tree.has_source(found[0]))


class Tree:
    """What there is below a root, read from its files: nothing is imported."""

    def __init__(self, root: Path) -> None:
        self._root = root
        files = (file for folder in CODE for file in (root / folder).rglob("*.*") if file.suffix in {".py", ".proto"})
        self._sources = [f"/{file.relative_to(root)}" for file in files]
        self._bound: dict[Path, set[str]] = {}

    def has_name(self, name: str) -> bool:
        parts = name.split(".")
        place = self._root / "src" if parts[0] == "chorus" else self._root
        while parts and holds_files(place / parts[0]):
            place /= parts.pop(0)
        if not parts:
            return True
        if (module := place / f"{parts[0]}.py").is_file():
            parts.pop(0)
        else:
            module = place / "__init__.py"
        return not parts or (module.is_file() and parts[0] in self._names_in(module))

    def has_path(self, path: str) -> bool:
        pattern = PLACEHOLDER.sub("*", path)
        if "*" in pattern:
            return any(self._root.glob(pattern))
        return (self._root / path).is_file() or holds_files(self._root / path)

    def has_source(self, file: str) -> bool:
        return bool(fnmatch.filter(self._sources, f"*/{file}"))

    def _names_in(self, module: Path) -> set[str]:
        if module not in self._bound:
            symbols = symtable.symtable(module.read_text(), str(module), "exec").get_symbols()
            bound = (symbol for symbol in symbols if symbol.is_assigned() or symbol.is_imported())
            self._bound[module] = {symbol.get_name() for symbol in bound}
        return self._bound[module]


def holds_files(folder: Path) -> bool:
    """Whether it is a folder with more in it than the compiled code that a move leaves behind."""
    return folder.is_dir() and any(file.name != "__pycache__" for file in folder.iterdir())


def said_in_texts(root: Path) -> Iterator[Said]:
    for file in (file for pattern in TEXTS for file in root.glob(pattern)):
        if file.is_file() and file.suffix != ".py":
            yield from said_by(str(file.relative_to(root)), file.read_text(errors="replace"))


def said_by(file: str, text: str) -> Iterator[Said]:
    """Line by line, but for an import over several."""
    for number, line in enumerate(text.splitlines(), 1):
        yield Said(file, number, line)
    for found in IMPORT.finditer(text):
        yield Said(file, text.count("\n", 0, found.start()) + 1, found[0])


def code_files(root: Path) -> list[Path]:
    return [file for folder in CODE for file in root.glob(f"{folder}/**/*.py") if "_pb2" not in file.name]


def said_in_code(root: Path) -> Iterator[Said]:
    for path in code_files(root):
        if path in HISTORY:
            continue
        file, text = str(path.relative_to(root)), path.read_text()
        tree = ast.parse(text)
        labels = set(labels_in(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                # A part of an f-string may end with the dot before the name that is filled in.
                prose = NAME.fullmatch(node.value.removesuffix(".")) is None
                yield Said(file, node.lineno, node.value, node in labels, prose)
        for number, line in enumerate(text.splitlines(), 1):
            if comment := line.partition("#")[2]:
                yield Said(file, number, comment)


def labels_in(tree: ast.Module) -> Iterator[ast.expr]:
    """Strings that name no module: given to getLogger, to entry_points as a group, or as a key to an ASGI scope."""
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        used: list[ast.expr] = []
        if isinstance(node, ast.Call) and called(node.func) == "getLogger":
            used = node.args
        elif isinstance(node, ast.Call) and called(node.func) == "entry_points":
            used = [keyword.value for keyword in node.keywords if keyword.arg == "group"]
        elif isinstance(node, ast.Subscript) and called(node.value) == "scope":
            used = [node.slice]
        yield from (constants.get(value.id, value) if isinstance(value, ast.Name) else value for value in used)


def called(node: ast.expr) -> str:
    """The last word of what is called or looked into."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""

"""The border between the library `mtbert` and the laboratory `mtbert_lab`, and the directions of imports in both."""

import ast
import re
from functools import cache
from pathlib import Path

import mtbert
import mtbert_lab

LIBRARY = Path(mtbert.__file__).parent
LAB = Path(mtbert_lab.__file__).parent
FILES = sorted([*LIBRARY.rglob("*.py"), *LAB.rglob("*.py")])

# From the bottom up: a part (here: a room) imports parts of the lines above its own.
FLOORS = {
    "mtbert": [
        {"names"},
        {"paths", "files", "strict_yaml", "runtime", "sources"},
        {"batches", "bert", "gradients", "metrics", "optim", "pairs", "samplers"},
        {"sharing", "data"},
        {"config"},
        {"multitask"},
        {"training"},
        {"__init__"},  # what it exports is imported when it is used
    ],
    "mtbert_lab": [
        {"escapes"},
        {"download", "encoders", "fields", "hints", "leaderboard", "own_code", "paths", "remarks"},
        {"statistics"},
        {"store"},
        {"cluster", "model_card", "workers"},
        {"sweep"},
        {"cost", "analysis"},
        {"report"},
        {"cli"},
        {"__main__", "__init__"},
    ],
}
# Rooms whose face is empty by design.
ROOMS_WITHOUT_A_FACE = {"mtbert_lab.report", "mtbert_lab.analysis"}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
OF_PIP = {"--force-reinstall", "--no-deps"}


def package_and_room(module: str) -> tuple[str, str]:
    """'mtbert.bert.model' -> ('mtbert', 'bert'); of a package itself the room is '__init__'."""
    package, _, rest = module.partition(".")
    return package, rest.partition(".")[0] or "__init__"


def module_of(path: Path) -> str:
    parts = path.relative_to(LIBRARY.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class WithoutTypes(ast.NodeTransformer):
    """Leaves out what is imported for annotations alone."""

    def visit_If(self, node: ast.If) -> ast.If | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else node


@cache
def imports(path: Path, for_types: bool = True) -> set[str]:
    """The modules of both packages that a file imports, at its top or inside a function.

    for_types: also those for annotations alone.
    """
    tree = ast.parse(path.read_text(encoding="utf8"))
    if not for_types:
        tree = WithoutTypes().visit(tree)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            found |= {_imported_module(node.module, alias.name) for alias in node.names}
    return {name for name in found if name.partition(".")[0] in FLOORS}


def _imported_module(module: str, name: str) -> str:
    """`from mtbert_lab import sweep` imports a room; what a face offers is of its room, even if a file has its name."""
    inside = LIBRARY.parent / module / name
    return f"{module}.{name}" if inside.is_dir() or inside.with_suffix(".py").exists() else module


def test_every_room_has_its_floor():
    for package, folder in (("mtbert", LIBRARY), ("mtbert_lab", LAB)):
        rooms = {path.relative_to(folder).parts[0].removesuffix(".py") for path in folder.rglob("*.py")}
        assert rooms == set.union(*FLOORS[package])


def test_imports_go_one_way():
    for path in FILES:
        package, room = package_and_room(module_of(path))
        floors = FLOORS[package]
        [own] = [number for number, floor in enumerate(floors) if room in floor]
        below = set().union(*floors[:own], {room})
        for name in imports(path):
            other, other_room = package_and_room(name)
            if other_room == "__init__":
                continue  # `from mtbert import __version__`
            if other == package:
                assert other_room in below, f"{path.name} imports {name}"
            else:
                assert package == "mtbert_lab", f"{path.name}, of the library, imports {name}"


def test_other_rooms_are_entered_by_their_faces():
    """What a room's `__init__` exports; but for rooms whose face is empty."""
    for path in FILES:
        own = package_and_room(module_of(path))
        for name in imports(path):
            room = ".".join(package_and_room(name))
            is_face = name.count(".") <= 1 or room in ROOMS_WITHOUT_A_FACE
            assert is_face or package_and_room(name) == own, f"{path.name} imports {name}"


@cache
def import_graph() -> dict[str, set[str]]:
    names = {module_of(path): path for path in FILES}
    others = {name: names.keys() - {"mtbert", "mtbert_lab", name} for name in names}
    return {name: imports(path, for_types=False) & others[name] for name, path in names.items()}


def test_no_file_imports_itself_by_a_detour():
    for name in import_graph():
        seen, todo = set(), [name]
        while todo:
            new = import_graph()[todo.pop()] - seen
            seen |= new
            todo += new
        assert name not in seen, name


def test_the_library_names_no_option_of_the_command_line():
    for path in LIBRARY.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                options = OPTION.findall(node.value)
                assert set(options) <= OF_PIP, f"{path.name}, line {node.lineno}: {node.value}"

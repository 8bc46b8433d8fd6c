"""Rules that every stored notebook keeps. Standard library alone.

A rule is a function that gets a `Page` and yields (cell number, message); a number of
None speaks of the whole notebook. `lint_file` runs all rules on one file:

    for problem in lint_file(path):
        print(problem)   # 03_scaling, cell [7], under "Why a root" [length]: 18 lines of code, 15 are allowed
"""

import ast
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from mha_lesson.course import learner, paths
from mha_lesson.course import notebook as nb

WIDEST_LINE = 104  # characters: seen in a window of 1280 pixels with the list of files open
LONGEST_CELL = 15  # lines that are not blank: what fits beside its output on a projector

# How many cells of which notebook (by its stem) may leave their output uncompared: cells
# that print a time, say. Exact, so that the list shrinks when a notebook does.
ALLOWED_IGNORES: dict[str, int] = {"11_serving_kv_cache_gqa": 2, "12_long_context": 2, "13_gpu": 3}


class Problem(NamedTuple):
    notebook: str
    cell: int | None  # counted from the top, text too
    rule: str
    message: str
    where: str = ""  # the same cell as Jupyter numbers it, with the heading above

    def __str__(self):
        place = f"{self.notebook}, {self.where}" if self.where else self.notebook
        return f"{place} [{self.rule}]: {self.message}"


class Page(NamedTuple):
    """One notebook and what the rules have to know about its surroundings."""

    notebook: dict
    name: str  # the file's stem
    folder: Path  # where its links start
    root: Path  # the repository
    known_ids: set | None  # exercises that exist; None: not known, not checked

    def cells(self, kind=None):
        return nb.numbered_cells(self.notebook, kind)

    def outputs(self):
        return [(number, output) for number, cell in self.cells("code") for output in cell.get("outputs", [])]


# --- it was run, from start to end, and nothing went wrong -------------------------------


def counts(page):
    """Counts are 1..N in order: the notebook was run once, from a fresh kernel."""
    expected = 0
    for number, cell in page.cells("code"):
        count = cell.get("execution_count")
        if not nb.source(cell).strip() or count is None:
            continue  # an empty cell is not run; one without a count is `unrun`'s business
        expected += 1
        if count != expected:
            yield number, f"expected execution count {expected}, got {count}: run `refresh`"
            expected = count


def unrun(page):
    """Strict comparison passes a cell that has no count and no output: so there is none."""
    for number, cell in page.cells("code"):
        if not nb.source(cell).strip():
            yield number, "an empty code cell: delete it"
        elif cell.get("execution_count") is None:
            yield number, "was never run: run `refresh`"


def errors(page):
    for number, output in page.outputs():
        if output["output_type"] == "error":
            yield number, f"stores an error ({output.get('ename')}): catch it and print what matters"
        elif output["output_type"] == "stream" and output.get("name") == "stderr":
            yield number, f"stores text on stderr: {first_line(nb.text(output['text']))}"


# --- it can be read ------------------------------------------------------------------------


def length(page):
    for number, cell in page.cells("code"):
        lines = [line for line in nb.source(cell).splitlines() if line.strip()]
        if len(lines) > LONGEST_CELL:
            yield number, f"{len(lines)} lines of code, {LONGEST_CELL} are allowed: split it"


def width(page):
    """JupyterLab cuts longer lines at the right edge of an ordinary window."""
    for number, cell in page.cells("code"):
        longest = max(map(len, nb.source(cell).splitlines()), default=0)
        if longest > WIDEST_LINE:
            yield number, f"a line of {longest} characters, {WIDEST_LINE} are allowed: break it"


def alt_text(page):
    """Whoever cannot see a picture gets its content in words."""
    for number, cell in page.cells("markdown"):
        text = without_code(nb.source(cell))
        for alt, target in MARKDOWN_IMAGE.findall(text):
            if not alt.strip():
                yield number, f"the image {target} has no alt text: ![what it shows]({target})"
        for tag in HTML_IMAGE.findall(text):
            if not re.search(r"""\balt\s*=\s*(["'])\s*\S.*?\1""", tag, re.DOTALL | re.IGNORECASE):
                yield number, f"an <img> has no alt text: {first_line(tag)}"
    for number, output in page.outputs():
        yield from ((number, message) for message in picture_problems(output))


def picture_problems(output):
    data, metadata = output.get("data", {}), output.get("metadata", {})
    for kind in (kind for kind in data if kind.startswith("image/")):
        if not str(metadata.get(kind, {}).get("alt", "")).strip():
            yield f"an {kind} output has no alt text: display(..., metadata={{{kind!r}: {{'alt': ...}}}})"
        if not nb.text(data.get("text/plain", "")).strip():
            yield f"an {kind} output comes without text/plain, so its content is not compared"


def minutes(page):
    """The time a lesson takes stands in its metadata and, the same, in its first cell."""
    stated = page.notebook.get("metadata", {}).get("mha_lesson", {}).get("minutes")
    if type(stated) is not int or stated <= 0:
        yield None, f"expected metadata mha_lesson: {{minutes: a whole number}}, got {stated!r}"
        return
    first = nb.source(page.notebook["cells"][0]) if page.notebook["cells"] else ""
    said = re.search(r"\b(\d+)\s*(?:minutes|min)\b", first)
    if said is None:
        yield 1, f"the first cell does not say how long the lesson takes: {stated} minutes"
    elif int(said[1]) != stated:
        yield 1, f"the first cell says {said[1]} minutes, the metadata {stated}"


def ids(page):
    """Ids let `git diff` and `refresh` follow a cell when others move, and tell a learner's cells from the course's."""
    seen, number = {}, learner.lesson_number(page.name)
    first = f"{number}-" if number else ""
    for number, cell in page.cells():
        name = cell.get("id")
        if not name:
            yield number, "has no id: save it with nbformat 4.5 or newer"
        elif name in seen:
            yield number, f"has the id {name!r} of cell {seen[name]} from the top"
        elif not name.startswith(first):
            yield number, f"has the id {name!r}, ids of this lesson start with {first!r}: run `refresh`"
        else:
            seen[name] = number


# --- it works offline, and on any machine -----------------------------------------------


def links(page):
    """A link without http leads to a file of this repository."""
    for number, cell in page.cells("markdown"):
        for target in local_targets(nb.source(cell)):
            if target.startswith("attachment:"):
                if unquote(target.removeprefix("attachment:")) not in cell.get("attachments", {}):
                    yield number, f"the attachment of {target} is missing"
                continue
            file = (page.folder / unquote(target)).resolve()
            if not file.is_relative_to(page.root.resolve()):
                yield number, f"the link {target} leads out of the repository"
            elif not file.exists():
                yield number, f"the link {target} leads nowhere"


def local_targets(markdown):
    text = without_code(markdown)
    found = [target for _, target in MARKDOWN_LINK.findall(text)]
    found += [target for _, target in HTML_LINK.findall(text)]
    found += LINK_DEFINITION.findall(text)
    for target in found:
        target = target.strip("<>").split("#")[0].split("?")[0]
        if target and not re.match(r"(https?:|mailto:|data:|//)", target, re.IGNORECASE):
            yield target


NETWORK = [
    (r"https?://", "an address"),
    (r"^\s*[!%]\s*(pip|conda|mamba|uv|apt|apt-get|wget|curl|git)\b", "a download"),
    (r"^\s*(import|from)\s+(requests|urllib3?|httpx|aiohttp|socket|ftplib|http|huggingface_hub|gdown)\b", "an import"),
    (r"\burllib\.request\b|\burlopen\s*\(|\burlretrieve\s*\(|\brequests\.(get|post)\b", "a request"),
    (r"\b(wget|curl)\s+-|\btorch\.hub\b", "a download"),
    (r"\.from_pretrained\s*\(|\bload_dataset\s*\(|\bdownload\s*=\s*True", "a download"),
]


def network(page):
    """Lessons run without internet. (An address in a comment is a source, and welcome.)"""
    for number, cell in page.cells("code"):
        code = without_comments(nb.source(cell))
        for pattern, what in NETWORK:
            if found := re.search(pattern, code, re.MULTILINE):
                yield number, f"{what} of the network: {found[0].strip()}"


MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|tmp|Users|private/var|var/folders|workspace|mnt)/|\b[A-Za-z]:\\+\w")


def machine_paths(page):
    for number, output in page.outputs():
        for text in output_texts(output):
            if found := MACHINE_PATH.search(text):
                yield number, f"prints a path of this machine: {around(text, found)}"


def addresses(page):
    for number, output in page.outputs():
        for text in output_texts(output):
            if found := re.search(r"\b0x[0-9a-fA-F]{6,16}\b", text):
                yield number, f"prints a memory address, new in every run: {around(text, found)}"


def figure_repr(page):
    """`<Figure size 640x480 with 1 Axes>` tells nothing about the figure."""
    for number, output in page.outputs():
        if any("<Figure size" in text for text in output_texts(output)):
            yield number, "prints matplotlib's <Figure size ...>: show the figure with a telling text/plain"


def widgets(page):
    """Saved widget state is large, and stale after the next run."""
    if "widgets" in page.notebook.get("metadata", {}):
        yield None, "stores widget state in its metadata: run `refresh`"


# --- its outputs are compared, its exercises exist -------------------------------------------

# All that nbval, nbclient and Jupyter understand; the tests hold this to nbval's own list.
IGNORE_TAGS = {
    "nbval-ignore-output",
    "pytest-validate-ignore-output",
    "nbval-skip",
    "nbval-raises-exception",
    "raises-exception",
    "skip-execution",
}
IGNORE_COMMENT = re.compile(r"#\s*(NBVAL_(IGNORE_OUTPUT|SKIP|RAISES_EXCEPTION)|PYTEST_VALIDATE_IGNORE_OUTPUT)\b")


def ignored(page):
    """Each output that is not compared is a hole in the net: they are counted."""
    holes = [number for number, cell in page.cells("code") if leaves_output_out(cell)]
    allowed = ALLOWED_IGNORES.get(page.name, 0)
    if len(holes) != allowed:
        yield None, f"{len(holes)} cells {holes} are left out of the comparison, lint.ALLOWED_IGNORES says {allowed}"


def leaves_output_out(cell):
    tags = {tag.lower() for tag in cell.get("metadata", {}).get("tags", [])}
    return bool(tags & IGNORE_TAGS or IGNORE_COMMENT.search(nb.source(cell)))


def silent(page):
    """A cell that shows nothing asserts nothing: it may import and define, for a later cell that shows something."""
    cells = [(number, cell, parsed(nb.source(cell))) for number, cell in page.cells("code")]
    for at, (number, cell, tree) in enumerate(cells):
        if cell.get("outputs") or cell.get("execution_count") is None or leaves_output_out(cell) or tree is None:
            continue  # (what was never run is `unrun`'s business)
        other = next((node for node in tree.body if not isinstance(node, DEFINES)), None)
        if other is not None:
            yield (
                number,
                f"shows nothing, so nothing is compared, and does more than import and define: {line_of(other)}",
            )
        elif not (defined_in(tree) & set().union(*(used_in(later) for _, _, later in cells[at + 1 :] if later))):
            yield number, "shows nothing, and no later cell uses what it defines: nothing is compared"


DEFINES = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)


def parsed(code):
    """The code as a tree; None for what is not plain Python (a line that starts with % or !)."""
    try:
        return ast.parse(code)
    except SyntaxError:
        return None


def defined_in(tree):
    """The names that a cell gives to a later one."""
    names = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            names |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and is_stored(name)}
    return names


def used_in(tree):
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not is_stored(node)}


def is_stored(name):
    return isinstance(name.ctx, ast.Store)


def line_of(node):
    return first_line(ast.unparse(node))


def stubs(page):
    """An exercise keeps its empty function in its metadata: by that a learner's answer is recognised."""
    for number, cell in page.cells("code"):
        given, new = learner.stub(cell), learner.new_stub(cell)
        if given is not None and given.strip() != nb.source(cell).strip():
            yield (
                number,
                "an exercise that is not as empty as it was given out; after a change of the course: run `refresh`",
            )
        elif given is None and new is not None:
            yield number, "keeps no copy of its empty function: run `refresh`"


CHECK = re.compile(r"""\b(?:check|adopt|hint|solution)\(\s*(["'])(?P<id>[^"']+)\1""")


def exercises(page):
    if page.known_ids is None:
        return
    for number, name in exercise_ids(page.notebook):
        if name not in page.known_ids:
            yield number, f"there is no exercise {name!r} in mha_lesson.exercises"


def exercise_ids(notebook):
    """(cell number, id) of each exercise that the code cells name."""
    for number, cell in nb.numbered_cells(notebook, "code"):
        for found in CHECK.finditer(without_comments(nb.source(cell))):
            yield number, found["id"]


RULES = {
    "counts": counts,
    "unrun": unrun,
    "errors": errors,
    "length": length,
    "width": width,
    "alt-text": alt_text,
    "minutes": minutes,
    "ids": ids,
    "links": links,
    "network": network,
    "machine-paths": machine_paths,
    "addresses": addresses,
    "figure-repr": figure_repr,
    "widgets": widgets,
    "ignored": ignored,
    "silent": silent,
    "stubs": stubs,
    "exercises": exercises,
}


# --- running the rules -----------------------------------------------------------------------


def lint(notebook, name="notebook", folder=None, root=None, known_ids=None, rules=RULES):
    """All problems of one notebook, given as a dictionary or an nbformat node."""
    page = Page(notebook, name, folder or paths.NOTEBOOKS, root or paths.ROOT, known_ids)
    return [
        Problem(name, cell, rule, message, nb.place(notebook, cell) if cell else "")
        for rule in rules
        for cell, message in RULES[rule](page)
    ]


# What an editor leaves behind when somebody runs cells and saves.
TRACES_OF_USE = {"counts", "unrun", "widgets", "silent"}


def lint_file(path, root=None, known_ids=None):
    """All problems of a stored notebook. What a learner has done in it is none, unless MHA_LESSON_STRICT is set."""
    used = learner.changes(nb.read(path), path.stem) and not learner.strict()
    rules = [rule for rule in RULES if not (used and rule in TRACES_OF_USE)]
    return lint(learner.given_out(path), path.stem, path.parent, root, known_ids, rules)


def registered_ids():
    """The exercises that exist."""
    from mha_lesson.exercises import REGISTRY  # here: before anything is installed there is no NumPy

    return set(REGISTRY)


# --- reading text ------------------------------------------------------------------------------

MARKDOWN_IMAGE = re.compile(r"!\[([^\]]*)\]\(\s*(<[^>]*>|[^)\s]+)")
MARKDOWN_LINK = re.compile(r"(!?)\[(?:[^\[\]]|\[[^\]]*\]\([^)]*\))*\]\(\s*(<[^>]*>|[^)\s]+)")
LINK_DEFINITION = re.compile(r"^ {0,3}\[[^\]^]+\]:\s*(\S+)", re.MULTILINE)
HTML_IMAGE = re.compile(r"<img\b[^>]*>", re.IGNORECASE)
HTML_LINK = re.compile(r"""<(?:a|img|source|video|audio)\b[^>]*?\b(?:href|src)\s*=\s*(["'])(.*?)\1""", re.I | re.S)
FENCE = re.compile(r"^( {0,3})(`{3,}|~{3,}).*?^ {0,3}\2[`~]*\s*$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)


def without_code(markdown):
    """Markdown without code, where [x](y) is Python and no link."""
    return INLINE_CODE.sub("", FENCE.sub("", markdown))


COMMENT_OR_STRING = re.compile(
    r"""(?P<string>(?P<quote>\"{3}|'{3}|"|')(?:\\.|(?!(?P=quote)).)*(?P=quote))|(?P<comment>\#[^\n]*)""", re.DOTALL
)


def without_comments(code):
    """Code without its comments; a # inside a string stays."""
    return COMMENT_OR_STRING.sub(lambda found: found["string"] or "", code)


def output_texts(output):
    """Everything in an output that is text: printed, plain, HTML, error."""
    if output["output_type"] == "stream":
        return [nb.text(output["text"])]
    if output["output_type"] == "error":
        return ["\n".join(output.get("traceback", [])), output.get("evalue", "")]
    data = output.get("data", {}).items()
    return [nb.text(value) for kind, value in data if kind.startswith("text/") or kind == "image/svg+xml"]


def first_line(text):
    return text.strip().splitlines()[0][:80] if text.strip() else "(blank)"


def around(text, found):
    return first_line(text[max(0, found.start() - 20) : found.end() + 40])

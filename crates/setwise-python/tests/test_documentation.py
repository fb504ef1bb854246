"""Examples of the documentation run, and stubs match the module."""

import ast
import doctest
import inspect
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

import setwise
from conftest import ROOT
from setwise import _setwise


def documented():
    yield "setwise", setwise.__doc__
    for name in setwise.__all__:
        item = getattr(setwise, name)
        if name == "__version__":
            continue
        yield name, item.__doc__
        if inspect.isclass(item):
            for part, member in vars(item).items():
                if not part.startswith("_"):
                    yield f"{name}.{part}", getattr(item, part).__doc__ if callable(getattr(item, part)) else member.__doc__


@pytest.mark.parametrize(("name", "text"), [pytest.param(*pair, id=pair[0]) for pair in documented()])
def test_everything_is_documented_and_the_examples_run(name, text):
    assert text and text.strip(), name
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    output = []
    runner.run(test, out=output.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(output)


def test_functions_show_an_example():
    for name in ("setwise", "kl", "mi", "fit", "Model", "Model.create", "Model.load", "presets", "Estimate"):
        assert ">>> " in dict(documented())[name], name


def pages():
    """All Markdown files that git does not ignore."""
    call = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in sorted(listed) if (ROOT / name).is_file()]


PAGES = pages()


def matches(pattern):
    """Matches of a pattern in all pages, by page and number."""
    for page in PAGES:
        found = re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        for number, match in enumerate(found, start=1):
            yield pytest.param(match, id=f"{page.relative_to(ROOT)}-{number}")


def blocks(language):
    """Fenced blocks of a language, by page and number."""
    return list(matches(rf"^```{language}\n(.*?)^```"))


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A temporary folder with links to the repository's examples."""
    for name in ("examples", "weights"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("block", blocks("python"))
def test_python_blocks_run(block, workplace):
    exec(block, {})


LONG_NUMBER = re.compile(r"\d+\.\d{6,}")


def assert_same_output(printed, shown):
    """Numbers with six or more decimals agree to 1e-5: their last digits depend on the processor."""
    assert LONG_NUMBER.sub("#", printed) == LONG_NUMBER.sub("#", shown)
    numbers = [[float(number) for number in LONG_NUMBER.findall(text)] for text in (printed, shown)]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-5)


@pytest.mark.parametrize("block", blocks("console"))
def test_console_blocks_show_the_output_of_their_commands(block, workplace, program, monkeypatch):
    (workplace / "bin").mkdir()
    (workplace / "bin" / "setwise").symlink_to(program)
    monkeypatch.setenv("PATH", f"{workplace / 'bin'}{os.pathsep}{os.environ['PATH']}")
    calls = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    assert calls, "a console block has lines that begin with `$ `"
    for call in calls:
        line, _, output = call.partition("\n")
        command = line.replace("cargo run --release --", "setwise")
        assert shlex.split(command)[0] in ("setwise", "printf"), line
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        failed = output.startswith("setwise: ")
        assert done.returncode == (2 if failed else 0), line + done.stderr
        assert_same_output((done.stderr if failed else done.stdout).rstrip(), output.rstrip())


def test_blocks_that_are_not_run_show_no_output():
    for block in blocks("text"):
        assert not re.search(r"^\$ ", block.values[0], re.MULTILINE), f"{block.id}: `console` blocks show output"


def assert_same_object(printed, shown):
    """The same keys and values; fractions agree to 1e-5."""
    assert type(printed) is type(shown)
    if isinstance(shown, dict):
        assert printed.keys() == shown.keys()
        printed, shown = ([one[key] for key in shown] for one in (printed, shown))
    if isinstance(shown, list):
        assert len(printed) == len(shown)
        for pair in zip(printed, shown):
            assert_same_object(*pair)
    else:
        assert printed == (pytest.approx(shown, rel=1e-5) if isinstance(shown, float) else shown)


JSON_OUTPUTS = list(matches(r"^```text\n(setwise [^\n]* --json)\n```\n\n```json\n(.*?)^```"))


def test_every_json_block_stands_below_its_command():
    assert len(JSON_OUTPUTS) == len(blocks("json"))


@pytest.mark.parametrize("call_and_output", JSON_OUTPUTS)
def test_json_blocks_show_the_output_of_their_commands(call_and_output, workplace, program):
    call, output = call_and_output
    done = subprocess.run([program, *shlex.split(call)[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_same_object(json.loads(done.stdout), json.loads(output))


@pytest.mark.parametrize("block", blocks("toml"))
def test_experiments_can_be_run(block, workplace, program):
    if "[task]" not in block:
        return
    Path("experiment.toml").write_text(block, encoding="utf-8")
    call = [program, "sample", "experiment.toml", "--examples", "1", "--out", "drawn"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_links_between_pages_lead_to_files():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


def prose(page):
    """Lines of a page. Code, formulas, tables and headings are blank, and a blank line precedes each item of a list."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^( *)(```|\$\$).*?^\1\2", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"</?[a-z][^>]*>", "", text)
    text = re.sub(r"^ *[|#].*", "", text, flags=re.MULTILINE)
    return re.sub(r"^ *(?:[-*]|\d+\.) ", r"\n\g<0>", text, flags=re.MULTILINE)


def test_sentences_are_short():
    """Sentences, also those of lists, have at most 25 words. A sign such as `=` or `/` is no word."""
    for page in PAGES:
        for paragraph in re.split(r"\n\s*\n", prose(page)):
            for sentence in re.split(r"(?<=[.!?])\**\s+", re.sub(r"^ *(?:[-*]|\d+\.) ", "", paragraph)):
                words = [word for word in sentence.split() if re.search(r"\w", word)]
                assert len(words) <= 25, f"{page.relative_to(ROOT)}: {len(words)} words: {sentence}"


def test_lines_of_prose_have_at_most_100_columns():
    """The addresses of links do not count: they cannot be broken."""
    for page in PAGES:
        for line in prose(page).splitlines():
            assert len(re.sub(r"\]\([^)]*\)", "]", line)) <= 100, f"{page.relative_to(ROOT)}: {line}"


def parameters(node):
    """Names of a function's parameters in the stubs."""
    a = node.args
    names = [x.arg for x in a.posonlyargs + a.args]
    names += [f"*{a.vararg.arg}"] if a.vararg else []
    names += [x.arg for x in a.kwonlyargs]
    return names + ([f"**{a.kwarg.arg}"] if a.kwarg else [])


def runtime(function):
    star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [star.get(p.kind, "") + p.name for p in inspect.signature(function).parameters.values()]


def test_the_stubs_name_the_members_of_the_module():
    path = Path(_setwise.__file__).with_name("_setwise.pyi")
    assert path.with_name("py.typed").exists()
    stubs = ast.parse(path.read_text(encoding="utf-8")).body
    functions = {n.name: n for n in stubs if isinstance(n, ast.FunctionDef)}
    classes = {n.name: n for n in stubs if isinstance(n, ast.ClassDef)}
    public = {name for name in vars(_setwise) if not name.startswith("_")}
    assert public == set(functions) | set(classes)
    for name, node in functions.items():
        assert parameters(node) == runtime(getattr(_setwise, name)), name
    for name, node in classes.items():
        methods = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
        members = {m for m in vars(getattr(_setwise, name)) if not m.startswith("_")}
        assert members == {m for m in methods if not m.startswith("_")}, name
        for method in members:
            member = inspect.getattr_static(getattr(_setwise, name), method)
            if callable(getattr(getattr(_setwise, name), method)):
                assert parameters(methods[method]) == runtime(getattr(getattr(_setwise, name), method)), method
            else:
                assert inspect.isgetsetdescriptor(member), method


def documented_signatures():
    """Name, parameters and result of each signature of the reference page, as text."""
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        pattern = r"^(setwise\.[\w.]+|model(?:\.\w+)?)(\(.*?\))?(?: -> (.*?))?(?: +#.*)?$"
        yield from re.findall(pattern, block, re.MULTILINE | re.DOTALL)


def declarations(path):
    """Declarations of a function or method, one for each overload, in the stubs and the sources."""
    *classes, name = path.split(".")
    for file in ("_setwise.pyi", "_compare.py", "_fit.py", "_test.py"):
        nodes = ast.parse(Path(_setwise.__file__).with_name(file).read_text(encoding="utf-8")).body
        for outer in classes:
            nodes = [inner for n in nodes if isinstance(n, ast.ClassDef) and n.name == outer for inner in n.body]
        yield from (n for n in nodes if isinstance(n, ast.FunctionDef) and n.name == name)


def signature_of(arguments):
    """Parameters as (name, kind, default), without `self` and annotations."""
    scope = {}
    exec(f"from __future__ import annotations\ndef function({arguments}): ...", scope)
    parameters = inspect.signature(scope["function"]).parameters.values()
    return [(p.name, p.kind, p.default) for p in parameters if p.name != "self"]


@pytest.mark.parametrize(
    ("name", "arguments", "result"), [pytest.param(*found, id=found[0]) for found in documented_signatures()]
)
def test_the_reference_has_the_signatures_of_the_package(name, arguments, result):
    path = {"model": "Model.__call__"}.get(name, name.removeprefix("setwise.").replace("model.", "Model."))
    declared = list(declarations(path))
    assert declared, name
    assert all(signature_of(arguments[1:-1]) == signature_of(ast.unparse(node.args)) for node in declared)
    if result:
        assert set(result.split(" | ")) == {ast.unparse(node.returns) for node in declared}
    if arguments and not path.endswith("__call__"):
        item = setwise
        for part in path.split("."):
            item = getattr(item, part)
        defaults = {p.name: p.default for p in inspect.signature(item).parameters.values() if p.name != "self"}
        assert defaults == {parameter: default for parameter, _, default in signature_of(arguments[1:-1])}


def test_the_reference_documents_every_public_name():
    listed = {name.split(".")[1] for name, *_ in documented_signatures() if name.startswith("setwise.")}
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    classes = {name for name in setwise.__all__ if inspect.isclass(getattr(setwise, name))}
    assert set(setwise.__all__) - {"__version__"} == listed | classes
    for name in classes:
        assert re.search(rf"^## {name}$", page, re.MULTILINE), name


def test_the_version_is_that_of_the_crate():
    assert f'version = "{setwise.__version__}"' in (ROOT / "Cargo.toml").read_text(encoding="utf-8")

"""Examples of the documentation run, and stubs match the module."""

import ast
import doctest
import inspect
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


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language):
    """Fenced blocks of a language in the README and the documentation, by page and number."""
    for page in PAGES:
        found = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        for number, block in enumerate(found, start=1):
            yield pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")


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


@pytest.mark.parametrize("block", blocks("console"))
def test_console_blocks_show_the_output_of_their_commands(block, workplace, program):
    calls = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    assert calls, "a console block has lines that begin with `$ `"
    for call in calls:
        line, _, output = call.partition("\n")
        words = shlex.split(line)
        assert words[0] == "setwise", line
        done = subprocess.run([program, *words[1:]], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.rstrip()) == (0, output.rstrip()), line + done.stderr


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


def test_sentences_are_short():
    """Sentences have at most 25 words. Tables, code, lists and the log are exempt."""
    for page in PAGES:
        if "log" in page.relative_to(ROOT).parts or page.name in ("commands.md", "experiment.md", "model-config.md"):
            continue
        text = re.sub(r"^```.*?^```", "\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        text = re.sub(r"<[^>]*>", "", text, flags=re.DOTALL)
        lines = ["" if line.lstrip().startswith(("|", "#", "- ", "* ", "![", "$$", ":", "1.")) else line for line in text.split("\n")]
        for paragraph in re.split(r"\n\s*\n", "\n".join(lines)):
            for sentence in re.split(r"(?<=[.!?:;])\s+", paragraph):
                assert len(sentence.split()) <= 25, f"{page.relative_to(ROOT)}: {sentence}"


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


def test_the_version_is_that_of_the_crate():
    assert f'version = "{setwise.__version__}"' in (ROOT / "Cargo.toml").read_text(encoding="utf-8")

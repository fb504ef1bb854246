"""Documentation that runs, and stubs that are true."""

import ast
import doctest
import inspect
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
    said = []
    runner.run(test, out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)


def test_functions_show_an_example():
    for name in ("setwise", "kl", "mi", "fit", "Model", "Model.create", "Model.load", "presets", "Estimate"):
        assert ">>> " in dict(documented())[name], name


def test_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = (ROOT / "README.md").read_text(encoding="utf-8").split("```python\n")[1:]
    assert blocks
    for block in blocks:
        exec(block.split("```")[0], {})


def parameters(node):
    """Names of a function's parameters in the stubs, in order."""
    a = node.args
    names = [x.arg for x in a.posonlyargs + a.args]
    names += [f"*{a.vararg.arg}"] if a.vararg else []
    names += [x.arg for x in a.kwonlyargs]
    return names + ([f"**{a.kwarg.arg}"] if a.kwarg else [])


def runtime(function):
    star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [star.get(p.kind, "") + p.name for p in inspect.signature(function).parameters.values()]


def test_the_stubs_name_what_the_module_has():
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


def test_the_version_is_the_crates():
    assert f'version = "{setwise.__version__}"' in (ROOT / "Cargo.toml").read_text(encoding="utf-8")

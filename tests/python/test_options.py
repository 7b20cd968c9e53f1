"""The table of options agrees with the types, the signatures and the help. The example in the help runs."""

import doctest
import importlib.util
import inspect
import sys
import typing

import pytest

pytest.importorskip("numpy")
import trope  # noqa: E402
from trope import _abi, _options, _spec  # noqa: E402

MODULES = ["trope", "trope.torch"] if importlib.util.find_spec("torch") else ["trope"]
FUNCTIONS = [
    getattr(importlib.import_module(module), name)
    for module in MODULES
    for name in ("rotate", "rotate_", "rotate_backward", "rotate_backward_")
]


def test_types_and_table_have_the_same_options():
    assert sorted(trope.Options.__annotations__) == sorted(_options.TABLE)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="typing.Required came in Python 3.11")
def test_types_agree_with_the_table():
    types = typing.get_type_hints(trope.Options, localns={"Required": typing.Required}, include_extras=True)
    for name, option in _options.TABLE.items():
        wanted = types[name]
        is_required = typing.get_origin(wanted) is typing.Required
        assert is_required == (option.default is _options.REQUIRED), name
        if wanted is typing.Any:
            assert option.default is None, name
            continue
        choices = [typing.get_args(wanted)[0]] if is_required else [wanted, *typing.get_args(wanted)]
        assert is_required or (type(None) in choices) == (option.default is None), name
        words = [word for each in choices if typing.get_origin(each) is typing.Literal for word in typing.get_args(each)]
        assert (option.type == "str") == bool(words), name
        assert not words or words == list(_spec.DIMS if name == "layout" else _abi.WORDS[name]), name


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: "%s.%s" % (function.__module__, function.__name__))
def test_signature_and_help_have_every_option_with_its_default(function):
    parameters, text = inspect.signature(function).parameters, function.__doc__
    assert not [p.name for p in parameters.values() if p.kind is p.VAR_KEYWORD]
    for name, option in _options.TABLE.items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY and parameters[name].default is option.default
        default = "" if option.default is inspect.Parameter.empty else " = %r" % option.default
        assert text.count("\n        %s%s: %s\n" % (name, default, option.help)) == 1, name
    for parameter in parameters:
        assert "\n        %s" % parameter in text, parameter


def test_the_example_in_the_help_runs():
    tests = doctest.DocTestFinder(recurse=False).find(trope.rotate, "trope.rotate", module=False, globs={})
    assert [len(test.examples) > 3 for test in tests] == [True]
    result = doctest.DocTestRunner(verbose=False).run(tests[0])
    assert result.attempted > 3 and result.failed == 0

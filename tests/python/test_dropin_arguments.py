"""The arguments of the drop-in modules: for each parameter of each public function, wrong types, shapes and values are
refused by a trope.Error that names the parameter as this function does. The table is in dropins.py."""

import types

import pytest

torch = pytest.importorskip("torch")

import trope  # noqa: E402
from dropins import (  # noqa: E402
    CONFIG, INT, MODULES, ROWS, call, find_function, find_parameters, refused_row,
)  # fmt: skip
from trope import megatron, transformers  # noqa: E402


def test_the_table_has_all_public_names():
    names = {"%s.%s" % (name, public) for name, module in MODULES.items() for public in module.__all__}
    assert names <= ROWS.keys()


@pytest.mark.parametrize("name", [name for name in ROWS if ROWS[name][0] and " " not in name])
def test_the_table_has_all_parameters(name):
    parameters = find_parameters(find_function(name))
    assert sorted(parameters) == sorted(ROWS[name][1]) == sorted(ROWS[name][0]())


CASES = [(name, parameter) for name in ROWS for parameter in ROWS[name][1] if " " not in parameter]


@pytest.mark.parametrize("name, parameter", CASES)
def test_wrong_arguments(name, parameter):
    torch.manual_seed(3)
    call(find_function(name), ROWS[name][0]())
    for wrong in ROWS[name][1][parameter]:
        refused_row(name, parameter, wrong)


def test_index_tensors_of_other_dtypes():
    for name, parameter in CASES:
        valid = ROWS[name][0]()
        if torch.is_tensor(valid.get(parameter)) and valid[parameter].dtype == INT:
            for dtype in (torch.int16, torch.uint8, torch.float32, torch.bool):
                error = refused_row(name, parameter, lambda t, dtype=dtype: t.to(dtype))
                assert "int32 or int64" in str(error)


# ---- patch ----


@pytest.mark.parametrize("wrong, words", [
    (None, "not None"), (3, "not 3"), ("meta-llama/Llama-3.1-8B", "not the text"), (torch.nn.Linear, "the class Linear"),
    (types.SimpleNamespace(model_type="llama"), "not a config"), ([], "not []"),
])  # fmt: skip
def test_patch_of_no_model(wrong, words):
    with pytest.raises(trope.Error) as caught:
        transformers.patch(wrong)
    assert caught.value.argument == "model" and words in str(caught.value)


def test_patch_of_megatron_takes_nothing():
    for args, kwargs in (((CONFIG,), {}), ((None,), {}), ((), dict(config=CONFIG))):
        with pytest.raises(trope.Error, match="patch takes no argument"):
            megatron.patch(*args, **kwargs)

"""Checks of calls that must raise a trope.Error."""

import re

import pytest
import trope


def refused(argument, call, *arguments, words="", **options):
    """Checks that a call raises a trope.Error that names `argument` as the caller knows it and matches the regular
    expression `words`. Returns the error."""
    with pytest.raises(trope.Error) as caught:
        call(*arguments, **options)
    error = caught.value
    assert error.argument == argument, (error.argument, str(error))
    assert argument.partition("[")[0] in str(error) and re.search(words, str(error)), str(error)
    return error

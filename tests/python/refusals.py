"""Calls that are refused by a trope.Error."""

import re

import pytest
import trope


def refused(argument, call, *arguments, words="", **options):
    """The error of a call, which must name `argument`, as the caller knows it, and match the regular expression `words`."""
    with pytest.raises(trope.Error) as caught:
        call(*arguments, **options)
    error = caught.value
    assert error.argument == argument, (error.argument, str(error))
    assert argument.partition("[")[0] in str(error) and re.search(words, str(error)), str(error)
    return error

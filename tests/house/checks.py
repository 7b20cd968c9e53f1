"""Shared by the scripts that read pages: a function that reads a file as text, and a list of errors."""

import os

wrong = []


def check(holds, *words):
    if not holds:
        wrong.append(" ".join(str(word) for word in words))


def read(root, name):
    with open(os.path.join(root, name), encoding="utf-8") as file:
        return file.read()
